#include "core/memory.h"
#include "mask/convert.h"
#include "mask/groups.h"
#include "mask/writer.h"

#include <stdlib.h>
#include <string.h>

typedef struct run { /* neighbouring tokens of one group */
    int64_t batch;
    int32_t id, start, end;
    int64_t place; /* among all runs, by batch item and start */
} run;

/* The columns [start, end) of a run: they see spans[first .. first + count), causal ones the first of these only from their
 * own row on. */
typedef struct run_columns {
    int64_t batch;
    int32_t start, end;
    int64_t first, count;
    int64_t group; /* first span of the group */
} run_columns;

typedef struct run_list {
    run *runs; /* by batch item, id and start: those of a group are neighbours */
    int64_t count, capacity;
    fm_interval *spans;      /* [count] tokens of each run, in the order of `runs` */
    run_columns *columns;    /* [count] by place */
    int64_t most;            /* runs of the group that has most */
    fm_stripe_blocks blocks; /* of the stripe that is written as bits; not open until one is */
} run_list;

static int by_group(const void *a, const void *b) {
    const run *x = a, *y = b;
    if (x->batch != y->batch) {
        return x->batch < y->batch ? -1 : 1;
    }
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : (x->start > y->start) - (x->start < y->start);
}

static bool same_group(const run *x, const run *y) { return x->batch == y->batch && x->id == y->id; }

static fm_status append_runs(run_list *list, const fm_groups *g, int64_t b) {
    const int32_t *ids = g->ids + b * g->length;
    for (int64_t start = 0, end; start < g->length; start = end) {
        for (end = start + 1; end < g->length && ids[end] == ids[start]; end++) {
        }
        if (g->nobody != NULL && ids[start] == *g->nobody) {
            continue;
        }
        FM_TRY(fm_grow("document runs", list->count + 1, sizeof *list->runs, (void **)&list->runs, &list->capacity));
        list->runs[list->count] = (run){b, ids[start], (int32_t)start, (int32_t)end, list->count};
        list->count++;
    }
    return FM_OK;
}

static fm_status find_runs(run_list *list, const fm_groups *g) {
    bool sorted = true; /* ids that ascend need no sort */
    for (int64_t b = 0; g->length > 0 && b < g->batch; b++) {
        FM_TRY(append_runs(list, g, b));
    }
    for (int64_t i = 1; i < list->count && sorted; i++) {
        sorted = by_group(&list->runs[i - 1], &list->runs[i]) < 0;
    }
    if (!sorted) {
        qsort(list->runs, (size_t)list->count, sizeof *list->runs, by_group);
    }
    return FM_OK;
}

static fm_status place_columns(run_list *list, bool causal) {
    FM_TRY(fm_allocate("document runs", list->count, sizeof *list->spans, (void **)&list->spans));
    FM_TRY(fm_allocate("document runs", list->count, sizeof *list->columns, (void **)&list->columns));
    for (int64_t begin = 0, end; begin < list->count; begin = end) {
        for (end = begin + 1; end < list->count && same_group(&list->runs[begin], &list->runs[end]); end++) {
        }
        for (int64_t i = begin; i < end; i++) {
            const run *r = &list->runs[i];
            const int64_t first = causal ? i : begin;
            list->spans[i] = (fm_interval){r->start, r->end};
            list->columns[r->place] = (run_columns){r->batch, r->start, r->end, first, end - first, begin};
        }
        list->most = end - begin > list->most ? end - begin : list->most;
    }
    return FM_OK;
}

/* The runs that have columns in one stripe. */
typedef struct stripe_runs {
    int64_t batch, stripe, count;
    const run_columns *runs;
} stripe_runs;

static fm_status write_intervals(fm_mask_writer *w, const run_list *list, const stripe_runs *s, bool causal) {
    const int64_t stripe_start = s->stripe * FM_STRIPE, stripe_end = stripe_start + FM_STRIPE;
    for (int64_t i = 0; i < s->count; i++) {
        const run_columns *r = &s->runs[i];
        const int64_t start = r->start > stripe_start ? r->start : stripe_start, end = r->end < stripe_end ? r->end : stripe_end;
        fm_interval seen[FM_MAX_INTERVALS];
        memcpy(seen, list->spans + r->first, (size_t)r->count * sizeof *seen);
        for (int64_t j = start; j < end; j++) {
            seen[0].start = causal ? (int32_t)j : seen[0].start;
            FM_TRY(r->count == 1 ? fm_mask_writer_interval(w, r->batch, 0, j, seen[0].start, seen[0].end)
                                 : fm_mask_writer_column(w, r->batch, 0, j, seen, r->count));
        }
    }
    return FM_OK;
}

/* The columns of one group in a stripe, and the first of its runs there. */
typedef struct stripe_group {
    const run_columns *first;
    uint64_t columns[2];
} stripe_group;

static int64_t find_stripe_groups(const stripe_runs *s, stripe_group groups[FM_STRIPE]) {
    const int64_t column0 = s->stripe * FM_STRIPE;
    int64_t count = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const run_columns *r = &s->runs[i];
        int64_t g = 0;
        while (g < count && groups[g].first->group != r->group) {
            g++;
        }
        if (g == count) {
            groups[count++] = (stripe_group){.first = r};
        }
        for (int w = 0; w < 2; w++) {
            groups[g].columns[w] |= fm_low_bits(r->end - column0 - 64 * w) & ~fm_low_bits(r->start - column0 - 64 * w);
        }
    }
    return count;
}

/* Each run of a group is added once for all columns of the group, so that a stripe costs at most the number of runs and its
 * mixed blocks: two documents that alternate token by token cost no more than one pass over the rows. */
static fm_status write_bits(fm_mask_writer *w, run_list *list, const stripe_runs *s, bool causal) {
    stripe_group groups[FM_STRIPE];
    const int64_t rows = w->shape.rows, row0 = causal ? s->stripe * FM_STRIPE : 0, left = rows - s->stripe * FM_STRIPE;
    const int64_t count = find_stripe_groups(s, groups);
    if (list->blocks.kinds == NULL) {
        FM_TRY(fm_stripe_blocks_open(&list->blocks, rows));
    }
    fm_stripe_begin(&list->blocks, left < FM_STRIPE ? left : FM_STRIPE);
    for (int64_t g = 0; g < count; g++) {
        const run_columns *r = groups[g].first;
        for (int64_t i = r->first; i < r->first + r->count; i++) {
            const fm_interval v = list->spans[i];
            fm_stripe_add_columns(&list->blocks, groups[g].columns,
                                  (fm_interval){v.start > row0 ? v.start : (int32_t)row0, v.end});
        }
    }
    fm_stripe_end(&list->blocks);
    if (causal) {
        fm_stripe_cut_diagonal(&list->blocks, s->stripe);
    }
    return fm_mask_writer_blocks(w, s->batch, 0, s->stripe, &list->blocks);
}

static fm_status write_stripe(fm_mask_writer *w, run_list *list, const stripe_runs *s, bool causal) {
    for (int64_t i = 0; i < s->count; i++) {
        if (s->runs[i].count > FM_MAX_INTERVALS) {
            return write_bits(w, list, s, causal);
        }
    }
    return write_intervals(w, list, s, causal);
}

static fm_status write_all(fm_mask_writer *w, run_list *list, bool causal) {
    int64_t column = 0; /* of the run: those before it are written */
    for (int64_t i = 0, end; i < list->count; i = end) {
        const run_columns *r = &list->columns[i];
        const int64_t stripe = (column > r->start ? column : r->start) / FM_STRIPE, next = (stripe + 1) * FM_STRIPE;
        end = i + 1;
        while (end < list->count && list->columns[end].batch == r->batch && list->columns[end].start < next) {
            end++;
        }
        FM_TRY(write_stripe(w, list, &(stripe_runs){r->batch, stripe, end - i, r}, causal));
        const bool goes_on = list->columns[end - 1].end > next;
        column = goes_on ? next : 0;
        end -= goes_on;
    }
    return FM_OK;
}

fm_status fm_mask_from_groups(const fm_groups *g, const fm_mask_options *options, fm_mask **out) {
    const fm_mask_shape shape = {g->batch, 1, g->length, g->length};
    fm_mask_writer writer = {0};
    run_list list = {0};
    fm_status status;
    FM_TRY(fm_mask_shape_check(shape));
    FM_TRY_DONE(find_runs(&list, g));
    FM_TRY_DONE(place_columns(&list, g->causal));
    FM_TRY_DONE(fm_mask_writer_open(&writer, shape, list.most, options));
    FM_TRY_DONE(write_all(&writer, &list, g->causal));
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    fm_mask_writer_close(&writer);
    free(list.runs);
    free(list.spans);
    free(list.columns);
    fm_stripe_blocks_close(&list.blocks);
    return status;
}

fm_status fm_mask_from_document_ids(int64_t batch, int64_t length, const int32_t *ids, int32_t padding_id, bool causal,
                                    const fm_mask_options *options, fm_mask **out) {
    const fm_mask_shape shape = {batch, 1, length, length};
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_array_count("ids", shape, 1, length, &count));
    FM_TRY(fm_array_check_input("ids", ids, count));
    const int32_t *padding = padding_id != -1 ? &padding_id : NULL;
    for (int64_t i = 0; i < count; i++) {
        FM_CHECK(ids[i] >= 0 || (padding != NULL && ids[i] == *padding), FM_ERROR_ARGUMENT,
                 "ids: document of token %lld (batch item %lld) is %d, needs 0 or more, or the padding id",
                 (long long)(i % length), (long long)(i / length), ids[i]);
    }
    const fm_groups groups = {.batch = batch, .length = length, .ids = ids, .nobody = padding, .causal = causal};
    return fm_mask_from_groups(&groups, options, out);
}

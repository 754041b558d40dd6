#include "mask/writer.h"

#include "core/memory.h"
#include "core/random.h"

#include <stdlib.h>
#include <string.h>

enum { DEFAULT_FALLBACK_LIMIT = 1 << 30 };

static fm_status read_options(const fm_mask_options *options, int64_t *limit) {
    *limit = DEFAULT_FALLBACK_LIMIT;
    if (options == NULL) {
        return FM_OK;
    }
    FM_CHECK(options->size == sizeof *options, FM_ERROR_ARGUMENT,
             "options.size: is %zu, needs %zu (FM_MASK_OPTIONS_INIT sets it)", options->size, sizeof *options);
    FM_CHECK(options->fallback_limit >= -1, FM_ERROR_ARGUMENT, "options.fallback_limit: is %lld, needs bytes or -1",
             (long long)options->fallback_limit);
    if (options->fallback_limit >= 0) {
        *limit = options->fallback_limit;
    }
    return FM_OK;
}

fm_status fm_mask_writer_open(fm_mask_writer *w, fm_mask_shape shape, int64_t max_intervals, const fm_mask_options *options) {
    *w = (fm_mask_writer){.shape = shape, .fallback = {.shape = shape}};
    FM_TRY(fm_mask_shape_check(shape));
    FM_TRY(read_options(options, &w->fallback.limit));
    w->room = max_intervals > FM_MAX_INTERVALS ? FM_MAX_INTERVALS : (int32_t)max_intervals;
    const int64_t columns = fm_multiply(shape.batch * shape.heads, w->room * shape.columns);
    FM_TRY(fm_allocate("mask intervals", columns, sizeof *w->bounds, (void **)&w->bounds));
    if (shape.rows > 0) { /* an unused interval is [Sq, Sq) */
        for (int64_t i = 0; i < columns; i++) {
            w->bounds[i] = (fm_interval){(int32_t)shape.rows, (int32_t)shape.rows};
        }
    }
    return FM_OK;
}

static fm_interval *bounds_of(const fm_mask_writer *w, int64_t plane, int64_t column, int32_t m) {
    return w->bounds + (plane * w->room + m) * w->shape.columns + column;
}

/* Sorts by start, cuts to [0, rows), drops empty intervals and merges the rest in place; returns how many are left. */
static int64_t normalise(fm_interval *v, int64_t count, int32_t rows) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const int32_t start = v[i].start < 0 ? 0 : v[i].start, end = v[i].end > rows ? rows : v[i].end;
        if (start < end) {
            v[kept++] = (fm_interval){start, end};
        }
    }
    if (kept <= 1) {
        return kept;
    }
    for (int64_t i = 1; i < kept; i++) { /* callers' lists are short or already ascending: insertion is linear then */
        const fm_interval x = v[i];
        int64_t at = i;
        for (; at > 0 && v[at - 1].start > x.start; at--) {
            v[at] = v[at - 1];
        }
        v[at] = x;
    }
    int64_t last = 0;
    for (int64_t i = 1; i < kept; i++) {
        if (v[i].start <= v[last].end) {
            v[last].end = v[i].end > v[last].end ? v[i].end : v[last].end;
        } else {
            v[++last] = v[i];
        }
    }
    return last + 1;
}

/* Long columns [column, column + columns), a piece for each stripe; all share one list of intervals. */
static fm_status append_long_columns(fm_mask_writer *w, fm_long_column equal, const fm_interval *v) {
    FM_TRY(
        fm_grow("long columns", w->long_used + equal.count, sizeof *v, (void **)&w->long_intervals, &w->long_intervals_capacity));
    memcpy(w->long_intervals + w->long_used, v, (size_t)equal.count * sizeof *v);
    const int64_t end = equal.column + equal.columns;
    for (int64_t column = equal.column, next; column < end; column = next) {
        next = fm_smaller((column / FM_STRIPE + 1) * FM_STRIPE, end);
        FM_TRY(fm_grow("long columns", w->long_count + 1, sizeof *w->long_columns, (void **)&w->long_columns, &w->long_capacity));
        w->long_columns[w->long_count++] = (fm_long_column){equal.plane, column, next - column, w->long_used, equal.count};
    }
    w->long_used += equal.count;
    return FM_OK;
}

fm_status fm_mask_writer_columns(fm_mask_writer *w, int64_t b, int64_t h, int64_t column, int64_t columns,
                                 const fm_interval *intervals, int64_t count) {
    fm_interval local[2 * FM_MAX_INTERVALS], *v = local;
    if (count > 2 * FM_MAX_INTERVALS) {
        FM_TRY(fm_grow("column intervals", count, sizeof *v, (void **)&w->scratch, &w->scratch_capacity));
        v = w->scratch;
    }
    if (count > 0) {
        memcpy(v, intervals, (size_t)count * sizeof *v);
    }
    const int64_t kept = normalise(v, count, (int32_t)w->shape.rows), plane = b * w->shape.heads + h;
    if (kept > FM_MAX_INTERVALS) {
        return append_long_columns(w, (fm_long_column){plane, column, columns, 0, kept}, v);
    }
    FM_CHECK(kept <= w->room, FM_ERROR_INTERNAL, "column %lld has %lld intervals, room for %d", (long long)column,
             (long long)kept, w->room);
    for (int32_t m = 0; m < kept; m++) {
        fm_interval *bounds = bounds_of(w, plane, column, m);
        for (int64_t j = 0; j < columns; j++) {
            bounds[j] = v[m];
        }
    }
    return FM_OK;
}

fm_status fm_mask_writer_column(fm_mask_writer *w, int64_t b, int64_t h, int64_t column, const fm_interval *intervals,
                                int64_t count) {
    return fm_mask_writer_columns(w, b, h, column, 1, intervals, count);
}

fm_status fm_mask_writer_interval(fm_mask_writer *w, int64_t b, int64_t h, int64_t column, int64_t start, int64_t end) {
    const int64_t first = start < 0 ? 0 : start, last = end > w->shape.rows ? w->shape.rows : end;
    if (first < last) {
        FM_CHECK(w->room > 0, FM_ERROR_INTERNAL, "column %lld has an interval, room for none", (long long)column);
        *bounds_of(w, b * w->shape.heads + h, column, 0) = (fm_interval){(int32_t)first, (int32_t)last};
    }
    return FM_OK;
}

/* A stripe whose columns fit: a change from one row to the next starts or ends an interval. */
static fm_status write_stripe_intervals(fm_mask_writer *w, int64_t plane, int64_t stripe, const fm_stripe_blocks *s) {
    int32_t start[FM_STRIPE], count[FM_STRIPE] = {0};
    uint64_t before[2] = {0, 0};
    for (int64_t row = 0; row <= s->rows; row++) {
        uint64_t now[2] = {0, 0};
        if (row < s->rows) {
            fm_stripe_row(s, row, now);
        }
        for (int64_t word = 0; word < 2; word++) {
            for (uint64_t changed = now[word] ^ before[word]; changed != 0; changed &= changed - 1) {
                const int64_t c = 64 * word + __builtin_ctzll(changed);
                if (now[word] & changed & -changed) {
                    start[c] = (int32_t)row;
                    continue;
                }
                FM_CHECK(count[c] < w->room, FM_ERROR_INTERNAL, "column %lld has too many intervals, room for %d",
                         (long long)(stripe * FM_STRIPE + c), w->room);
                *bounds_of(w, plane, stripe * FM_STRIPE + c, count[c]++) = (fm_interval){start[c], (int32_t)row};
            }
            before[word] = now[word];
        }
        if (row < s->rows && fm_stripe_kind(s, row / FM_STRIPE) != FM_BLOCK_MIXED) {
            row += fm_stripe_block_rows(s, row / FM_STRIPE) - 1; /* all rows of the block are alike */
        }
    }
    return FM_OK;
}

fm_status fm_mask_writer_blocks(fm_mask_writer *w, int64_t b, int64_t h, int64_t stripe, const fm_stripe_blocks *s) {
    const int64_t plane = b * w->shape.heads + h;
    return fm_stripe_needs_bitmap(s) ? fm_fallback_add(&w->fallback, plane, stripe, s)
                                     : write_stripe_intervals(w, plane, stripe, s);
}

fm_status fm_mask_writer_stripe(fm_mask_writer *w, int64_t b, int64_t h, int64_t stripe, const uint64_t *bits) {
    const fm_stripe_blocks all_mixed = {
        .rows = w->shape.rows, .keys = fm_stripe_keys(w->shape.columns, stripe), .words = (uint64_t *)bits /* only read */};
    return fm_mask_writer_blocks(w, b, h, stripe, &all_mixed);
}

static int by_place(const void *a, const void *b) {
    const fm_long_column *x = a, *y = b;
    if (x->plane != y->plane) {
        return x->plane < y->plane ? -1 : 1;
    }
    return x->column < y->column ? -1 : x->column > y->column;
}

/* Takes one stripe's columns out of bounds and long_columns[first .. end). */
static void move_to_blocks(fm_mask_writer *w, int64_t plane, int64_t stripe, int64_t first, int64_t end) {
    const int64_t column0 = stripe * FM_STRIPE, keys = fm_stripe_keys(w->shape.columns, stripe);
    const fm_interval empty = {(int32_t)w->shape.rows, (int32_t)w->shape.rows};
    fm_stripe_begin(&w->blocks, keys);
    for (int32_t m = 0; m < w->room; m++) {
        fm_interval *v = bounds_of(w, plane, column0, m);
        for (int64_t c = 0; c < keys; c++) {
            if (v[c].start < v[c].end) {
                fm_stripe_add(&w->blocks, c, 1, v[c]);
            }
            v[c] = empty;
        }
    }
    for (int64_t i = first; i < end; i++) {
        const fm_long_column *l = &w->long_columns[i];
        for (int64_t k = 0; k < l->count; k++) {
            fm_stripe_add(&w->blocks, l->column - column0, l->columns, w->long_intervals[l->first + k]);
        }
    }
    fm_stripe_end(&w->blocks);
}

fm_status fm_mask_writer_flush(fm_mask_writer *w) {
    if (w->long_count == 0) {
        return FM_OK;
    }
    if (w->blocks.kinds == NULL) {
        FM_TRY(fm_stripe_blocks_open(&w->blocks, w->shape.rows));
    }
    qsort(w->long_columns, (size_t)w->long_count, sizeof *w->long_columns, by_place);
    for (int64_t i = 0, end; i < w->long_count; i = end) {
        const int64_t plane = w->long_columns[i].plane, stripe = w->long_columns[i].column / FM_STRIPE;
        end = i + 1;
        while (end < w->long_count && w->long_columns[end].plane == plane && w->long_columns[end].column / FM_STRIPE == stripe) {
            end++;
        }
        move_to_blocks(w, plane, stripe, i, end);
        FM_TRY(fm_fallback_add(&w->fallback, plane, stripe, &w->blocks));
    }
    w->long_count = 0;
    w->long_used = 0;
    return FM_OK;
}

/* True if some column of this head has an interval m. */
static bool has_interval(const fm_mask_writer *w, int64_t plane, int32_t m) {
    const fm_interval *v = bounds_of(w, plane, 0, m);
    int64_t j = 0;
    while (j < w->shape.columns && v[j].start >= w->shape.rows) {
        j++;
    }
    return j < w->shape.columns;
}

/* Keeps only as many intervals as the widest column uses. */
static void trim_room(fm_mask_writer *w) {
    const int64_t planes = w->shape.batch * w->shape.heads, columns = w->shape.columns;
    int32_t used = 0;
    for (int64_t p = 0; p < planes && used < w->room; p++) {
        int32_t most = w->room;
        while (most > used && !has_interval(w, p, most - 1)) {
            most--;
        }
        used = most;
    }
    if (used == w->room) {
        return;
    }
    for (int64_t p = 0; used > 0 && p < planes; p++) {
        memmove(w->bounds + p * used * columns, w->bounds + p * w->room * columns, (size_t)(used * columns) * sizeof *w->bounds);
    }
    const size_t bytes = (size_t)(planes * used * columns) * sizeof *w->bounds;
    fm_interval *smaller = realloc(w->bounds, bytes > 0 ? bytes : 1);
    w->bounds = smaller != NULL ? smaller : w->bounds;
    w->room = used;
}

/* Four chains side by side: one alone waits for its own multiplications, 2 of the 6 ms that a mask of a million keys takes. */
typedef struct hash_chains {
    uint64_t h[4];
} hash_chains;
static const hash_chains no_values = {{0, 1, 2, 3}};

static uint64_t join_chains(const hash_chains *c) {
    return fm_hash_step(fm_hash_step(c->h[0], c->h[1]), fm_hash_step(c->h[2], c->h[3]));
}

static uint64_t hash_bounds(const fm_interval *v, int64_t count) {
    hash_chains c = no_values;
    for (int64_t i = 0; i < count; i++) {
        c.h[i % 4] = fm_hash_step(c.h[i % 4], (uint64_t)(uint32_t)v[i].start << 32 | (uint32_t)v[i].end);
    }
    return join_chains(&c);
}

static uint64_t hash_blocks(const uint64_t *words, int64_t count) {
    hash_chains c = no_values;
    for (int64_t i = 0; i < count; i++) {
        c.h[i % 4] = fm_hash_step(c.h[i % 4], words[i]);
    }
    return join_chains(&c);
}

static uint64_t hash_view(const fm_mask_view *v) {
    const int64_t planes = v->shape.batch * v->shape.heads;
    uint64_t hash = 0;
    const int64_t extents[] = {v->shape.batch, v->shape.heads, v->shape.rows, v->shape.columns, v->intervals};
    for (int i = 0; i < 5; i++) {
        hash = fm_hash_step(hash, (uint64_t)extents[i]);
    }
    hash = fm_hash_step(hash, hash_bounds(v->bounds, planes * v->intervals * v->shape.columns));
    if (v->stripe_slot == NULL) {
        return hash;
    }
    for (int64_t i = 0; i < planes * v->stripes; i++) {
        hash = fm_hash_step(hash, (uint64_t)(uint32_t)v->stripe_slot[i]);
    }
    for (int64_t i = 0; i < v->slots * v->row_blocks; i++) {
        hash = fm_hash_step(hash, (uint64_t)(uint32_t)v->block_index[i]);
    }
    return fm_hash_step(hash, hash_blocks(v->blocks, v->block_count * FM_BLOCK_WORDS));
}

/* Moves the writer's arrays into the mask. */
static void take_arrays(fm_mask_writer *w, const int32_t *stripe_slot, fm_mask *mask) {
    fm_fallback *f = &w->fallback;
    mask->view = (fm_mask_view){.shape = w->shape,
                                .intervals = w->room,
                                .bounds = w->bounds,
                                .stripes = fm_ceil_divide(w->shape.columns, FM_STRIPE),
                                .row_blocks = fm_ceil_divide(w->shape.rows, FM_STRIPE),
                                .stripe_slot = stripe_slot,
                                .block_index = f->block_index,
                                .blocks = f->blocks,
                                .slots = f->slots,
                                .block_count = f->block_count};
    w->bounds = NULL;
    f->block_index = NULL;
    f->blocks = NULL;
}

fm_status fm_mask_writer_finish(fm_mask_writer *w, fm_mask **out) {
    fm_mask *mask = NULL;
    int32_t *stripe_slot = NULL;
    fm_status status;
    FM_TRY_DONE(fm_allocate("mask", 1, sizeof *mask, (void **)&mask));
    FM_TRY_DONE(fm_mask_writer_flush(w));
    if (w->fallback.slots > 0) {
        FM_TRY_DONE(fm_fallback_finish(&w->fallback, &stripe_slot));
    }
    trim_room(w);
    mask->visible_pairs = w->fallback.visible_pairs;
    const int64_t bounds = w->shape.batch * w->shape.heads * w->room * w->shape.columns;
    for (int64_t i = 0; i < bounds; i++) {
        mask->visible_pairs += w->bounds[i].end - w->bounds[i].start;
    }
    take_arrays(w, stripe_slot, mask);
    mask->hash = hash_view(&mask->view);
    atomic_init(&mask->references, 1);
    *out = mask;
    mask = NULL;
done:
    free(mask);
    return status;
}

void fm_mask_writer_close(fm_mask_writer *w) {
    free(w->bounds);
    free(w->long_columns);
    free(w->long_intervals);
    free(w->scratch);
    fm_stripe_blocks_close(&w->blocks);
    fm_fallback_free(&w->fallback);
    *w = (fm_mask_writer){0};
}

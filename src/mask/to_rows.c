/* Visible key ranges of each row, by a sweep across the columns: the rows where a column differs from the one before open or
 * close a range there. Time and writes follow the ranges that result. */
#include "core/memory.h"
#include "mask/convert.h"
#include "mask/interval_difference.h"

#include <stdlib.h>
#include <string.h>

typedef struct row_target {
    fm_mask_shape shape;
    int32_t ranges;
    int32_t *start, *end; /* of the current plane, [ranges, rows]; NULL while only counting */
    int32_t *since;       /* [rows] column at which the open range of a row starts; -1: none is open */
    int64_t *count;       /* [rows] ranges of a row that are closed */
    int64_t end_row;      /* while counting: rows from here on do not matter, this one has too many ranges */
    fm_interval *before;  /* rows that see the column before */
    fm_interval *changed; /* rows that see one of two neighbouring columns */
    int64_t before_count, before_capacity, changed_capacity;
    fm_stripe_columns scratch;
} row_target;

static void flip_row(row_target *t, int64_t row, int64_t column) {
    if (t->since[row] < 0) {
        t->since[row] = (int32_t)column;
        return;
    }
    if (t->start != NULL) {
        t->start[t->count[row] * t->shape.rows + row] = t->since[row];
        t->end[t->count[row] * t->shape.rows + row] = (int32_t)column;
    }
    t->since[row] = -1;
    if (++t->count[row] > t->ranges) {
        t->end_row = row;
    }
}

static fm_status visit_column(void *context, const fm_column *column) {
    row_target *t = context;
    if (t->end_row == 0) {
        return FM_OK;
    }
    const int64_t most = t->before_count + column->count;
    FM_TRY(fm_grow("row ranges", most, sizeof *t->changed, (void **)&t->changed, &t->changed_capacity));
    const int64_t changes = fm_interval_difference(t->before, t->before_count, column->v, column->count, t->changed);
    for (int64_t i = 0; i < changes; i++) {
        for (int64_t row = t->changed[i].start; row < t->changed[i].end && row < t->end_row; row++) {
            flip_row(t, row, column->index);
        }
    }
    FM_TRY(fm_grow("row ranges", column->count, sizeof *t->before, (void **)&t->before, &t->before_capacity));
    for (int64_t i = 0; i < column->count; i++) {
        t->before[i] = column->v[i];
    }
    t->before_count = column->count;
    return FM_OK;
}

/* One plane. What is open at the last column ends past it, and unused ranges are [Sk, Sk). */
static fm_status sweep_plane(row_target *t, const fm_mask_view *view, int64_t plane) {
    const int64_t rows = t->shape.rows;
    t->before_count = 0;
    t->end_row = rows;
    memset(t->since, 0xff, (size_t)rows * sizeof *t->since);
    memset(t->count, 0, (size_t)rows * sizeof *t->count);
    FM_TRY(fm_columns_visit(view, plane / t->shape.heads, plane % t->shape.heads, &t->scratch, visit_column, t));
    for (int64_t row = 0; row < t->end_row; row++) {
        if (t->since[row] >= 0) {
            flip_row(t, row, t->shape.columns);
        }
        for (int64_t k = t->count[row]; t->start != NULL && k < t->ranges; k++) {
            t->start[k * rows + row] = t->end[k * rows + row] = (int32_t)t->shape.columns;
        }
    }
    return FM_OK;
}

fm_status fm_mask_to_row_ranges(const fm_mask *mask, int32_t ranges, int32_t *start, int32_t *end, int64_t capacity) {
    int64_t count;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_CHECK(ranges >= 0, FM_ERROR_ARGUMENT, "ranges: is %d, needs 0 or more", ranges);
    row_target t = {.shape = mask->view.shape, .ranges = ranges};
    const int64_t rows = t.shape.rows, planes = t.shape.batch * t.shape.heads;
    FM_TRY(fm_array_count("start", t.shape, ranges, rows, &count));
    FM_TRY(fm_array_check_output("start", start, capacity, count));
    FM_TRY(fm_array_check_output("end", end, capacity, count));
    FM_TRY_DONE(fm_allocate("row ranges", rows, sizeof *t.since, (void **)&t.since));
    FM_TRY_DONE(fm_allocate("row ranges", rows, sizeof *t.count, (void **)&t.count));
    for (int64_t plane = 0; plane < planes; plane++) {
        FM_TRY_DONE(sweep_plane(&t, &mask->view, plane));
        if (t.end_row < rows) {
            status =
                fm_fail(FM_ERROR_CANNOT_EXPRESS, "row %lld (batch item %lld, head %lld) has more than %d visible key ranges",
                        (long long)t.end_row, (long long)(plane / t.shape.heads), (long long)(plane % t.shape.heads), ranges);
            goto done;
        }
    }
    for (int64_t plane = 0; count > 0 && plane < planes; plane++) {
        t.start = start + plane * ranges * rows;
        t.end = end + plane * ranges * rows;
        FM_TRY_DONE(sweep_plane(&t, &mask->view, plane));
    }
done:
    free(t.since);
    free(t.count);
    free(t.before);
    free(t.changed);
    fm_stripe_columns_free(&t.scratch);
    return status;
}

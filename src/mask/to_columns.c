/* Masks into forms that describe one key column at a time. Each conversion visits the columns twice: to find the first that
 * does not fit, then to write. */
#include "mask/convert.h"

typedef struct column_target {
    fm_mask_shape shape;
    int32_t width; /* vectors, or intervals a column */
    bool causal;
    int32_t *v, *fms, *fme; /* whichever the form has */
    fm_interval *intervals;
} column_target;

static fm_status check_then_store(const fm_mask_view *view, fm_column_visitor check, fm_column_visitor store,
                                  column_target *target) {
    const int64_t heads = view->shape.heads, planes = view->shape.batch * heads;
    fm_stripe_columns scratch = {0};
    fm_status status = FM_OK;
    for (int64_t i = 0; i < 2 * planes; i++) {
        const int64_t plane = i % planes;
        FM_TRY_DONE(fm_columns_visit(view, plane / heads, plane % heads, &scratch, i < planes ? check : store, target));
    }
done:
    fm_stripe_columns_free(&scratch);
    return status;
}

/* Rows that the column hides, from row `first` on: up to 3 intervals are listed. One that begins at `first` is listed from
 * row 0: rows above the diagonal are hidden anyway, and the wider interval lets a min/max tile rule skip more. */
static int32_t hidden_rows(const fm_column *column, int32_t first, int32_t rows, fm_interval hidden[3]) {
    int32_t count = 0, row = first;
    for (int64_t i = 0; i < column->count && count < 3; i++) {
        if (column->v[i].start > row) {
            hidden[count++] = (fm_interval){row == first ? 0 : row, column->v[i].start};
        }
        row = column->v[i].end;
    }
    if (row < rows && count < 3) {
        hidden[count++] = (fm_interval){row == first ? 0 : row, rows};
    }
    return count;
}

/* One column as vectors; false if they cannot hold it. An interval that masks nothing is (Sq, Sq), or (0, 0) for the upper
 * one; a column that nobody sees is masked from row 0 to Sq. */
static bool encode_startend(const column_target *t, const fm_column *column, int32_t out[4]) {
    const int32_t rows = (int32_t)t->shape.rows;
    fm_interval hidden[3];
    const int32_t count = hidden_rows(column, t->causal ? fm_diagonal_row(t->shape, column->index) : 0, rows, hidden);
    if (t->width == 1) {
        out[0] = count == 0 ? rows : hidden[0].start;
        return count == 0 || (count == 1 && hidden[0].end == rows);
    }
    if (t->width == 2 && !t->causal) {
        out[0] = column->count == 0 ? 0 : column->v[0].end;
        out[1] = column->count == 0 ? rows : column->v[0].start;
        return column->count <= 1;
    }
    fm_interval lower = {rows, rows}, upper = {0, 0};
    const bool has_upper = t->width == 4 && count > 0 && (count == 2 || (hidden[0].start == 0 && hidden[0].end < rows));
    if (has_upper) {
        upper = hidden[0];
    }
    if (count > (has_upper ? 1 : 0)) {
        lower = hidden[has_upper ? 1 : 0];
    }
    out[0] = lower.start;
    out[1] = lower.end;
    out[2] = upper.start;
    out[3] = upper.end;
    return count <= t->width / 2;
}

static fm_status check_startend(void *context, const fm_column *column) {
    const column_target *t = context;
    int32_t encoded[4];
    FM_CHECK(!t->causal || column->count == 0 || column->v[0].start >= fm_diagonal_row(t->shape, column->index),
             FM_ERROR_CANNOT_EXPRESS, "column %lld (batch item %lld, head %lld) is visible above the diagonal, in row %d",
             (long long)column->index, (long long)column->batch, (long long)column->head, column->v[0].start);
    FM_CHECK(encode_startend(t, column, encoded), FM_ERROR_CANNOT_EXPRESS,
             "column %lld (batch item %lld, head %lld) has %lld visible intervals that %d %s vectors cannot hold",
             (long long)column->index, (long long)column->batch, (long long)column->head, (long long)column->count, t->width,
             t->causal ? "causal" : "non-causal");
    return FM_OK;
}

static fm_status store_startend(void *context, const fm_column *column) {
    const column_target *t = context;
    int32_t encoded[4];
    encode_startend(t, column, encoded);
    const int64_t plane = column->batch * t->shape.heads + column->head;
    for (int32_t i = 0; i < t->width; i++) {
        t->v[(plane * t->shape.columns + column->index) * t->width + i] = encoded[i];
    }
    return FM_OK;
}

fm_status fm_mask_to_startend_row_indices(const fm_mask *mask, int32_t vectors, bool causal, int32_t *v, int64_t capacity) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_TRY(fm_startend_check(vectors, causal));
    column_target target = {.shape = mask->view.shape, .width = vectors, .causal = causal, .v = v};
    FM_TRY(fm_array_count("v", target.shape, target.shape.columns, vectors, &count));
    FM_TRY(fm_array_check_output("v", v, capacity, count));
    return check_then_store(&mask->view, check_startend, store_startend, &target);
}

static fm_status check_count(void *context, const fm_column *column) {
    const column_target *t = context;
    FM_CHECK(column->count <= t->width, FM_ERROR_CANNOT_EXPRESS,
             "column %lld (batch item %lld, head %lld) has %lld visible intervals, more than %d", (long long)column->index,
             (long long)column->batch, (long long)column->head, (long long)column->count, t->width);
    return FM_OK;
}

/* Unused intervals are [Sq, Sq), which is fms = Sq, fme = Sq - 1. */
static fm_status store_intervals(void *context, const fm_column *column) {
    const column_target *t = context;
    const int64_t plane = column->batch * t->shape.heads + column->head;
    const int32_t rows = (int32_t)t->shape.rows;
    for (int32_t m = 0; m < t->width; m++) {
        const int64_t at = (plane * t->width + m) * t->shape.columns + column->index;
        const fm_interval v = m < column->count ? column->v[m] : (fm_interval){rows, rows};
        if (t->intervals != NULL) {
            t->intervals[at] = v;
        } else {
            t->fms[at] = v.start;
            t->fme[at] = v.end - 1;
        }
    }
    return FM_OK;
}

fm_status fm_mask_to_fms_fme(const fm_mask *mask, int32_t intervals, int32_t *fms, int32_t *fme, int64_t capacity) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_CHECK(intervals >= 1 && intervals <= FM_MAX_INTERVALS, FM_ERROR_ARGUMENT, "intervals: is %d, needs 1 .. %d", intervals,
             FM_MAX_INTERVALS);
    column_target target = {.shape = mask->view.shape, .width = intervals, .fms = fms, .fme = fme};
    FM_TRY(fm_array_count("fms", target.shape, intervals, target.shape.columns, &count));
    FM_TRY(fm_array_check_output("fms", fms, capacity, count));
    FM_TRY(fm_array_check_output("fme", fme, capacity, count));
    return check_then_store(&mask->view, check_count, store_intervals, &target);
}

fm_status fm_mask_to_intervals(const fm_mask *mask, int32_t intervals, fm_interval *v, int64_t capacity) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_CHECK(intervals >= 0 && intervals <= FM_MAX_INTERVALS, FM_ERROR_ARGUMENT, "intervals: is %d, needs 0 .. %d", intervals,
             FM_MAX_INTERVALS);
    column_target target = {.shape = mask->view.shape, .width = intervals, .intervals = v};
    FM_TRY(fm_array_count("v", target.shape, intervals, target.shape.columns, &count));
    FM_TRY(fm_array_check_output("v", v, capacity, count));
    return check_then_store(&mask->view, check_count, store_intervals, &target);
}

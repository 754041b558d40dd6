/* Masks from forms that describe one key column at a time. */
#include "mask/convert.h"
#include "mask/writer.h"

static int32_t clamp_row(int64_t row, int32_t rows) { return (int32_t)(row < 0 ? 0 : row > rows ? rows : row); }

/* The rows that one column of vectors masks: up to 3 intervals inside [0, rows), some perhaps empty. */
static int32_t masked_rows(const int32_t *v, int32_t vectors, bool causal, int32_t diagonal, int32_t rows,
                           fm_interval masked[3]) {
    masked[0] = (fm_interval){0, causal ? diagonal : 0};
    if (vectors == 1) {
        masked[1] = (fm_interval){clamp_row(v[0], rows), rows};
        return 2;
    }
    if (vectors == 2 && !causal) {
        masked[1] = (fm_interval){clamp_row(v[0], rows), rows};
        masked[2] = (fm_interval){0, clamp_row(v[1], rows)};
        return 3;
    }
    for (int64_t i = 0; i < vectors / 2; i++) {
        masked[1 + i] = (fm_interval){clamp_row(v[2 * i], rows), clamp_row(v[2 * i + 1], rows)};
    }
    return 1 + vectors / 2;
}

/* The rows that no masked interval covers, ascending: at most one more than there are masked ones. Sorts `masked`. */
static int32_t visible_rows(fm_interval *masked, int32_t count, int32_t rows, fm_interval *visible) {
    for (int32_t i = 1; i < count; i++) {
        const fm_interval x = masked[i];
        int32_t at = i;
        for (; at > 0 && masked[at - 1].start > x.start; at--) {
            masked[at] = masked[at - 1];
        }
        masked[at] = x;
    }
    int32_t kept = 0, row = 0;
    for (int32_t i = 0; i < count; i++) {
        if (masked[i].start >= masked[i].end) {
            continue;
        }
        if (masked[i].start > row) {
            visible[kept++] = (fm_interval){row, masked[i].start};
        }
        row = masked[i].end > row ? masked[i].end : row;
    }
    if (row < rows) {
        visible[kept++] = (fm_interval){row, rows};
    }
    return kept;
}

/* The caller's arrays, and how many entries each column has. */
typedef struct column_source {
    fm_mask_shape shape;
    int32_t width; /* vectors, or intervals a column */
    bool causal;
    const int32_t *v, *fms, *fme; /* whichever the form has */
    const fm_interval *intervals;
} column_source;

/* Visible rows of column j of one (batch item, head), in any order; returns how many intervals. */
typedef int32_t column_reader(const column_source *source, int64_t plane, int64_t j, fm_interval visible[FM_MAX_INTERVALS]);

static fm_status write_columns(const column_source *source, column_reader *read, int64_t max_intervals, fm_mask **out) {
    const fm_mask_shape shape = source->shape;
    fm_mask_writer writer;
    fm_status status;
    FM_TRY(fm_mask_writer_open(&writer, shape, max_intervals, NULL));
    /* Of no intervals nothing is read: the extents may be larger than any memory. */
    for (int64_t plane = 0; max_intervals > 0 && plane < shape.batch * shape.heads; plane++) {
        for (int64_t j = 0; j < shape.columns; j++) {
            fm_interval visible[FM_MAX_INTERVALS];
            const int32_t count = read(source, plane, j, visible);
            FM_TRY_DONE(fm_mask_writer_column(&writer, plane / shape.heads, plane % shape.heads, j, visible, count));
        }
    }
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    fm_mask_writer_close(&writer);
    return status;
}

static int32_t read_startend(const column_source *s, int64_t plane, int64_t j, fm_interval visible[FM_MAX_INTERVALS]) {
    fm_interval masked[3];
    const int32_t *column = s->v + (plane * s->shape.columns + j) * s->width, rows = (int32_t)s->shape.rows;
    const int32_t hidden = masked_rows(column, s->width, s->causal, fm_diagonal_row(s->shape, j), rows, masked);
    return visible_rows(masked, hidden, rows, visible);
}

fm_status fm_mask_from_startend_row_indices(fm_mask_shape shape, int32_t vectors, bool causal, const int32_t *v, fm_mask **out) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_startend_check(vectors, causal));
    FM_TRY(fm_array_count("v", shape, shape.columns, vectors, &count));
    FM_TRY(fm_array_check_input("v", v, count));
    const column_source source = {.shape = shape, .width = vectors, .causal = causal, .v = v};
    return write_columns(&source, read_startend, causal ? vectors : vectors == 2 ? 1 : 3, out);
}

static int32_t read_fms_fme(const column_source *s, int64_t plane, int64_t j, fm_interval visible[FM_MAX_INTERVALS]) {
    for (int32_t m = 0; m < s->width; m++) {
        const int64_t at = (plane * s->width + m) * s->shape.columns + j;
        visible[m] = (fm_interval){s->fms[at], (int32_t)fm_clamp(s->fme[at], -1, s->shape.rows - 1) + 1};
    }
    return s->width;
}

fm_status fm_mask_from_fms_fme(fm_mask_shape shape, int32_t intervals, const int32_t *fms, const int32_t *fme, fm_mask **out) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_CHECK(intervals >= 1 && intervals <= FM_MAX_INTERVALS, FM_ERROR_ARGUMENT, "intervals: is %d, needs 1 .. %d", intervals,
             FM_MAX_INTERVALS);
    FM_TRY(fm_array_count("fms", shape, intervals, shape.columns, &count));
    FM_TRY(fm_array_check_input("fms", fms, count));
    FM_TRY(fm_array_check_input("fme", fme, count));
    const column_source source = {.shape = shape, .width = intervals, .fms = fms, .fme = fme};
    return write_columns(&source, read_fms_fme, intervals, out);
}

static int32_t read_intervals(const column_source *s, int64_t plane, int64_t j, fm_interval visible[FM_MAX_INTERVALS]) {
    for (int32_t m = 0; m < s->width; m++) {
        visible[m] = s->intervals[(plane * s->width + m) * s->shape.columns + j];
    }
    return s->width;
}

fm_status fm_mask_from_intervals(fm_mask_shape shape, int32_t intervals, const fm_interval *v, fm_mask **out) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_CHECK(intervals >= 0 && intervals <= FM_MAX_INTERVALS, FM_ERROR_ARGUMENT, "intervals: is %d, needs 0 .. %d", intervals,
             FM_MAX_INTERVALS);
    FM_TRY(fm_array_count("v", shape, intervals, shape.columns, &count));
    FM_TRY(fm_array_check_input("v", v, count));
    for (int64_t i = 0; i < count; i++) {
        FM_CHECK(v[i].start >= 0 && v[i].start <= v[i].end && v[i].end <= shape.rows, FM_ERROR_ARGUMENT,
                 "v: interval %lld of column %lld (batch item %lld, head %lld) is [%d, %d), needs 0 <= start <= end <= %lld",
                 (long long)(i / shape.columns % intervals), (long long)(i % shape.columns),
                 (long long)(i / shape.columns / intervals / shape.heads),
                 (long long)(i / shape.columns / intervals % shape.heads), v[i].start, v[i].end, (long long)shape.rows);
    }
    const column_source source = {.shape = shape, .width = intervals, .intervals = v};
    return write_columns(&source, read_intervals, intervals, out);
}

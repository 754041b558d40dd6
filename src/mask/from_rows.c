/* Masks from visible key ranges of each row. A sweep down the rows opens and closes the intervals of the columns where a row
 * differs from the one above: time follows the ranges given and the intervals that result. Stripes that turn out to need a
 * bitmap leave the sweep and are drawn from the rows again, so memory never follows the number of their intervals. */
#include "core/memory.h"
#include "mask/convert.h"
#include "mask/interval_difference.h"
#include "mask/stripe.h"
#include "mask/writer.h"

#include <stdlib.h>
#include <string.h>

/* Most bitmap stripes, and most words, that are drawn in one pass over the rows: 128 MiB, which is 8 stripes at a million rows
 * and 64 up to 128K. */
enum { STRIPES_TOGETHER = 64, WORDS_TOGETHER = 1 << 24 };

typedef struct row_reader {
    fm_mask_shape shape;
    int64_t ranges;
    const int32_t *start, *end;
    fm_interval *above, *row; /* [ranges] keys of the row above and of this one, ascending and separated */
    fm_interval *changed;     /* [2 * ranges] */
    int32_t *since;           /* [columns] row from which a column is visible; -1: it is hidden */
    fm_interval *closed;      /* [columns, FM_MAX_INTERVALS] its intervals that have ended, `count` of them */
    int8_t *count;            /* [columns] */
    int8_t *is_bitmap;        /* [stripes] one of its columns has more */
    uint64_t *bits;           /* [stripes_together, fm_stripe_words] */
} row_reader;

static int by_start(const void *a, const void *b) {
    const fm_interval *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* Keys of one row, sorted and merged. The ranges have been checked. */
static int64_t read_row(const row_reader *r, int64_t plane, int64_t row, fm_interval *keys) {
    int64_t count = 0;
    bool ascending = true;
    for (int64_t k = 0; k < r->ranges; k++) {
        const int64_t at = (plane * r->ranges + k) * r->shape.rows + row;
        if (r->start[at] < r->end[at]) {
            ascending = ascending && (count == 0 || keys[count - 1].start <= r->start[at]);
            keys[count++] = (fm_interval){r->start[at], r->end[at]};
        }
    }
    if (!ascending) {
        qsort(keys, (size_t)count, sizeof *keys, by_start);
    }
    int64_t kept = 0;
    for (int64_t k = 0; k < count; k++) {
        if (kept > 0 && keys[k].start <= keys[kept - 1].end) {
            keys[kept - 1].end = keys[k].end > keys[kept - 1].end ? keys[k].end : keys[kept - 1].end;
        } else {
            keys[kept++] = keys[k];
        }
    }
    return kept;
}

static void flip_column(row_reader *r, int64_t column, int64_t row) {
    const int32_t since = r->since[column];
    if (since < 0) {
        r->since[column] = (int32_t)row;
        return;
    }
    r->since[column] = -1;
    if (r->count[column] == FM_MAX_INTERVALS) {
        r->is_bitmap[column / FM_STRIPE] = 1;
        return;
    }
    r->closed[column * FM_MAX_INTERVALS + r->count[column]++] = (fm_interval){since, (int32_t)row};
}

/* The columns of [v.start, v.end) change at this row; bitmap stripes are passed over whole. */
static void flip_columns(row_reader *r, fm_interval v, int64_t row) {
    for (int64_t j = v.start; j < v.end;) {
        const int64_t end = fm_smaller(v.end, (j / FM_STRIPE + 1) * FM_STRIPE);
        for (; j < end && !r->is_bitmap[j / FM_STRIPE]; j++) {
            flip_column(r, j, row);
        }
        j = end;
    }
}

static void sweep_plane(row_reader *r, int64_t plane) {
    int64_t above_count = 0;
    memset(r->since, 0xff, (size_t)r->shape.columns * sizeof *r->since);
    memset(r->count, 0, (size_t)r->shape.columns * sizeof *r->count);
    memset(r->is_bitmap, 0, (size_t)fm_ceil_divide(r->shape.columns, FM_STRIPE) * sizeof *r->is_bitmap);
    for (int64_t row = 0; row <= r->shape.rows; row++) { /* after the last row everything closes */
        const int64_t count = row < r->shape.rows ? read_row(r, plane, row, r->row) : 0;
        const int64_t changes = fm_interval_difference(r->above, above_count, r->row, count, r->changed);
        for (int64_t i = 0; i < changes; i++) {
            flip_columns(r, r->changed[i], row);
        }
        fm_interval *spare = r->above;
        r->above = r->row;
        r->row = spare;
        above_count = count;
    }
}

/* Draws the keys of one row into stripes [stripe0, stripe0 + stripes), of which r->bits holds `words` each. */
static void draw_keys(row_reader *r, fm_interval keys, int64_t row, int64_t stripe0, int64_t stripes, int64_t words) {
    const int64_t first = keys.start > stripe0 * FM_STRIPE ? keys.start : stripe0 * FM_STRIPE;
    const int64_t last = fm_smaller(keys.end, (stripe0 + stripes) * FM_STRIPE);
    for (int64_t j = first, end; j < last; j = end) { /* the part of each 64-column word at once */
        end = fm_smaller((j / 64 + 1) * 64, last);
        const uint64_t part = fm_low_bits(end - j) << (j % 64);
        r->bits[(j / FM_STRIPE - stripe0) * words + 2 * row + j % FM_STRIPE / 64] |= part;
    }
}

static fm_status write_bitmaps(row_reader *r, fm_mask_writer *writer, int64_t plane, int64_t stripe0, int64_t stripes) {
    const int64_t words = fm_stripe_words(r->shape.rows);
    memset(r->bits, 0, (size_t)(stripes * words) * sizeof *r->bits);
    for (int64_t row = 0; row < r->shape.rows; row++) {
        const int64_t count = read_row(r, plane, row, r->row);
        for (int64_t k = 0; k < count; k++) {
            draw_keys(r, r->row[k], row, stripe0, stripes, words);
        }
    }
    for (int64_t s = 0; s < stripes; s++) {
        if (r->is_bitmap[stripe0 + s]) {
            FM_TRY(
                fm_mask_writer_stripe(writer, plane / r->shape.heads, plane % r->shape.heads, stripe0 + s, r->bits + s * words));
        }
    }
    return FM_OK;
}

static int64_t stripes_together(fm_mask_shape shape) {
    const int64_t stripes = fm_ceil_divide(shape.columns, FM_STRIPE);
    return fm_clamp(WORDS_TOGETHER / fm_stripe_words(shape.rows), 1, fm_smaller(stripes, STRIPES_TOGETHER));
}

static fm_status write_plane(row_reader *r, fm_mask_writer *writer, int64_t plane) {
    const int64_t stripes = fm_ceil_divide(r->shape.columns, FM_STRIPE), together = stripes_together(r->shape);
    sweep_plane(r, plane);
    for (int64_t j = 0; j < r->shape.columns; j++) {
        if (!r->is_bitmap[j / FM_STRIPE]) {
            FM_TRY(fm_mask_writer_column(writer, plane / r->shape.heads, plane % r->shape.heads, j,
                                         r->closed + j * FM_MAX_INTERVALS, r->count[j]));
        }
    }
    for (int64_t s = 0; s < stripes; s++) {
        if (!r->is_bitmap[s]) {
            continue;
        }
        if (r->bits == NULL) {
            FM_TRY(fm_allocate("row ranges", together * fm_stripe_words(r->shape.rows), sizeof *r->bits, (void **)&r->bits));
        }
        const int64_t count = fm_smaller(stripes - s, together);
        FM_TRY(write_bitmaps(r, writer, plane, s, count));
        s += count - 1;
    }
    return FM_OK;
}

static fm_status check_ranges(const row_reader *r, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        FM_CHECK(r->start[i] >= 0 && r->start[i] <= r->end[i] && r->end[i] <= r->shape.columns, FM_ERROR_ARGUMENT,
                 "start, end: range %lld of row %lld (batch item %lld, head %lld) is [%d, %d), needs 0 <= start <= end <= %lld",
                 (long long)(i / r->shape.rows % r->ranges), (long long)(i % r->shape.rows),
                 (long long)(i / r->shape.rows / r->ranges / r->shape.heads),
                 (long long)(i / r->shape.rows / r->ranges % r->shape.heads), r->start[i], r->end[i],
                 (long long)r->shape.columns);
    }
    return FM_OK;
}

static fm_status open_reader(row_reader *r) {
    const int64_t columns = r->shape.columns, stripes = fm_ceil_divide(columns, FM_STRIPE);
    FM_TRY(fm_allocate("row ranges", r->ranges, sizeof *r->row, (void **)&r->row));
    FM_TRY(fm_allocate("row ranges", r->ranges, sizeof *r->above, (void **)&r->above));
    FM_TRY(fm_allocate("row ranges", 2 * r->ranges, sizeof *r->changed, (void **)&r->changed));
    FM_TRY(fm_allocate("row ranges", columns, sizeof *r->since, (void **)&r->since));
    FM_TRY(fm_allocate("row ranges", columns * FM_MAX_INTERVALS, sizeof *r->closed, (void **)&r->closed));
    FM_TRY(fm_allocate("row ranges", columns, sizeof *r->count, (void **)&r->count));
    return fm_allocate("row ranges", stripes, sizeof *r->is_bitmap, (void **)&r->is_bitmap);
}

static void close_reader(row_reader *r) {
    free(r->row);
    free(r->above);
    free(r->changed);
    free(r->since);
    free(r->closed);
    free(r->count);
    free(r->is_bitmap);
    free(r->bits);
}

fm_status fm_mask_from_row_ranges(fm_mask_shape shape, int32_t ranges, const int32_t *start, const int32_t *end,
                                  const fm_mask_options *options, fm_mask **out) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_CHECK(ranges >= 0, FM_ERROR_ARGUMENT, "ranges: is %d, needs 0 or more", ranges);
    FM_TRY(fm_array_count("start", shape, ranges, shape.rows, &count));
    FM_TRY(fm_array_check_input("start", start, count));
    FM_TRY(fm_array_check_input("end", end, count));
    row_reader reader = {.shape = shape, .ranges = ranges, .start = start, .end = end};
    fm_mask_writer writer = {0};
    fm_status status;
    FM_TRY(check_ranges(&reader, count));
    FM_TRY_DONE(fm_mask_writer_open(&writer, shape, count > 0 ? FM_MAX_INTERVALS : 0, options));
    if (count > 0) {
        FM_TRY_DONE(open_reader(&reader));
    }
    for (int64_t plane = 0; count > 0 && plane < shape.batch * shape.heads; plane++) {
        FM_TRY_DONE(write_plane(&reader, &writer, plane));
    }
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    close_reader(&reader);
    fm_mask_writer_close(&writer);
    return status;
}

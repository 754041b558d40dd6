/* Masks moved, sliced, repeated and stacked: each plane (batch item, head) of the result is a displaced plane of some source. */
#include "mask/writer.h"

#include <string.h>

/* Pair (i, j) of the written plane is pair (i + row, j + column) of plane (b, h) of a mask, hidden where that is outside. */
typedef struct plane_source {
    const fm_mask_view *view;
    int64_t b, h, row, column;
} plane_source;

typedef struct plane_copier {
    fm_mask_writer writer;
    fm_stripe_blocks result;
    fm_stripe_blocks low, high; /* two neighbouring stripes of a source; open only if one has bitmaps */
} plane_copier;

/* Column `column` lies in this stripe, which is negative left of column 0. */
static int64_t stripe_of(int64_t column) { return column >= 0 ? column / FM_STRIPE : -fm_ceil_divide(-column, FM_STRIPE); }

static int64_t most_intervals(const fm_mask_view *v) { return v->stripe_slot != NULL ? FM_MAX_INTERVALS + 1 : v->intervals; }

/* Planes to copy: none of a mask without visible pairs, which takes no memory however large its extents are. */
static int64_t planes_to_copy(fm_mask_shape shape, int64_t most) { return most > 0 ? shape.batch * shape.heads : 0; }

static fm_status open_copier(plane_copier *c, fm_mask_shape shape, int64_t most, int64_t source_rows,
                             const fm_mask_options *options) {
    *c = (plane_copier){0};
    FM_TRY(fm_mask_writer_open(&c->writer, shape, most, options));
    if (most <= FM_MAX_INTERVALS) { /* no bitmaps */
        return FM_OK;
    }
    FM_TRY(fm_stripe_blocks_open(&c->result, shape.rows));
    FM_TRY(fm_stripe_blocks_open(&c->low, source_rows));
    return fm_stripe_blocks_open(&c->high, source_rows);
}

static void close_copier(plane_copier *c) {
    fm_mask_writer_close(&c->writer);
    fm_stripe_blocks_close(&c->result);
    fm_stripe_blocks_close(&c->low);
    fm_stripe_blocks_close(&c->high);
}

static fm_status copy_column(plane_copier *c, int64_t b, int64_t h, int64_t column, const plane_source *from) {
    const int64_t source = column + from->column, rows = c->writer.shape.rows;
    if (source < 0 || source >= from->view->shape.columns) {
        return FM_OK;
    }
    fm_interval v[FM_MAX_INTERVALS];
    const int32_t count = fm_mask_read_column(from->view, from->b, from->h, source, v);
    for (int32_t m = 0; m < count; m++) {
        v[m].start = (int32_t)fm_clamp(v[m].start - from->row, 0, rows);
        v[m].end = (int32_t)fm_clamp(v[m].end - from->row, 0, rows);
    }
    return fm_mask_writer_column(&c->writer, b, h, column, v, count);
}

/* The 128 bits that start at bit `offset` (0 .. 127) of low and high put together. */
static void shift_row(const uint64_t low[2], const uint64_t high[2], int64_t offset, uint64_t out[2]) {
    const uint64_t words[4] = {low[0], low[1], high[0], high[1]};
    const int64_t word = offset / 64, bit = offset % 64;
    for (int64_t i = 0; i < 2; i++) {
        out[i] = words[word + i] >> bit | (bit > 0 ? words[word + i + 1] << (64 - bit) : 0);
    }
}

/* The kind of all of a source's rows [row0, row1), FM_BLOCK_MIXED if they are not of one. Rows outside it see nothing. */
static int32_t kind_of_rows(const fm_stripe_blocks *s, int64_t row0, int64_t row1) {
    const int64_t first = fm_clamp(row0, 0, s->rows), end = fm_clamp(row1, 0, s->rows);
    if (first == end) {
        return FM_BLOCK_HIDDEN;
    }
    int32_t kind = first > row0 || end < row1 ? FM_BLOCK_HIDDEN : s->kinds[first / FM_STRIPE];
    for (int64_t block = first / FM_STRIPE; block * FM_STRIPE < end; block++) {
        kind = s->kinds[block] == kind ? kind : FM_BLOCK_MIXED;
    }
    return kind;
}

/* Block r of the result out of low and high, of which it takes the columns from offset on. */
static void displace_block(plane_copier *c, int64_t r, int64_t row_shift, int64_t offset) {
    fm_stripe_blocks *out = &c->result;
    const int64_t row0 = r * FM_STRIPE, row1 = row0 + fm_stripe_block_rows(out, r);
    const int32_t low = kind_of_rows(&c->low, row0 + row_shift, row1 + row_shift);
    const int32_t high = offset > 0 ? kind_of_rows(&c->high, row0 + row_shift, row1 + row_shift) : low;
    const bool all_keys = out->keys <= c->low.keys - offset + (offset > 0 ? c->high.keys : 0);
    out->kinds[r] = low == high && (low == FM_BLOCK_HIDDEN || all_keys) ? low : FM_BLOCK_MIXED;
    if (out->kinds[r] != FM_BLOCK_MIXED) {
        return;
    }
    memset(out->words + r * FM_BLOCK_WORDS, 0, FM_BLOCK_WORDS * sizeof *out->words);
    for (int64_t row = row0; row < row1; row++) {
        const int64_t source = row + row_shift;
        if (source >= 0 && source < c->low.rows) {
            uint64_t low_row[2], high_row[2], *words = out->words + 2 * row;
            fm_stripe_row(&c->low, source, low_row);
            fm_stripe_row(&c->high, source, high_row);
            shift_row(low_row, high_row, offset, words);
            words[0] &= fm_low_bits(out->keys);
            words[1] &= fm_low_bits(out->keys - 64);
        }
    }
}

static fm_status copy_blocks(plane_copier *c, int64_t b, int64_t h, int64_t stripe, const plane_source *from) {
    const int64_t column = stripe * FM_STRIPE + from->column, first = stripe_of(column), offset = column - first * FM_STRIPE;
    fm_mask_read_blocks(from->view, from->b, from->h, first, &c->low);
    fm_mask_read_blocks(from->view, from->b, from->h, offset > 0 ? first + 1 : -1, &c->high);
    fm_stripe_begin(&c->result, fm_clamp(c->writer.shape.columns - stripe * FM_STRIPE, 0, FM_STRIPE));
    for (int64_t r = 0; r * FM_STRIPE < c->result.rows; r++) {
        displace_block(c, r, from->row, offset);
    }
    return fm_mask_writer_blocks(&c->writer, b, h, stripe, &c->result);
}

static bool is_bitmap(const plane_source *from, int64_t stripe) {
    return stripe >= 0 && stripe < from->view->stripes && fm_mask_slot(from->view, from->b, from->h, stripe) != FM_NO_SLOT;
}

static fm_status copy_plane(plane_copier *c, int64_t b, int64_t h, const plane_source *from) {
    const int64_t columns = c->writer.shape.columns;
    for (int64_t stripe = 0; stripe * FM_STRIPE < columns; stripe++) {
        const int64_t column = stripe * FM_STRIPE + from->column;
        if (is_bitmap(from, stripe_of(column)) || is_bitmap(from, stripe_of(column + FM_STRIPE - 1))) {
            FM_TRY(copy_blocks(c, b, h, stripe, from));
            continue;
        }
        for (int64_t j = stripe * FM_STRIPE; j < (stripe + 1) * FM_STRIPE && j < columns; j++) {
            FM_TRY(copy_column(c, b, h, j, from));
        }
    }
    return FM_OK;
}

/* Which plane of a mask each plane of the result is, and how far displaced: (b, h) is (batch0 + b, h / repeat). */
typedef struct displacement {
    int64_t batch0, repeat, row, column;
} displacement;

static fm_status displace(const fm_mask *mask, fm_mask_shape shape, displacement by, const fm_mask_options *options,
                          fm_mask **out) {
    const fm_mask_view *v = &mask->view;
    const int64_t most = most_intervals(v), planes = planes_to_copy(shape, most);
    plane_copier c;
    fm_status status;
    FM_TRY_DONE(open_copier(&c, shape, most, v->shape.rows, options));
    for (int64_t plane = 0; plane < planes; plane++) {
        const int64_t b = plane / shape.heads, h = plane % shape.heads;
        const plane_source from = {v, by.batch0 + b, h / by.repeat, by.row, by.column};
        FM_TRY_DONE(copy_plane(&c, b, h, &from));
    }
    FM_TRY_DONE(fm_mask_writer_finish(&c.writer, out));
done:
    close_copier(&c);
    return status;
}

fm_status fm_mask_shift(const fm_mask *mask, int64_t rows, int64_t columns, const fm_mask_options *options, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    const fm_mask_shape shape = mask->view.shape;
    const displacement by = {.repeat = 1,
                             .row = -fm_clamp(rows, -shape.rows, shape.rows),
                             .column = -fm_clamp(columns, -shape.columns, shape.columns)};
    return displace(mask, shape, by, options, out);
}

static fm_status check_range(const char *name, int64_t first, int64_t end, int64_t extent) {
    FM_CHECK(0 <= first && first <= end && end <= extent, FM_ERROR_ARGUMENT,
             "%s0, %s1: are %lld, %lld, need 0 <= %s0 <= %s1 <= %lld", name, name, (long long)first, (long long)end, name, name,
             (long long)extent);
    return FM_OK;
}

fm_status fm_mask_slice(const fm_mask *mask, int64_t row0, int64_t row1, int64_t col0, int64_t col1,
                        const fm_mask_options *options, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    fm_mask_shape shape = mask->view.shape;
    FM_TRY(check_range("row", row0, row1, shape.rows));
    FM_TRY(check_range("col", col0, col1, shape.columns));
    shape.rows = row1 - row0;
    shape.columns = col1 - col0;
    return displace(mask, shape, (displacement){.repeat = 1, .row = row0, .column = col0}, options, out);
}

/* Whole planes of masks that exist already: what they hold was within some limit, and their blocks are shared. */
static const fm_mask_options no_limit = {.size = sizeof(fm_mask_options), .fallback_limit = INT64_MAX};

fm_status fm_mask_slice_batch(const fm_mask *mask, int64_t batch0, int64_t batch1, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    fm_mask_shape shape = mask->view.shape;
    FM_CHECK(0 <= batch0 && batch0 < batch1 && batch1 <= shape.batch, FM_ERROR_ARGUMENT,
             "batch0, batch1: are %lld, %lld, need 0 <= batch0 < batch1 <= %lld", (long long)batch0, (long long)batch1,
             (long long)shape.batch);
    shape.batch = batch1 - batch0;
    return displace(mask, shape, (displacement){.batch0 = batch0, .repeat = 1}, &no_limit, out);
}

fm_status fm_mask_repeat_heads(const fm_mask *mask, int64_t heads, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    fm_mask_shape shape = mask->view.shape;
    FM_CHECK(heads > 0 && heads <= INT32_MAX && heads % shape.heads == 0, FM_ERROR_ARGUMENT,
             "heads: is %lld, needs a multiple of the mask's %lld, at most 2^31 - 1", (long long)heads, (long long)shape.heads);
    const displacement by = {.repeat = heads / shape.heads};
    shape.heads = heads;
    return displace(mask, shape, by, &no_limit, out);
}

static fm_status check_same(const char *array, const char *extent, int64_t i, int64_t given, int64_t first) {
    FM_CHECK(given == first, FM_ERROR_SHAPE, "%s[%lld]: has %lld %s, %s[0] has %lld", array, (long long)i, (long long)given,
             extent, array, (long long)first);
    return FM_OK;
}

/* Adds up the extents of `count` masks stacked over batch or heads, and raises most to what any of them needs. */
static fm_status stack_shape(const char *name, const fm_mask *const *masks, int64_t count, bool over_batch, fm_mask_shape *shape,
                             int64_t *most) {
    FM_CHECK(count >= 1, FM_ERROR_ARGUMENT, "count: is %lld, needs 1 or more", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        FM_CHECK(masks[i] != NULL, FM_ERROR_ARGUMENT, "%s[%lld]: is NULL", name, (long long)i);
        const fm_mask_shape s = masks[i]->view.shape, first = masks[0]->view.shape;
        FM_TRY(over_batch ? check_same(name, "heads", i, s.heads, first.heads)
                          : check_same(name, "batch items", i, s.batch, first.batch));
        FM_TRY(check_same(name, "rows", i, s.rows, first.rows));
        FM_TRY(check_same(name, "columns", i, s.columns, first.columns));
        const fm_mask_shape so_far = *shape;
        *shape = s;
        if (over_batch) {
            shape->batch += so_far.batch;
        } else {
            shape->heads += so_far.heads;
        }
        const int64_t needs = most_intervals(&masks[i]->view);
        *most = needs > *most ? needs : *most;
    }
    return FM_OK;
}

static fm_status stack(const char *name, const fm_mask *const *masks, int64_t count, bool over_batch, fm_mask **out) {
    fm_mask_shape shape = {0};
    int64_t most = 0, done_batch = 0, done_heads = 0;
    FM_TRY(stack_shape(name, masks, count, over_batch, &shape, &most));
    plane_copier c;
    fm_status status;
    FM_TRY_DONE(open_copier(&c, shape, most, shape.rows, &no_limit));
    for (int64_t i = 0; i < count; i++) {
        const fm_mask_view *v = &masks[i]->view;
        const int64_t planes = planes_to_copy(v->shape, most_intervals(v));
        for (int64_t plane = 0; plane < planes; plane++) {
            const plane_source from = {.view = v, .b = plane / v->shape.heads, .h = plane % v->shape.heads};
            FM_TRY_DONE(copy_plane(&c, done_batch + from.b, done_heads + from.h, &from));
        }
        done_batch += over_batch ? v->shape.batch : 0;
        done_heads += over_batch ? 0 : v->shape.heads;
    }
    FM_TRY_DONE(fm_mask_writer_finish(&c.writer, out));
done:
    close_copier(&c);
    return status;
}

fm_status fm_mask_stack_heads(const fm_mask *const *heads, int64_t count, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(heads);
    FM_REQUIRE(out);
    return stack("heads", heads, count, false, out);
}

fm_status fm_mask_stack_batch(const fm_mask *const *items, int64_t count, fm_mask **out) {
    fm_clear_error();
    FM_REQUIRE(items);
    FM_REQUIRE(out);
    return stack("items", items, count, true, out);
}

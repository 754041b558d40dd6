/* Masks from and to one byte a pair. */
#include "core/memory.h"
#include "mask/convert.h"
#include "mask/stripe.h"
#include "mask/visibility.h"
#include "mask/writer.h"

#include <stdlib.h>
#include <string.h>

/* Columns that are packed together: 4 KiB of each row is enough for the memory to stream. */
enum { SLAB_STRIPES = 32, SLAB = SLAB_STRIPES * FM_STRIPE, EXPAND_ROWS = 256, EXPAND_COLUMNS = 64 };

/* Bit c of the result: v[c] is not 0. Eight equal bytes are the common case. */
static uint64_t pack_word(const uint8_t *v, int64_t count) {
    uint64_t word = 0;
    for (int64_t c = 0; c < count; c += 8) {
        uint64_t eight = 0;
        memcpy(&eight, v + c, count - c < 8 ? (size_t)(count - c) : 8);
        if (eight == UINT64_C(0x0101010101010101)) {
            word |= UINT64_C(0xff) << c;
        } else if (eight != 0) {
            for (int64_t i = c; i < c + 8 && i < count; i++) {
                word |= (uint64_t)(v[i] != 0) << i;
            }
        }
    }
    return word;
}

/* Writes up to SLAB_STRIPES stripes. bits: room for them; every word that a row or column of the mask has is set. */
static fm_status write_slab(fm_mask_writer *writer, const uint8_t *visible, int64_t plane, int64_t column0, uint64_t *bits) {
    const fm_mask_shape shape = writer->shape;
    const int64_t columns = fm_smaller(shape.columns - column0, SLAB), words = fm_stripe_words(shape.rows);
    for (int64_t i = 0; i < shape.rows; i++) {
        const uint8_t *row = visible + (plane * shape.rows + i) * shape.columns + column0;
        for (int64_t c = 0; c < columns; c += FM_STRIPE) {
            uint64_t *out = bits + c / FM_STRIPE * words + 2 * i;
            const int64_t keys = columns - c;
            out[0] = pack_word(row + c, keys < 64 ? keys : 64);
            out[1] = keys <= 64 ? 0 : pack_word(row + c + 64, keys < 128 ? keys - 64 : 64);
        }
    }
    for (int64_t c = 0; c < columns; c += FM_STRIPE) {
        FM_TRY(fm_mask_writer_stripe(writer, plane / shape.heads, plane % shape.heads, (column0 + c) / FM_STRIPE,
                                     bits + c / FM_STRIPE * words));
    }
    return FM_OK;
}

fm_status fm_mask_from_dense(fm_mask_shape shape, const uint8_t *visible, const fm_mask_options *options, fm_mask **out) {
    fm_mask_writer writer;
    uint64_t *bits = NULL;
    int64_t count;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_array_count("visible", shape, shape.rows, shape.columns, &count));
    FM_TRY(fm_array_check_input("visible", visible, count));
    FM_TRY(fm_mask_writer_open(&writer, shape, count > 0 ? FM_MAX_INTERVALS : 0, options));
    const int64_t stripes = fm_ceil_divide(shape.columns, FM_STRIPE), together = fm_smaller(stripes, SLAB_STRIPES);
    FM_TRY_DONE(fm_allocate("dense mask", together * fm_stripe_words(shape.rows), sizeof *bits, (void **)&bits));
    for (int64_t plane = 0; count > 0 && plane < shape.batch * shape.heads; plane++) {
        for (int64_t j = 0; j < shape.columns; j += SLAB) {
            FM_TRY_DONE(write_slab(&writer, visible, plane, j, bits));
        }
    }
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    free(bits);
    fm_mask_writer_close(&writer);
    return status;
}

/* Rows [row0, row0 + rows) of columns [column0, column0 + columns), one cache line of output a row. */
static void expand(const fm_mask_view *view, int64_t plane, int64_t row0, int64_t column0, uint8_t *visible) {
    const fm_window window = {.left = FM_UNLIMITED, .right = FM_UNLIMITED};
    const fm_mask_shape shape = view->shape;
    const int64_t rows = fm_smaller(shape.rows - row0, EXPAND_ROWS);
    const int64_t columns = fm_smaller(shape.columns - column0, EXPAND_COLUMNS);
    uint64_t bits[EXPAND_ROWS];
    fm_visible_bits(view, &window, plane / shape.heads, plane % shape.heads, row0, rows, column0, columns, bits);
    for (int64_t r = 0; r < rows; r++) {
        uint8_t *row = visible + (plane * shape.rows + row0 + r) * shape.columns + column0;
        for (int64_t c = 0; c < columns; c++) {
            row[c] = (uint8_t)((bits[r] >> c) & 1);
        }
    }
}

fm_status fm_mask_to_dense(const fm_mask *mask, uint8_t *visible, int64_t capacity) {
    int64_t count;
    fm_clear_error();
    FM_REQUIRE(mask);
    const fm_mask_shape shape = mask->view.shape;
    FM_TRY(fm_array_count("visible", shape, shape.rows, shape.columns, &count));
    FM_CHECK(count <= INT64_C(1) << 32, FM_ERROR_LIMIT, "visible: needs %lld bytes, the limit is 2^32", (long long)count);
    FM_TRY(fm_array_check_output("visible", visible, capacity, count));
    for (int64_t plane = 0; count > 0 && plane < shape.batch * shape.heads; plane++) {
        for (int64_t i = 0; i < shape.rows; i += EXPAND_ROWS) {
            for (int64_t j = 0; j < shape.columns; j += EXPAND_COLUMNS) {
                expand(&mask->view, plane, i, j, visible);
            }
        }
    }
    return FM_OK;
}

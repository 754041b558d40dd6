#include "support/small_masks.h"

#include "support/cmocka_all.h"

#include <stdlib.h>

fm_status finish(fm_mask_writer *writer, fm_mask **out) {
    const fm_status status = fm_mask_writer_finish(writer, out);
    fm_mask_writer_close(writer);
    return status;
}

/* Every column alike. */
static fm_mask *uniform_mask(fm_mask_shape shape, const fm_interval *v, int64_t count) {
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, shape, count, NULL), FM_OK);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        const int64_t b = plane / shape.heads, h = plane % shape.heads;
        assert_int_equal(fm_mask_writer_columns(&writer, b, h, 0, shape.columns, v, count), FM_OK);
    }
    assert_int_equal(finish(&writer, &mask), FM_OK);
    return mask;
}

fm_mask *full_mask(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    return uniform_mask((fm_mask_shape){batch, heads, rows, columns}, &(fm_interval){0, (int32_t)rows}, 1);
}

fm_mask *striped_mask(int64_t rows, int64_t columns) {
    const int64_t count = (rows + 1) / 2;
    fm_interval *v = calloc((size_t)count, sizeof *v);
    assert_non_null(v);
    for (int64_t k = 0; k < count; k++) {
        v[k] = (fm_interval){(int32_t)(2 * k), (int32_t)(2 * k + 1)};
    }
    fm_mask *mask = uniform_mask((fm_mask_shape){1, 1, rows, columns}, v, count);
    free(v);
    return mask;
}

fm_mask *comb_mask(int64_t rows, int64_t columns, int64_t column, int64_t count) {
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, rows, columns}, 100, NULL), FM_OK);
    for (int64_t j = 0; j < columns; j++) {
        fm_interval v[100] = {{1, 3}};
        for (int64_t k = 0; j == column && k < count; k++) {
            v[k] = (fm_interval){(int32_t)(2 * k), (int32_t)(2 * k + 1)};
        }
        assert_int_equal(fm_mask_writer_column(&writer, 0, 0, j, v, j == column ? count : 1), FM_OK);
    }
    assert_int_equal(finish(&writer, &mask), FM_OK);
    return mask;
}

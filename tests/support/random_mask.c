#include "support/random_mask.h"

#include "mask/writer.h"
#include "support/cmocka_all.h"

#include <string.h>

enum { MOST_INTERVALS = 16 };

/* Half of the columns repeat the column before: real masks come in runs, and only runs make full and skipped tiles. */
static int32_t draw_column(test_random *random, int64_t rows, int32_t intervals, fm_interval *v, int32_t previous) {
    if (previous >= 0 && random_chance(random, 0.5)) {
        return previous;
    }
    const int32_t count = (int32_t)random_integer(random, 0, intervals);
    for (int32_t i = 0; i < count; i++) {
        const int64_t start = random_integer(random, 0, rows), end = random_integer(random, start, rows);
        v[i] = (fm_interval){(int32_t)start, (int32_t)end};
    }
    return count;
}

fm_mask *random_mask(test_random *random, fm_mask_shape shape, int32_t intervals, uint8_t *dense) {
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_in_range(intervals, 0, MOST_INTERVALS);
    assert_int_equal(fm_mask_writer_open(&writer, shape, intervals, NULL), FM_OK);
    if (dense != NULL) {
        memset(dense, 0, (size_t)(shape.batch * shape.heads * shape.rows * shape.columns));
    }
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        fm_interval v[MOST_INTERVALS];
        int32_t count = -1;
        for (int64_t j = 0; j < shape.columns; j++) {
            count = draw_column(random, shape.rows, intervals, v, count);
            assert_int_equal(fm_mask_writer_column(&writer, plane / shape.heads, plane % shape.heads, j, v, count), FM_OK);
            for (int32_t k = 0; dense != NULL && k < count; k++) {
                for (int64_t i = v[k].start; i < v[k].end; i++) {
                    dense[(plane * shape.rows + i) * shape.columns + j] = 1;
                }
            }
        }
    }
    assert_int_equal(fm_mask_writer_finish(&writer, &mask), FM_OK);
    fm_mask_writer_close(&writer);
    return mask;
}

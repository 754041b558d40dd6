#include "support/dense.h"

#include <string.h>

#include "mask/mask.h"
#include "support/cmocka_all.h"

static void fill_stripe(const fm_mask *mask, int64_t b, int64_t h, int64_t stripe, uint8_t *visible) {
    const fm_mask_shape s = fm_mask_get_shape(mask);
    fm_stripe_columns columns = {0};
    assert_int_equal(fm_mask_read_stripe(&mask->view, b, h, stripe, &columns), FM_OK);
    for (int64_t j = stripe * FM_STRIPE; j < s.columns && j < (stripe + 1) * FM_STRIPE; j++) {
        for (int64_t k = columns.first[j % FM_STRIPE]; k < columns.first[j % FM_STRIPE + 1]; k++) {
            for (int64_t i = columns.intervals[k].start; i < columns.intervals[k].end; i++) {
                visible[i * s.columns + j] = 1;
            }
        }
    }
    fm_stripe_columns_free(&columns);
}

void dense_of_mask(const fm_mask *mask, uint8_t *visible) {
    const fm_mask_shape s = fm_mask_get_shape(mask);
    const int64_t pairs = s.rows * s.columns;
    memset(visible, 0, (size_t)(s.batch * s.heads * pairs));
    for (int64_t plane = 0; plane < s.batch * s.heads; plane++) {
        for (int64_t stripe = 0; stripe * FM_STRIPE < s.columns; stripe++) {
            fill_stripe(mask, plane / s.heads, plane % s.heads, stripe, visible + plane * pairs);
        }
    }
}

void picture_of_mask(const fm_mask *mask, int64_t batch, int64_t head, char picture[PICTURE_BYTES]) {
    const fm_mask_shape s = fm_mask_get_shape(mask);
    uint8_t dense[16 * 16 * 16];
    assert_true(s.rows <= 16 && s.columns <= 16 && s.batch * s.heads <= 16);
    dense_of_mask(mask, dense);
    char *at = picture;
    for (int64_t i = 0; i < s.rows; i++) {
        if (i > 0) {
            memcpy(at, " / ", 3);
            at += 3;
        }
        for (int64_t j = 0; j < s.columns; j++) {
            *at++ = dense[((batch * s.heads + head) * s.rows + i) * s.columns + j] ? 'x' : '.';
        }
    }
    *at = 0;
}

/* What the conversions of column forms refuse, and that a failure writes nothing. */
#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"
#include "support/expect.h"

#include <string.h>

/* https://github.com/flashinfer-ai/flashinfer/issues/3176 */
static void the_first_misfit_is_named_and_nothing_is_written(void **state) {
    const fm_mask_shape s = {2, 1, 9, 3};
    uint8_t dense[2 * 9 * 3];
    int32_t v[24];
    fm_interval intervals[24];
    fm_mask *mask = NULL;
    (void)state;
    memset(dense, 1, sizeof dense);
    for (int i = 0; i < 9; i += 2) {
        dense[(9 + i) * 3 + 1] = dense[(9 + i) * 3 + 2] = 0; /* item 1, columns 1 and 2: 4 intervals */
    }
    succeed(fm_mask_from_dense(s, dense, NULL, &mask));
    memset(v, 0x5a, sizeof v);
    refuse(fm_mask_to_startend_row_indices(mask, 4, false, v, 24), FM_ERROR_CANNOT_EXPRESS, "column 1 (batch item 1");
    refuse(fm_mask_to_fms_fme(mask, 3, v, v, 24), FM_ERROR_CANNOT_EXPRESS, "column 1 (batch item 1");
    refuse(fm_mask_to_intervals(mask, 3, intervals, 24), FM_ERROR_CANNOT_EXPRESS, "column 1 (batch item 1");
    refuse(fm_mask_to_intervals(mask, 4, intervals, 23), FM_ERROR_ARGUMENT, "capacity: is 23");
    refuse(fm_mask_to_startend_row_indices(mask, 4, false, v, 23), FM_ERROR_ARGUMENT, "capacity: is 23");
    refuse(fm_mask_to_fms_fme(mask, 4, v, v, -1), FM_ERROR_ARGUMENT, "capacity: is -1");
    for (int i = 0; i < 24; i++) {
        assert_int_equal(v[i], 0x5a5a5a5a);
    }
    succeed(fm_mask_to_intervals(mask, 4, intervals, 24));
    assert_int_equal(intervals[4].start, 9); /* an unused interval is [Sq, Sq) */
    fm_mask_free(mask);
}

static void bad_arguments_are_refused(void **state) {
    const fm_mask_shape s = {1, 1, 4, 4}, huge = {2147483647, 1, 0, 2147483647}, overflow = {2147483647, 2, 0, 4};
    const int32_t v[16] = {0};
    const fm_interval intervals[16] = {{0, 0}};
    fm_mask *mask = NULL;
    (void)state;
    for (int32_t vectors = -1; vectors <= 5; vectors++) {
        for (int causal = 0; causal <= 1; causal++) {
            const bool legal = causal ? vectors == 1 || vectors == 2 : vectors == 2 || vectors == 4;
            const fm_status status = fm_mask_from_startend_row_indices(s, vectors, causal, v, &mask);
            assert_int_equal(status, legal ? FM_OK : FM_ERROR_ARGUMENT);
            fm_mask_free(legal ? mask : NULL);
            mask = NULL;
        }
    }
    refuse(fm_mask_from_startend_row_indices(s, 1, true, v, NULL), FM_ERROR_ARGUMENT, "out");
    refuse(fm_mask_from_startend_row_indices(s, 1, true, NULL, &mask), FM_ERROR_ARGUMENT, "v: is NULL");
    refuse(fm_mask_from_fms_fme(s, 1, v, NULL, &mask), FM_ERROR_ARGUMENT, "fme: is NULL");
    refuse(fm_mask_from_fms_fme(s, 0, v, v, &mask), FM_ERROR_ARGUMENT, "intervals: is 0");
    refuse(fm_mask_from_fms_fme(s, 5, v, v, &mask), FM_ERROR_ARGUMENT, "intervals: is 5");
    refuse(fm_mask_from_intervals(s, -1, intervals, &mask), FM_ERROR_ARGUMENT, "intervals: is -1");
    refuse(fm_mask_from_intervals((fm_mask_shape){0, 1, 4, 4}, 1, intervals, &mask), FM_ERROR_ARGUMENT, "shape.batch");
    refuse(fm_mask_from_fms_fme(huge, 4, v, v, &mask), FM_ERROR_LIMIT, "fms");
    refuse(fm_mask_from_startend_row_indices(overflow, 4, false, v, &mask), FM_ERROR_LIMIT, "shape");
    refuse(fm_mask_to_intervals(NULL, 1, NULL, 0), FM_ERROR_ARGUMENT, "mask");
    assert_null(mask);
}

static void intervals_outside_the_rows_are_refused_with_their_place(void **state) {
    const fm_mask_shape s = {2, 3, 6, 5};
    const fm_interval bad[] = {{3, 2}, {-1, 2}, {0, 7}, {INT32_MIN, INT32_MAX}, {INT32_MAX, INT32_MIN}};
    fm_interval v[2 * 3 * 2 * 5] = {{0, 0}}; /* 2 intervals a column */
    fm_mask *mask = NULL;
    (void)state;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        v[((1 * 3 + 2) * 2 + 1) * 5 + 4] = bad[k];
        refuse(fm_mask_from_intervals(s, 2, v, &mask), FM_ERROR_ARGUMENT,
               "v: interval 1 of column 4 (batch item 1, head 2) is [");
        assert_null(mask);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_misfit_is_named_and_nothing_is_written),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(intervals_outside_the_rows_are_refused_with_their_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

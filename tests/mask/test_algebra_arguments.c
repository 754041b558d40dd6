#include "support/cmocka_all.h"
#include "support/small_masks.h"

#include <stdio.h>

static void assert_refused(fm_status status, fm_status expected, fm_mask *untouched, const char *message) {
    assert_int_equal(status, expected);
    assert_null(untouched);
    assert_string_equal(fm_error_message(), message);
}

static void shapes_that_do_not_fit_are_refused_with_both_numbers(void **state) {
    (void)state;
    fm_mask *a = full_mask(2, 3, 4, 5), *out = NULL;
    static const struct {
        int64_t batch, heads, rows, columns;
        const char *message;
    } cases[] = {{3, 3, 4, 5, "batch: a has 2, b has 3, needs the same or 1"},
                 {1, 2, 4, 5, "heads: a has 3, b has 2, needs the same or 1"},
                 {1, 1, 1, 5, "rows: a has 4, b has 1, needs the same"},
                 {1, 1, 4, 1, "columns: a has 5, b has 1, needs the same"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_mask *b = full_mask(cases[i].batch, cases[i].heads, cases[i].rows, cases[i].columns);
        assert_refused(fm_mask_and(a, b, NULL, &out), FM_ERROR_SHAPE, out, cases[i].message);
        assert_refused(fm_mask_or(a, b, NULL, &out), FM_ERROR_SHAPE, out, cases[i].message);
        fm_mask_free(b);
    }
    fm_mask_free(a);
}

static void stacks_of_unlike_masks_are_refused(void **state) {
    (void)state;
    fm_mask *a = full_mask(2, 3, 4, 5), *out = NULL;
    static const struct {
        int64_t batch, heads, rows, columns;
        bool over_batch;
        const char *message;
    } cases[] = {{1, 3, 4, 5, false, "heads[1]: has 1 batch items, heads[0] has 2"},
                 {2, 1, 3, 5, false, "heads[1]: has 3 rows, heads[0] has 4"},
                 {2, 1, 4, 6, false, "heads[1]: has 6 columns, heads[0] has 5"},
                 {2, 1, 4, 5, true, "items[1]: has 1 heads, items[0] has 3"},
                 {9, 3, 3, 5, true, "items[1]: has 3 rows, items[0] has 4"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_mask *b = full_mask(cases[i].batch, cases[i].heads, cases[i].rows, cases[i].columns);
        const fm_mask *const both[] = {a, b};
        assert_refused(cases[i].over_batch ? fm_mask_stack_batch(both, 2, &out) : fm_mask_stack_heads(both, 2, &out),
                       FM_ERROR_SHAPE, out, cases[i].message);
        fm_mask_free(b);
    }
    const fm_mask *const holed[] = {a, a, NULL};
    assert_refused(fm_mask_stack_heads(holed, 3, &out), FM_ERROR_ARGUMENT, out, "heads[2]: is NULL");
    assert_refused(fm_mask_stack_batch(holed, 3, &out), FM_ERROR_ARGUMENT, out, "items[2]: is NULL");
    assert_refused(fm_mask_stack_heads(holed, 0, &out), FM_ERROR_ARGUMENT, out, "count: is 0, needs 1 or more");
    assert_refused(fm_mask_stack_batch(holed, -1, &out), FM_ERROR_ARGUMENT, out, "count: is -1, needs 1 or more");
    fm_mask_free(a);
}

static void null_arguments_are_named(void **state) {
    (void)state;
    fm_mask *a = full_mask(1, 1, 2, 2), *out = NULL;
    const fm_mask *const one[] = {a};
    assert_refused(fm_mask_and(NULL, a, NULL, &out), FM_ERROR_ARGUMENT, out, "a: is NULL");
    assert_refused(fm_mask_or(a, NULL, NULL, &out), FM_ERROR_ARGUMENT, out, "b: is NULL");
    assert_refused(fm_mask_and(a, a, NULL, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_or(a, a, NULL, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_shift(NULL, 0, 0, NULL, &out), FM_ERROR_ARGUMENT, out, "mask: is NULL");
    assert_refused(fm_mask_shift(a, 0, 0, NULL, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_slice(NULL, 0, 0, 0, 0, NULL, &out), FM_ERROR_ARGUMENT, out, "mask: is NULL");
    assert_refused(fm_mask_slice(a, 0, 0, 0, 0, NULL, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_slice_batch(NULL, 0, 1, &out), FM_ERROR_ARGUMENT, out, "mask: is NULL");
    assert_refused(fm_mask_slice_batch(a, 0, 1, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_repeat_heads(NULL, 1, &out), FM_ERROR_ARGUMENT, out, "mask: is NULL");
    assert_refused(fm_mask_repeat_heads(a, 1, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_stack_heads(NULL, 1, &out), FM_ERROR_ARGUMENT, out, "heads: is NULL");
    assert_refused(fm_mask_stack_heads(one, 1, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    assert_refused(fm_mask_stack_batch(NULL, 1, &out), FM_ERROR_ARGUMENT, out, "items: is NULL");
    assert_refused(fm_mask_stack_batch(one, 1, NULL), FM_ERROR_ARGUMENT, out, "out: is NULL");
    fm_mask_free(a);
}

static void ranges_and_counts_are_checked(void **state) {
    (void)state;
    fm_mask *a = full_mask(1, 2, 6, 8), *out = NULL;
    assert_refused(fm_mask_slice(a, -1, 3, 0, 8, NULL, &out), FM_ERROR_ARGUMENT, out,
                   "row0, row1: are -1, 3, need 0 <= row0 <= row1 <= 6");
    assert_refused(fm_mask_slice(a, 4, 3, 0, 8, NULL, &out), FM_ERROR_ARGUMENT, out,
                   "row0, row1: are 4, 3, need 0 <= row0 <= row1 <= 6");
    assert_refused(fm_mask_slice(a, 0, 7, 0, 8, NULL, &out), FM_ERROR_ARGUMENT, out,
                   "row0, row1: are 0, 7, need 0 <= row0 <= row1 <= 6");
    assert_refused(fm_mask_slice(a, 0, 6, INT64_MIN, INT64_MAX, NULL, &out), FM_ERROR_ARGUMENT, out,
                   "col0, col1: are -9223372036854775808, 9223372036854775807, need 0 <= col0 <= col1 <= 8");
    assert_refused(fm_mask_repeat_heads(a, 3, &out), FM_ERROR_ARGUMENT, out,
                   "heads: is 3, needs a multiple of the mask's 2, at most 2^31 - 1");
    assert_refused(fm_mask_repeat_heads(a, 0, &out), FM_ERROR_ARGUMENT, out,
                   "heads: is 0, needs a multiple of the mask's 2, at most 2^31 - 1");
    assert_refused(fm_mask_repeat_heads(a, -2, &out), FM_ERROR_ARGUMENT, out,
                   "heads: is -2, needs a multiple of the mask's 2, at most 2^31 - 1");
    assert_refused(fm_mask_repeat_heads(a, INT64_C(1) << 32, &out), FM_ERROR_ARGUMENT, out,
                   "heads: is 4294967296, needs a multiple of the mask's 2, at most 2^31 - 1");
    fm_mask_free(a);
}

static void batch_ranges_are_checked(void **state) {
    (void)state;
    fm_mask *a = full_mask(3, 2, 6, 8), *out = NULL;
    static const int64_t ranges[][2] = {{-1, 2}, {1, 1}, {2, 1}, {0, 4}, {3, 3}, {INT64_MIN, INT64_MAX}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char message[160];
        snprintf(message, sizeof message, "batch0, batch1: are %lld, %lld, need 0 <= batch0 < batch1 <= 3",
                 (long long)ranges[i][0], (long long)ranges[i][1]);
        assert_refused(fm_mask_slice_batch(a, ranges[i][0], ranges[i][1], &out), FM_ERROR_ARGUMENT, out, message);
    }
    fm_mask_free(a);
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    fm_mask *a = full_mask(1, 1, 6, 8), *out = NULL;
    const fm_mask_options small = {.size = 8, .fallback_limit = -1}, negative = {.size = sizeof negative, .fallback_limit = -2};
    const char *size_message = "options.size: is 8, needs 16 (FM_MASK_OPTIONS_INIT sets it)";
    const char *limit_message = "options.fallback_limit: is -2, needs bytes or -1";
    assert_refused(fm_mask_and(a, a, &small, &out), FM_ERROR_ARGUMENT, out, size_message);
    assert_refused(fm_mask_or(a, a, &negative, &out), FM_ERROR_ARGUMENT, out, limit_message);
    assert_refused(fm_mask_shift(a, 0, 0, &small, &out), FM_ERROR_ARGUMENT, out, size_message);
    assert_refused(fm_mask_slice(a, 0, 6, 0, 8, &negative, &out), FM_ERROR_ARGUMENT, out, limit_message);
    fm_mask_free(a);
}

/* 256 x 300, every other row visible: 3 stripes, one 128 x 128 block for two of them and one for the stripe of 44 keys.
 * (3 + 3 * 2) indices of 4 bytes and 2 blocks of 2048. */
static void a_limit_that_is_passed_is_named_with_the_bytes(void **state) {
    (void)state;
    enum { BYTES = 9 * 4 + 2 * 2048 };
    fm_mask *striped = striped_mask(256, 300), *full = full_mask(1, 1, 256, 300), *out = NULL;
    assert_int_equal(fm_mask_fallback_bytes(striped), BYTES);
    fm_mask_options options = {.size = sizeof options, .fallback_limit = BYTES};
    assert_int_equal(fm_mask_and(striped, full, &options, &out), FM_OK);
    assert_true(fm_mask_equal(out, striped));
    fm_mask_free(out);
    out = NULL;
    options.fallback_limit = BYTES - 1;
    const char *message = "fallback: needs 4132 bytes (3 stripes of 128 keys, 2 different 128 x 128 blocks), the limit is 4131";
    assert_refused(fm_mask_and(striped, full, &options, &out), FM_ERROR_LIMIT, out, message);
    assert_refused(fm_mask_or(striped, striped, &options, &out), FM_ERROR_LIMIT, out, message);
    assert_refused(fm_mask_shift(striped, 0, 0, &options, &out), FM_ERROR_LIMIT, out, message);
    assert_refused(fm_mask_slice(striped, 0, 256, 0, 300, &options, &out), FM_ERROR_LIMIT, out, message);
    options.fallback_limit = 0;
    assert_int_equal(fm_mask_and(striped, striped, &options, &out), FM_ERROR_LIMIT);
    assert_int_equal(fm_mask_or(striped, full, &options, &out), FM_OK); /* everything visible: no bitmap is left */
    assert_true(fm_mask_equal(out, full));
    assert_false(fm_mask_has_fallback(out));
    fm_mask_free(out);
    fm_mask_free(striped);
    fm_mask_free(full);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_do_not_fit_are_refused_with_both_numbers),
        cmocka_unit_test(stacks_of_unlike_masks_are_refused),
        cmocka_unit_test(null_arguments_are_named),
        cmocka_unit_test(ranges_and_counts_are_checked),
        cmocka_unit_test(batch_ranges_are_checked),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(a_limit_that_is_passed_is_named_with_the_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

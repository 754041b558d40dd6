#include "mask/writer.h"
#include "support/cmocka_all.h"
#include "support/small_masks.h"
#include "support/truth.h"

static void the_column_accessor_checks_its_arguments(void **state) {
    (void)state;
    fm_mask *mask = comb_mask(4, 7, 0, 1);
    fm_interval v[FM_MAX_INTERVALS];
    int32_t count = -1;
    const struct {
        const fm_mask *mask;
        int64_t batch, head, column;
        fm_interval *v;
        int32_t *count;
        const char *message;
    } cases[] = {{NULL, 0, 0, 0, v, &count, "mask: is NULL"},
                 {mask, 0, 0, 0, NULL, &count, "out: is NULL"},
                 {mask, 0, 0, 0, v, NULL, "count: is NULL"},
                 {mask, 1, 0, 0, v, &count, "batch: is 1, the mask has 1"},
                 {mask, -1, 0, 0, v, &count, "batch: is -1, the mask has 1"},
                 {mask, 0, 1, 0, v, &count, "head: is 1, the mask has 1"},
                 {mask, 0, -1, 0, v, &count, "head: is -1, the mask has 1"},
                 {mask, 0, 0, 7, v, &count, "column: is 7, the mask has 7"},
                 {mask, 0, 0, -1, v, &count, "column: is -1, the mask has 7"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(
            fm_mask_column(cases[i].mask, cases[i].batch, cases[i].head, cases[i].column, cases[i].v, cases[i].count),
            FM_ERROR_ARGUMENT);
        assert_string_equal(fm_error_message(), cases[i].message);
        assert_int_equal(count, -1);
    }
    int64_t pairs = -1;
    assert_int_equal(fm_mask_visible_pairs(NULL, &pairs), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_mask_visible_pairs(mask, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(pairs, -1);
    fm_mask_free(mask);
}

static void no_mask_has_nothing(void **state) {
    (void)state;
    fm_mask *mask = comb_mask(4, 7, 0, 1);
    const fm_mask_shape none = fm_mask_get_shape(NULL);
    assert_int_equal(none.batch + none.heads + none.rows + none.columns, 0);
    assert_int_equal(fm_mask_interval_count(NULL), 0);
    assert_false(fm_mask_has_fallback(NULL));
    assert_int_equal(fm_mask_bytes(NULL), 0);
    assert_int_equal(fm_mask_fallback_bytes(NULL), 0);
    assert_true(fm_mask_hash(NULL) == 0);
    assert_true(fm_mask_equal(NULL, NULL));
    assert_false(fm_mask_equal(mask, NULL));
    assert_false(fm_mask_equal(NULL, mask));
    fm_mask_free(NULL);
    fm_mask_free(mask);
}

static void a_retained_mask_outlives_its_first_owner(void **state) {
    (void)state;
    fm_mask *mask = comb_mask(40, 7, 3, 5), *again = fm_mask_retain(mask);
    fm_mask_free(mask);
    assert_int_equal(fm_mask_get_shape(again).columns, 7);
    assert_true(fm_mask_has_fallback(again));
    fm_mask_free(again);
}

static void one_pair_makes_masks_differ(void **state) {
    (void)state;
    test_random random = {6};
    for (int i = 0; i < 300; i++) {
        const fm_mask_shape shape = {1, 2, random_integer(&random, 1, 140), random_integer(&random, 1, 140)};
        truth t = truth_random(&random, shape, i % 3 == 0 ? 0.5 : i % 3 == 1 ? 0.01 : 0.99);
        fm_mask *mask = truth_mask(&t, NULL);
        t.visible[random_integer(&random, 0, truth_pairs(shape) - 1)] ^= 1;
        fm_mask *other = truth_mask(&t, NULL);
        assert_false(fm_mask_equal(mask, other));
        assert_true(fm_mask_hash(mask) != fm_mask_hash(other));
        fm_mask_free(mask);
        fm_mask_free(other);
        truth_free(&t);
    }
}

static void empty_masks_of_different_shapes_differ(void **state) {
    (void)state;
    const fm_mask_shape shapes[] = {{1, 1, 2, 3}, {1, 1, 3, 2}, {1, 2, 2, 3}, {2, 1, 2, 3}, {1, 1, 0, 0}, {1, 1, 0, 3}};
    enum { COUNT = sizeof shapes / sizeof *shapes };
    fm_mask *masks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        truth t = truth_make(shapes[i]);
        masks[i] = truth_mask(&t, NULL);
        truth_assert(&t, masks[i]);
        assert_int_equal(fm_mask_bytes(masks[i]), 0);
        for (int k = 0; k < i; k++) {
            assert_false(fm_mask_equal(masks[i], masks[k]));
            assert_true(fm_mask_hash(masks[i]) != fm_mask_hash(masks[k]));
        }
        truth_free(&t);
    }
    for (int i = 0; i < COUNT; i++) {
        fm_mask_free(masks[i]);
    }
}

/* A hash may be stored and compared on another machine: byte order and word size must not reach it. */
static void the_hash_is_the_same_everywhere(void **state) {
    (void)state;
    fm_mask *intervals = comb_mask(40, 300, 200, 3), *bitmap = comb_mask(40, 300, 200, 9);
    assert_true(fm_mask_hash(intervals) == UINT64_C(0x0ed120de630cbb8f));
    assert_true(fm_mask_hash(bitmap) == UINT64_C(0x9558a705132bbcb3));
    fm_mask_free(intervals);
    fm_mask_free(bitmap);
}

static void the_writer_sorts_cuts_and_merges(void **state) {
    (void)state;
    static const fm_interval given[] = {{30, 99}, {5, 7}, {-8, 2}, {7, 9},   {20, 20},
                                        {22, 21}, {6, 8}, {2, 3},  {35, 36}, {40, 50}};
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 40, 2}, 3, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_column(&writer, 0, 0, 1, given, 10), FM_OK);
    assert_int_equal(finish(&writer, &mask), FM_OK);
    fm_interval v[FM_MAX_INTERVALS];
    int32_t count;
    assert_int_equal(fm_mask_column(mask, 0, 0, 1, v, &count), FM_OK);
    static const fm_interval expected[] = {{0, 3}, {5, 9}, {30, 40}};
    assert_int_equal(count, 3);
    assert_memory_equal(v, expected, sizeof expected);
    assert_int_equal(fm_mask_column(mask, 0, 0, 0, v, &count), FM_OK);
    assert_int_equal(count, 0);
    assert_int_equal(fm_mask_interval_count(mask), 3);
    fm_mask_free(mask);
}

static void five_intervals_that_touch_are_one(void **state) {
    (void)state;
    static const fm_interval given[] = {{8, 10}, {6, 8}, {4, 6}, {2, 4}, {0, 2}};
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 12, 1}, 1, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_column(&writer, 0, 0, 0, given, 5), FM_OK);
    assert_int_equal(finish(&writer, &mask), FM_OK);
    assert_false(fm_mask_has_fallback(mask));
    assert_int_equal(fm_mask_interval_count(mask), 1);
    fm_mask_free(mask);
}

static void more_intervals_than_announced_are_an_internal_error(void **state) {
    (void)state;
    static const fm_interval two[] = {{0, 1}, {2, 3}};
    fm_mask_writer writer;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 12, 1}, 1, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_column(&writer, 0, 0, 0, two, 2), FM_ERROR_INTERNAL);
    fm_mask_writer_close(&writer);
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 12, 1}, 0, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, 0, 0, 12), FM_ERROR_INTERNAL);
    assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, 0, 12, 0), FM_OK);
    fm_mask_writer_close(&writer);
}

static void wide_intervals_are_cut(void **state) {
    (void)state;
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 12, 4}, 1, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, 0, INT64_MIN, INT64_MAX), FM_OK);
    assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, 1, INT64_C(1) << 40, INT64_MAX), FM_OK);
    assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, 2, 5, 5), FM_OK);
    assert_int_equal(fm_mask_writer_interval(&writer, 0, 0, 3, 11, INT64_C(1) << 33), FM_OK);
    assert_int_equal(finish(&writer, &mask), FM_OK);
    int64_t pairs = 0;
    assert_int_equal(fm_mask_visible_pairs(mask, &pairs), FM_OK);
    assert_int_equal(pairs, 12 + 1);
    fm_mask_free(mask);
}

static void extents_out_of_range_are_named(void **state) {
    (void)state;
    static const struct {
        fm_mask_shape shape;
        fm_status status;
        const char *message;
    } cases[] = {{{0, 1, 1, 1}, FM_ERROR_ARGUMENT, "shape.batch: is 0, needs 1 .. 2^31 - 1"},
                 {{1, -1, 1, 1}, FM_ERROR_ARGUMENT, "shape.heads: is -1, needs 1 .. 2^31 - 1"},
                 {{1, 1, -1, 1}, FM_ERROR_ARGUMENT, "shape.rows: is -1, needs 0 .. 2^31 - 1"},
                 {{1, 1, 1, INT64_C(1) << 31}, FM_ERROR_ARGUMENT, "shape.columns: is 2147483648, needs 0 .. 2^31 - 1"},
                 {{1, 1, INT64_MAX, 1}, FM_ERROR_ARGUMENT, "shape.rows: is 9223372036854775807, needs 0 .. 2^31 - 1"},
                 {{2, 1, INT32_MAX, INT32_MAX}, FM_OK, ""},
                 {{1, 3, INT32_MAX, INT32_MAX}, FM_ERROR_LIMIT, "shape: 1 x 3 x 2147483647 x 2147483647 pairs pass 2^63"},
                 {{INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX},
                  FM_ERROR_LIMIT,
                  "shape: 2147483647 x 2147483647 x 2147483647 x 2147483647 pairs pass 2^63"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_clear_error();
        assert_int_equal(fm_mask_shape_check(cases[i].shape), cases[i].status);
        assert_string_equal(fm_error_message(), cases[i].message);
    }
}

/* 2^62 columns of nothing take no memory, and no time: each of these would be a loop of many years. */
static void a_mask_of_nothing_costs_nothing(void **state) {
    (void)state;
    const fm_mask_shape shape = {INT32_MAX, 1, 1, INT32_MAX};
    fm_mask *nothing = NULL, *out[8] = {NULL};
    assert_int_equal(fm_mask_from_intervals(shape, 0, NULL, &nothing), FM_OK);
    assert_int_equal(fm_mask_from_row_ranges(shape, 0, NULL, NULL, NULL, &out[0]), FM_OK);
    assert_int_equal(fm_mask_and(nothing, nothing, NULL, &out[1]), FM_OK);
    assert_int_equal(fm_mask_or(nothing, nothing, NULL, &out[2]), FM_OK);
    assert_int_equal(fm_mask_shift(nothing, 1, -1, NULL, &out[3]), FM_OK);
    assert_int_equal(fm_mask_slice(nothing, 0, 1, 0, INT32_MAX, NULL, &out[4]), FM_OK);
    assert_int_equal(fm_mask_slice_batch(nothing, 0, INT32_MAX, &out[5]), FM_OK);
    assert_int_equal(fm_mask_stack_heads((const fm_mask *const[]){nothing}, 1, &out[6]), FM_OK);
    assert_int_equal(fm_mask_stack_batch((const fm_mask *const[]){nothing}, 1, &out[7]), FM_OK);
    for (int i = 0; i < 8; i++) {
        assert_true(fm_mask_equal(out[i], nothing));
        assert_int_equal(fm_mask_bytes(out[i]), 0);
        fm_mask_free(out[i]);
    }
    fm_mask_free(nothing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_of_nothing_costs_nothing),
        cmocka_unit_test(the_column_accessor_checks_its_arguments),
        cmocka_unit_test(no_mask_has_nothing),
        cmocka_unit_test(a_retained_mask_outlives_its_first_owner),
        cmocka_unit_test(one_pair_makes_masks_differ),
        cmocka_unit_test(empty_masks_of_different_shapes_differ),
        cmocka_unit_test(the_hash_is_the_same_everywhere),
        cmocka_unit_test(the_writer_sorts_cuts_and_merges),
        cmocka_unit_test(five_intervals_that_touch_are_one),
        cmocka_unit_test(more_intervals_than_announced_are_an_internal_error),
        cmocka_unit_test(wide_intervals_are_cut),
        cmocka_unit_test(extents_out_of_range_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "support/cmocka_all.h"
#include "support/random_mask.h"
#include "support/small_masks.h"
#include "support/truth.h"

#include <flashmask/masks.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS = 10000 };

/* How often the interesting cases came up, so that the test cannot pass by missing them. */
typedef struct case_tally {
    int64_t fallback_operands, fallback_results, results_back_to_intervals;
} case_tally;

static int64_t draw_extent(test_random *random) {
    return random_chance(random, 0.1) ? random_integer(random, 120, 270) : random_integer(random, 0, 24);
}

static fm_mask *draw_mask(test_random *random, fm_mask_shape shape, truth *t) {
    if (random_chance(random, 0.3)) {
        *t = truth_random(random, shape, random_chance(random, 0.5) ? 0.5 : 0.1);
        return truth_mask(t, NULL);
    }
    *t = truth_make(shape);
    return random_mask(random, shape, (int32_t)random_integer(random, 0, 8), t->visible);
}

static void check_result(case_tally *tally, const truth *expected, fm_mask *result, bool fallback_operand) {
    truth_assert(expected, result);
    tally->fallback_results += fm_mask_has_fallback(result);
    tally->results_back_to_intervals += fallback_operand && !fm_mask_has_fallback(result);
    fm_mask_free(result);
}

static void check_combination(case_tally *tally, const truth *ta, const fm_mask *a, const truth *tb, const fm_mask *b,
                              bool is_union) {
    const fm_mask_shape sa = ta->shape, sb = tb->shape;
    truth expected =
        truth_make((fm_mask_shape){sa.batch > 1 ? sa.batch : sb.batch, sa.heads > 1 ? sa.heads : sb.heads, sa.rows, sa.columns});
    const fm_mask_shape s = expected.shape;
    for (int64_t plane = 0; plane < s.batch * s.heads; plane++) {
        const int64_t bi = plane / s.heads, h = plane % s.heads;
        for (int64_t k = 0; k < s.rows * s.columns; k++) {
            const int64_t row = k / s.columns, column = k % s.columns;
            const uint8_t x = *truth_at(ta, bi % sa.batch, h % sa.heads, row, column);
            const uint8_t y = *truth_at(tb, bi % sb.batch, h % sb.heads, row, column);
            *truth_at(&expected, bi, h, row, column) = is_union ? x | y : x & y;
        }
    }
    fm_mask *result = NULL;
    assert_int_equal(is_union ? fm_mask_or(a, b, NULL, &result) : fm_mask_and(a, b, NULL, &result), FM_OK);
    check_result(tally, &expected, result, fm_mask_has_fallback(a) || fm_mask_has_fallback(b));
    truth_free(&expected);
}

/* Pair (i, j) of the result is pair (i + row, j + column) of the mask. */
static truth displaced(const truth *t, fm_mask_shape shape, int64_t row, int64_t column) {
    truth expected = truth_make(shape);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        for (int64_t k = 0; k < shape.rows * shape.columns; k++) {
            const int64_t b = plane / shape.heads, h = plane % shape.heads, i = k / shape.columns, j = k % shape.columns;
            const uint8_t *source = truth_at(t, b, h, i + row, j + column);
            *truth_at(&expected, b, h, i, j) = source != NULL ? *source : 0;
        }
    }
    return expected;
}

static void check_shift(case_tally *tally, test_random *random, const truth *t, const fm_mask *mask) {
    const int64_t rows = random_integer(random, -t->shape.rows - 2, t->shape.rows + 2);
    const int64_t columns = random_integer(random, -t->shape.columns - 2, t->shape.columns + 2);
    truth expected = displaced(t, t->shape, -rows, -columns);
    fm_mask *result = NULL;
    assert_int_equal(fm_mask_shift(mask, rows, columns, NULL, &result), FM_OK);
    check_result(tally, &expected, result, fm_mask_has_fallback(mask));
    truth_free(&expected);
}

static void check_slice(case_tally *tally, test_random *random, const truth *t, const fm_mask *mask) {
    const int64_t row0 = random_integer(random, 0, t->shape.rows), row1 = random_integer(random, row0, t->shape.rows);
    const int64_t col0 = random_integer(random, 0, t->shape.columns), col1 = random_integer(random, col0, t->shape.columns);
    truth expected = displaced(t, (fm_mask_shape){t->shape.batch, t->shape.heads, row1 - row0, col1 - col0}, row0, col0);
    fm_mask *result = NULL;
    assert_int_equal(fm_mask_slice(mask, row0, row1, col0, col1, NULL, &result), FM_OK);
    check_result(tally, &expected, result, fm_mask_has_fallback(mask));
    truth_free(&expected);
}

static void copy_plane(const truth *from, int64_t from_plane, truth *to, int64_t to_plane) {
    const size_t pairs = (size_t)(from->shape.rows * from->shape.columns);
    memcpy(to->visible + (size_t)to_plane * pairs, from->visible + (size_t)from_plane * pairs, pairs);
}

static void check_slice_batch(case_tally *tally, test_random *random, const truth *t, const fm_mask *mask) {
    const int64_t batch0 = random_integer(random, 0, t->shape.batch - 1),
                  batch1 = random_integer(random, batch0 + 1, t->shape.batch);
    fm_mask_shape shape = t->shape;
    shape.batch = batch1 - batch0;
    truth expected = truth_make(shape);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        copy_plane(t, batch0 * shape.heads + plane, &expected, plane);
    }
    fm_mask *result = NULL;
    assert_int_equal(fm_mask_slice_batch(mask, batch0, batch1, &result), FM_OK);
    check_result(tally, &expected, result, fm_mask_has_fallback(mask));
    truth_free(&expected);
}

static void check_repeat(case_tally *tally, test_random *random, const truth *t, const fm_mask *mask) {
    const int64_t times = random_integer(random, 1, 3);
    fm_mask_shape shape = t->shape;
    shape.heads *= times;
    truth expected = truth_make(shape);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        copy_plane(t, plane / times, &expected, plane);
    }
    fm_mask *result = NULL;
    assert_int_equal(fm_mask_repeat_heads(mask, shape.heads, &result), FM_OK);
    check_result(tally, &expected, result, fm_mask_has_fallback(mask));
    truth_free(&expected);
}

static void check_stack(case_tally *tally, test_random *random, const truth *t, const fm_mask *mask, bool over_batch) {
    fm_mask_shape other = t->shape, shape = t->shape;
    *(over_batch ? &other.batch : &other.heads) = random_integer(random, 1, 3);
    *(over_batch ? &shape.batch : &shape.heads) += over_batch ? other.batch : other.heads;
    truth second;
    fm_mask *mask2 = draw_mask(random, other, &second), *result = NULL;
    truth expected = truth_make(shape);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        const int64_t b = plane / shape.heads, h = plane % shape.heads;
        const bool is_second = over_batch ? b >= t->shape.batch : h >= t->shape.heads;
        const int64_t from_b = is_second && over_batch ? b - t->shape.batch : b;
        const int64_t from_h = is_second && !over_batch ? h - t->shape.heads : h;
        const truth *from = is_second ? &second : t;
        copy_plane(from, from_b * from->shape.heads + from_h, &expected, plane);
    }
    const fm_mask *const both[] = {mask, mask2};
    assert_int_equal(over_batch ? fm_mask_stack_batch(both, 2, &result) : fm_mask_stack_heads(both, 2, &result), FM_OK);
    check_result(tally, &expected, result, fm_mask_has_fallback(mask) || fm_mask_has_fallback(mask2));
    fm_mask_free(mask2);
    truth_free(&second);
    truth_free(&expected);
}

static void algebra_equals_boolean_algebra_on_the_dense_truth(void **state) {
    (void)state;
    test_random random = {20};
    case_tally tally = {0};
    for (int i = 0; i < PAIRS; i++) {
        const int64_t batch = random_integer(&random, 1, 2), heads = random_integer(&random, 1, 3);
        const int64_t rows = draw_extent(&random), columns = draw_extent(&random);
        const fm_mask_shape sa = {random_chance(&random, 0.5) ? batch : 1, random_chance(&random, 0.5) ? heads : 1, rows,
                                  columns};
        const fm_mask_shape sb = {random_chance(&random, 0.5) ? batch : 1, random_chance(&random, 0.5) ? heads : 1, rows,
                                  columns};
        truth ta, tb;
        fm_mask *a = draw_mask(&random, sa, &ta), *b = draw_mask(&random, sb, &tb);
        tally.fallback_operands += fm_mask_has_fallback(a);
        truth_assert(&ta, a);
        check_combination(&tally, &ta, a, &tb, b, false);
        check_combination(&tally, &ta, a, &tb, b, true);
        check_shift(&tally, &random, &ta, a);
        check_slice(&tally, &random, &ta, a);
        check_slice_batch(&tally, &random, &ta, a);
        check_repeat(&tally, &random, &ta, a);
        check_stack(&tally, &random, &ta, a, random_chance(&random, 0.5));
        fm_mask_free(a);
        fm_mask_free(b);
        truth_free(&ta);
        truth_free(&tb);
    }
    assert_in_range(tally.fallback_operands, PAIRS / 20, PAIRS);
    assert_in_range(tally.fallback_results, PAIRS / 5, 8 * PAIRS);
    assert_in_range(tally.results_back_to_intervals, PAIRS / 20, 8 * PAIRS);
}

/* Bands of whole blocks of 128 rows, visible and hidden in turn, over groups of 64 columns or more; some rows between them. */
static truth draw_bands(test_random *random, int64_t rows, int64_t columns) {
    truth t = truth_make((fm_mask_shape){1, 1, rows, columns});
    for (int64_t c0 = 0, c1; c0 < columns; c0 = c1) {
        c1 = c0 + 64 * random_integer(random, 1, 3) + (random_chance(random, 0.2) ? random_integer(random, 0, 63) : 0);
        bool visible = random_chance(random, 0.5);
        for (int64_t r0 = 0, r1; r0 < rows; r0 = r1, visible = !visible) {
            r1 = r0 + 128 * random_integer(random, 1, random_chance(random, 0.1) ? 4 : 1) +
                 (random_chance(random, 0.1) ? random_integer(random, 0, 127) : 0);
            for (int64_t k = 0; visible && k < (r1 - r0) * (c1 - c0); k++) {
                uint8_t *pair = truth_at(&t, 0, 0, r0 + k / (c1 - c0), c0 + k % (c1 - c0));
                if (pair != NULL) {
                    *pair = 1;
                }
            }
        }
    }
    return t;
}

/* A displacement that keeps whole blocks together, half of the time. */
static int64_t draw_step(test_random *random, int64_t extent) {
    const int64_t step = random_integer(random, -extent, extent);
    return random_chance(random, 0.5) ? step / 128 * 128 : step;
}

static void algebra_on_whole_blocks_equals_the_dense_truth(void **state) {
    (void)state;
    test_random random = {21};
    case_tally tally = {0};
    for (int i = 0; i < 80; i++) {
        const int64_t rows = random_integer(&random, 1200, 1700), columns = random_integer(&random, 1, 300);
        truth ta = draw_bands(&random, rows, columns), tb = draw_bands(&random, rows, columns);
        fm_mask *a = truth_mask(&ta, NULL), *b = truth_mask(&tb, NULL), *moved = NULL;
        tally.fallback_operands += fm_mask_has_fallback(a);
        truth_assert(&ta, a);
        check_combination(&tally, &ta, a, &tb, b, false);
        check_combination(&tally, &ta, a, &tb, b, true);
        const int64_t down = draw_step(&random, rows / 2), right = draw_step(&random, columns);
        truth expected = displaced(&ta, ta.shape, -down, -right);
        assert_int_equal(fm_mask_shift(a, down, right, NULL, &moved), FM_OK);
        check_result(&tally, &expected, moved, fm_mask_has_fallback(a));
        truth_free(&expected);
        check_slice(&tally, &random, &ta, a);
        fm_mask_free(a);
        fm_mask_free(b);
        truth_free(&ta);
        truth_free(&tb);
    }
    assert_in_range(tally.fallback_operands, 60, 80);
    assert_in_range(tally.fallback_results, 100, 320);
}

static void shift_by_any_amount_is_clamped(void **state) {
    (void)state;
    static const int64_t amounts[] = {INT64_MIN, INT64_MIN + 1, -5, 5, INT64_MAX};
    fm_mask *mask = full_mask(1, 2, 5, 5);
    truth nothing = truth_make(fm_mask_get_shape(mask));
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++) {
        fm_mask *down = NULL, *right = NULL;
        assert_int_equal(fm_mask_shift(mask, amounts[i], 0, NULL, &down), FM_OK);
        assert_int_equal(fm_mask_shift(mask, 0, amounts[i], NULL, &right), FM_OK);
        truth_assert(&nothing, down);
        assert_true(fm_mask_equal(down, right));
        assert_int_equal(fm_mask_interval_count(down), 0);
        fm_mask_free(down);
        fm_mask_free(right);
    }
    truth_free(&nothing);
    fm_mask_free(mask);
}

static void results_of_zero_size_are_legal(void **state) {
    (void)state;
    fm_mask *mask = striped_mask(20, 7), *none = NULL, *both = NULL, *moved = NULL;
    assert_int_equal(fm_mask_slice(mask, 3, 3, 0, 7, NULL, &none), FM_OK);
    assert_int_equal(fm_mask_get_shape(none).rows, 0);
    assert_int_equal(fm_mask_and(none, none, NULL, &both), FM_OK);
    assert_true(fm_mask_equal(none, both));
    assert_int_equal(fm_mask_shift(none, 1, 1, NULL, &moved), FM_OK);
    assert_true(fm_mask_equal(none, moved));
    fm_mask_free(none);
    fm_mask_free(both);
    fm_mask_free(moved);
    assert_int_equal(fm_mask_slice(mask, 0, 20, 7, 7, NULL, &none), FM_OK);
    assert_int_equal(fm_mask_get_shape(none).columns, 0);
    assert_int_equal(fm_mask_bytes(none), 0);
    assert_int_equal(fm_mask_or(none, none, NULL, &both), FM_OK);
    assert_true(fm_mask_equal(none, both));
    fm_mask_free(none);
    fm_mask_free(both);
    fm_mask_free(mask);
}

static void an_intersection_needs_no_more_memory_than_its_widest_column(void **state) {
    (void)state;
    fm_mask *a = full_mask(1, 1, 50, 1000), *b = NULL, *both = NULL, *either = NULL;
    assert_int_equal(fm_mask_shift(a, 10, 0, NULL, &b), FM_OK);
    assert_int_equal(fm_mask_and(a, b, NULL, &both), FM_OK);
    assert_int_equal(fm_mask_or(a, b, NULL, &either), FM_OK);
    assert_true(fm_mask_equal(both, b));
    assert_true(fm_mask_equal(either, a));
    assert_int_equal(fm_mask_bytes(both), 8 * 1000);
    assert_int_equal(fm_mask_bytes(either), 8 * 1000);
    fm_mask_free(a);
    fm_mask_free(b);
    fm_mask_free(both);
    fm_mask_free(either);
}

static int64_t pairs_of(const fm_mask *mask) {
    int64_t pairs = -1;
    assert_int_equal(fm_mask_visible_pairs(mask, &pairs), FM_OK);
    return pairs;
}

/* https://github.com/alexzhang13/flashattention2-custom-mask/issues/2: batch x heads x rows x columns past 2^31 */
static void pairs_past_two_to_the_31_are_counted(void **state) {
    (void)state;
    enum { BATCH = 8, HEADS = 28, LENGTH = 4096 };
    fm_mask *one = NULL, *heads = NULL, *all = NULL;
    assert_int_equal(fm_mask_causal(LENGTH, LENGTH, &one), FM_OK);
    const fm_mask *items[BATCH];
    assert_int_equal(fm_mask_repeat_heads(one, HEADS, &heads), FM_OK);
    for (int b = 0; b < BATCH; b++) {
        items[b] = heads;
    }
    assert_int_equal(fm_mask_stack_batch(items, BATCH, &all), FM_OK);
    assert_int_equal(pairs_of(all), INT64_C(1) * BATCH * HEADS * LENGTH * (LENGTH + 1) / 2);
    assert_int_equal(fm_mask_bytes(all), INT64_C(8) * BATCH * HEADS * LENGTH);
    fm_mask_free(one);
    fm_mask_free(heads);
    fm_mask_free(all);
}

/* https://github.com/pytorch/pytorch/issues/152297: the last batch of an epoch is smaller and takes its part of the mask. */
static void a_smaller_last_batch_takes_a_part_of_the_mask(void **state) {
    (void)state;
    fm_mask *items[] = {comb_mask(300, 200, 7, 50), full_mask(1, 1, 300, 200), comb_mask(300, 200, 150, 3)};
    fm_mask *all = NULL, *last = NULL, *expected = NULL;
    assert_int_equal(fm_mask_stack_batch((const fm_mask *const *)items, 3, &all), FM_OK);
    assert_int_equal(fm_mask_stack_batch((const fm_mask *const *)items + 1, 2, &expected), FM_OK);
    assert_int_equal(fm_mask_slice_batch(all, 1, 3, &last), FM_OK);
    assert_true(fm_mask_equal(last, expected));
    assert_true(fm_mask_has_fallback(all));
    assert_false(fm_mask_has_fallback(last));
    for (int64_t b = 0; b < 3; b++) {
        fm_mask *item = NULL;
        assert_int_equal(fm_mask_slice_batch(all, b, b + 1, &item), FM_OK);
        assert_true(fm_mask_equal(item, items[b]));
        fm_mask_free(item);
        fm_mask_free(items[b]);
    }
    fm_mask_free(all);
    fm_mask_free(last);
    fm_mask_free(expected);
}

/* https://github.com/sgl-project/SpecForge/issues/452: a mask for all heads is stored once */
static void masks_of_one_head_stay_one(void **state) {
    (void)state;
    fm_mask *a = full_mask(3, 1, 6, 500), *b = full_mask(1, 1, 6, 500), *both = NULL;
    assert_int_equal(fm_mask_and(a, b, NULL, &both), FM_OK);
    assert_int_equal(fm_mask_get_shape(both).heads, 1);
    assert_int_equal(fm_mask_bytes(both), 8 * 3 * 500);
    fm_mask_free(a);
    fm_mask_free(b);
    fm_mask_free(both);
}

/* Causal and the same moved down by `window` rows: their difference is a sliding window. N = 1,048,576 keys. */
static void a_million_keys_take_bytes_in_proportion(void **state) {
    (void)state;
    const int64_t N = 1 << 20, window = 4096, moved = (N - window) * (N - window + 1) / 2;
    fm_mask *causal = NULL, *later = NULL, *both = NULL, *either = NULL, *part = NULL;
    assert_int_equal(fm_mask_causal(N, N, &causal), FM_OK);
    const double start = (double)clock() / CLOCKS_PER_SEC;
    assert_int_equal(fm_mask_shift(causal, window, 0, NULL, &later), FM_OK);
    assert_int_equal(fm_mask_and(causal, later, NULL, &both), FM_OK);
    assert_int_equal(fm_mask_or(causal, later, NULL, &either), FM_OK);
    assert_int_equal(fm_mask_slice(causal, window, N, 0, N - window, NULL, &part), FM_OK);
    print_message("shift, and, or, slice of 1M keys: %.3f s\n", (double)clock() / CLOCKS_PER_SEC - start);
    assert_int_equal(pairs_of(later), moved);
    assert_true(fm_mask_equal(both, later));
    assert_true(fm_mask_equal(either, causal));
    assert_int_equal(pairs_of(part), moved + (N - window) * window - window * (window + 1) / 2);
    assert_int_equal(fm_mask_bytes(both), 8 * N);
    assert_int_equal(fm_mask_bytes(either), 8 * N);
    fm_mask_free(causal);
    fm_mask_free(later);
    fm_mask_free(both);
    fm_mask_free(either);
    fm_mask_free(part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(algebra_equals_boolean_algebra_on_the_dense_truth),
        cmocka_unit_test(algebra_on_whole_blocks_equals_the_dense_truth),
        cmocka_unit_test(shift_by_any_amount_is_clamped),
        cmocka_unit_test(results_of_zero_size_are_legal),
        cmocka_unit_test(an_intersection_needs_no_more_memory_than_its_widest_column),
        cmocka_unit_test(pairs_past_two_to_the_31_are_counted),
        cmocka_unit_test(a_smaller_last_batch_takes_a_part_of_the_mask),
        cmocka_unit_test(masks_of_one_head_stay_one),
        cmocka_unit_test(a_million_keys_take_bytes_in_proportion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

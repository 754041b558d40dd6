/* Small shapes that kernels get wrong: edges of tiles, groups of heads, one row, nothing at all, many batch items, masks of their own
 * for items and heads, bitmaps. Each in every way of device_case.h, against the oracle. */
#include "device_case.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random_mask.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <stdlib.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* With a random mask of this many intervals a key, in `batch` items and `heads` heads. */
static void assert_masked(attention_case c, int32_t intervals, int64_t batch, int64_t heads, test_random *random) {
    c.mask = random_mask(random, (fm_mask_shape){batch, heads, c.rows, c.columns}, intervals, NULL);
    device_assert_case(&c, random);
    fm_mask_free((fm_mask *)c.mask);
}

static void lengths_around_the_tile_and_every_count_of_intervals(void **state) {
    (void)state;
    static const int64_t lengths[] = {63, 65, 127, 129, 191, 255, 257, 385};
    test_random random = {1};
    for (int i = 0; i < COUNT(lengths); i++) {
        for (int32_t intervals = 1; intervals <= FM_MAX_INTERVALS; intervals++) {
            attention_case c = device_half_case(1, lengths[i], lengths[(i + intervals) % COUNT(lengths)], 2, 1, 64);
            c.dtype = intervals % 2 == 0 ? FM_F16 : FM_BF16;
            assert_masked(c, intervals, 1, 1, &random);
        }
    }
}

/* Bounds on a tile's edge and one beside it decide whether a tile is skipped, partial or full.
 * https://github.com/pytorch/pytorch/issues/141126 */
static void bounds_on_and_beside_the_edges_of_tiles(void **state) {
    (void)state;
    enum { LENGTH = 400, EDGES = 12 };
    static const int32_t edges[EDGES] = {0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257, LENGTH};
    test_random random = {2};
    for (int i = 0; i < 24; i++) {
        fm_interval v[LENGTH];
        for (int j = 0; j < LENGTH; j++) {
            const int32_t a = edges[random_integer(&random, 0, EDGES - 1)], b = edges[random_integer(&random, 0, EDGES - 1)];
            const bool again = j > 0 && !random_chance(&random, 0.03);
            v[j] = again ? v[j - 1] : (fm_interval){a < b ? a : b, a < b ? b : a};
        }
        attention_case c = device_half_case(1, LENGTH, LENGTH, 1, 1, i % 2 == 0 ? 64 : 128);
        succeed(fm_mask_from_intervals((fm_mask_shape){1, 1, LENGTH, LENGTH}, 1, v, (fm_mask **)&c.mask));
        device_assert_case(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Lines of a group that see some tiles together, some alone, with gaps between: every class of each half of a pair. */
static void adjacent_lines_that_see_unlike_tiles(void **state) {
    (void)state;
    static const int64_t dims[] = {64, 96, 128, 192, 256};
    test_random random = {10};
    for (int i = 0; i < 2 * COUNT(dims); i++) {
        attention_case c = device_half_case(1, 450 + i, 1300 - 3 * i, 2, 1, dims[i % COUNT(dims)]);
        c.dtype = i < COUNT(dims) ? FM_BF16 : FM_F16;
        c.mask = device_blocks(&random, c.rows, c.columns, 0.2 + 0.06 * i);
        c.causal = i % 3 == 2;
        device_assert_case(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* https://github.com/pytorch/pytorch/issues/143117 */
static void any_ratio_of_heads_with_masks_per_key_head(void **state) {
    (void)state;
    static const int64_t heads[][2] = {{6, 1}, {12, 2}, {28, 4}, {9, 3}, {5, 5}, {33, 11}, {7, 1}};
    test_random random = {3};
    for (int i = 0; i < COUNT(heads); i++) {
        const int64_t mask_heads = i % 3 == 0 ? heads[i][0] : i % 3 == 1 ? heads[i][1] : 1;
        assert_masked(device_half_case(2, 150, 201, heads[i][0], heads[i][1], 64), 2, 2, mask_heads, &random);
    }
}

static void masks_of_their_own_for_many_items_and_heads(void **state) {
    (void)state;
    test_random random = {4};
    assert_masked(device_half_case(37, 70, 90, 6, 3, 32), 4, 37, 6, &random);
    assert_masked(device_half_case(3, 140, 130, 120, 40, 16), 1, 3, 40, &random);
}

/* Above 65535, the most blocks of a grid's second and third extents. */
static void seventy_thousand_items_and_seventy_thousand_heads(void **state) {
    (void)state;
    test_random random = {5};
    assert_masked(device_half_case(70001, 5, 6, 1, 1, 8), 1, 1, 1, &random);
    assert_masked(device_half_case(1, 3, 5, 70001, 70001, 8), 1, 1, 1, &random);
    assert_masked(device_half_case(9001, 3, 5, 8, 2, 8), 1, 9001, 2, &random);
}

static void one_row_and_one_key(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 5, 63, 64, 65, 1000, 4097};
    test_random random = {6};
    for (int i = 0; i < COUNT(lengths); i++) {
        attention_case row = device_half_case(3, 1, lengths[i], 8, 2, 128), key = device_half_case(3, lengths[i], 1, 8, 2, 128);
        device_assert_case(&row, &random);
        device_assert_case(&key, &random);
        row.causal = key.causal = true;
        device_assert_case(&row, &random);
        device_assert_case(&key, &random);
        assert_masked(device_half_case(3, 1, lengths[i], 4, 4, 64), 1, 3, 4, &random);
    }
}

/* The keys of a group of rows are split among blocks; some splits see nothing, or nobody. */
static void few_rows_beside_long_keys(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 2048, 1, 1},   {1, 33001, 3, 1},  {7, 2049, 8, 2},  {64, 4100, 4, 2},
                                        {130, 2600, 4, 4}, {300, 2300, 2, 1}, {500, 2100, 1, 1}};
    static const int64_t dims[] = {128, 64, 96, 192, 256};
    test_random random = {13};
    for (int i = 0; i < 2 * COUNT(shapes); i++) {
        const int64_t *n = shapes[i % COUNT(shapes)];
        attention_case c = device_half_case(1 + i % 2, n[0], n[1], n[2], n[3], dims[i % COUNT(dims)]);
        c.dtype = i % 3 == 0 ? FM_F16 : FM_BF16;
        c.with_sinks = i % 2 == 0;
        c.with_grad_lse = i % 3 == 1;
        c.softcap = i % 4 == 3 ? 3.0f : 0.0f;
        c.f32_results = i % 5 == 4;
        c.causal = i % 4 == 1;
        assert_masked(c, 1 + i % 6, 1 + i % 2, i % 4 == 0 ? n[3] : 1, &random);
    }
    attention_case window = device_half_case(1, 5, 9000, 4, 1, 128); /* keys at the end alone */
    window.causal = true;
    window.window_left = 100;
    device_assert_case(&window, &random);
}

/* Every result is written: zeros, and lse -inf for rows without keys. */
static void nothing_at_all(void **state) {
    (void)state;
    static const int64_t extents[][5] = {{0, 7, 9, 2, 1}, {2, 0, 9, 2, 1}, {2, 7, 0, 2, 1}, {2, 7, 9, 0, 0}, {0, 0, 0, 0, 0}};
    test_random random = {7};
    for (int i = 0; i < COUNT(extents); i++) {
        const int64_t *n = extents[i];
        attention_case c = device_half_case(n[0], n[1], n[2], n[3], n[4], 64);
        c.with_sinks = c.with_grad_lse = true;
        attention_inputs in = attention_inputs_make(&c, &random);
        for (int way = 0; way < DEVICE_WAYS; way++) {
            attention_results r = device_run_way(&c, &in, way);
            for (int k = 0; k < RESULT_COUNT; k++) {
                const test_tensor *t = result_at(&r, k);
                assert_true(test_tensor_distance(t, t) == 0.0 && test_tensor_largest(t) == 0.0);
            }
            if (n[2] == 0 && n[0] * n[1] * n[3] > 0) {
                assert_empty_rows(&c, &r, 0, 0, c.rows);
            }
            attention_results_free(&r);
        }
        attention_inputs_free(&in);
    }
}

static void nothing_visible_and_rows_that_see_nothing(void **state) {
    (void)state;
    test_random random = {8};
    for (int i = 0; i < 4; i++) {
        attention_case c = device_half_case(2, 200, 300, 4, 2, i % 2 == 0 ? 64 : 192);
        c.with_sinks = c.with_grad_lse = i >= 2;
        assert_masked(c, i % 2, 1, 1, &random);
        c.rows = 300;
        c.columns = 100;
        c.causal = true; /* the first 200 rows see nothing */
        device_assert_case(&c, &random);
    }
}

static void bitmaps_of_many_intervals(void **state) {
    (void)state;
    test_random random = {9};
    for (int32_t i = 0; i < 6; i++) {
        attention_case c = device_half_case(2, 300 + 61 * i, 257 + 64 * i, 4, 2, i % 2 == 0 ? 64 : 128);
        c.causal = i % 3 == 2;
        assert_masked(c, 5 + 2 * i, i % 2 == 0 ? 1 : 2, i < 3 ? 1 : 2, &random);
    }
}

/* Rows of every residue that sees keys of the same: bitmaps all over. https://github.com/pytorch/pytorch/issues/158212 */
static void every_fourth_key(void **state) {
    (void)state;
    enum { LENGTH = 272 };
    test_random random = {10};
    uint8_t *visible = calloc(LENGTH * LENGTH, 1);
    assert_non_null(visible);
    for (int i = 0; i < LENGTH; i++) {
        for (int j = 0; j <= i; j++) {
            visible[i * LENGTH + j] = i % 4 == j % 4;
        }
    }
    attention_case c = device_half_case(1, LENGTH, LENGTH, 2, 2, 64);
    succeed(fm_mask_from_dense((fm_mask_shape){1, 1, LENGTH, LENGTH}, visible, NULL, (fm_mask **)&c.mask));
    assert_true(fm_mask_has_fallback(c.mask));
    device_assert_case(&c, &random);
    fm_mask_free((fm_mask *)c.mask);
    free(visible);
}

/* https://github.com/Dao-AILab/flash-attention/issues/2492, https://github.com/unslothai/unsloth/issues/4036 */
static void every_head_dim_forward_and_backward(void **state) {
    (void)state;
    test_random random = {11};
    for (int64_t dim = 8; dim <= FM_TEST_MOST_HEAD_DIM; dim += 8) {
        attention_case c = device_half_case(1, 130, 130, 2, 1, dim);
        c.dtype = dim % 16 == 0 ? FM_BF16 : FM_F16;
        c.causal = true;
        device_assert_case(&c, &random);
    }
    static const int64_t unlike[][2] = {{192, 128}, {136, 8}, {176, 96}, {64, 256}, {256, 64}, {8, 256}, {96, 72}};
    for (int i = 0; i < COUNT(unlike); i++) {
        attention_case c = device_half_case(2, 130, 140, 4, 2, unlike[i][0]);
        c.head_dim_v = device_head_dim(unlike[i][1]);
        assert_masked(c, 2, 1, 1, &random);
    }
}

/* Kernels may keep the base that the first keys of a row give it: here later ones weigh 2^40 times as much, and overflow. */
static void scores_that_rise_far_above_those_of_the_first_keys(void **state) {
    (void)state;
    static const int64_t dims[] = {64, 128, 72, 96, 192, 256};
    test_random random = {16};
    for (int i = 0; i < 12; i++) {
        attention_case c = device_half_case(1, 190 + 13 * i, 400 + 37 * i, 4, 2, dims[i % 6]);
        c.dtype = i < 10 ? FM_BF16 : FM_F16;
        c.scale = (i % 4 == 3 ? -1.0f : 1.0f) * (float)(1 << i / 3);
        c.softcap = i % 5 == 4 ? 300.0f : 0.0f;
        c.causal = i % 2 == 1;
        c.mask = i % 3 == 0 ? NULL : random_mask(&random, (fm_mask_shape){1, 2, c.rows, c.columns}, i % 7 + 1, NULL);
        attention_inputs in = attention_inputs_make(&c, &random), wide = attention_inputs_widen(&c, &in);
        const attention_run_options reference = {.backend = FM_BACKEND_REFERENCE};
        attention_results oracle = attention_run(&c, &wide, reference), plain = attention_run(&c, &in, reference);
        for (int way = 0; way < DEVICE_WAYS; way++) {
            attention_results ours = device_run_way(&c, &in, way);
            attention_assert_result_close(&c, &ours, &plain, &oracle, RESULT_OUTPUT);
            attention_assert_result_close(&c, &ours, &plain, &oracle, RESULT_LSE);
            attention_results_free(&ours);
        }
        attention_results_free(&oracle);
        attention_results_free(&plain);
        attention_inputs_free(&in);
        attention_inputs_free(&wide);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Any subset of the gradients has the bits of the whole; the others stay as they were. */
static void gradients_that_are_not_wanted_are_left_out(void **state) {
    (void)state;
    test_random random = {12};
    attention_case c = device_half_case(2, 100, 170, 4, 2, 64);
    c.causal = c.with_sinks = true;
    attention_inputs in = attention_inputs_make(&c, &random);
    const device_options options = {.deterministic = true};
    attention_results all = device_run(&c, &in, options);
    for (int wanted = 0; wanted < 16; wanted++) {
        device_call x = device_call_make(&c, &in, options);
        x.backward.grad_query.data = wanted & 1 ? x.backward.grad_query.data : NULL;
        x.backward.grad_key = wanted & 2 ? x.backward.grad_key : (fm_tensor){0};
        x.backward.grad_value.data = wanted & 4 ? x.backward.grad_value.data : NULL;
        x.backward.grad_sinks = wanted & 8 ? x.backward.grad_sinks : NULL;
        device_call_launch(&x);
        attention_results some = device_call_finish(&x);
        for (int i = RESULT_GRAD_QUERY; i < RESULT_COUNT; i++) {
            const bool is_wanted = (wanted >> (i - RESULT_GRAD_QUERY) & 1) != 0;
            const unsigned char *bytes = result_at(&some, i)->buffer;
            assert_true(is_wanted ? test_tensor_same(result_at(&some, i), result_at(&all, i))
                                  : bytes[0] == 0xff && bytes[1] == 0xff);
        }
        attention_results_free(&some);
    }
    attention_results_free(&all);
    attention_inputs_free(&in);
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_around_the_tile_and_every_count_of_intervals),
        cmocka_unit_test(bounds_on_and_beside_the_edges_of_tiles),
        cmocka_unit_test(adjacent_lines_that_see_unlike_tiles),
        cmocka_unit_test(scores_that_rise_far_above_those_of_the_first_keys),
        cmocka_unit_test(any_ratio_of_heads_with_masks_per_key_head),
        cmocka_unit_test(masks_of_their_own_for_many_items_and_heads),
        cmocka_unit_test(seventy_thousand_items_and_seventy_thousand_heads),
        cmocka_unit_test(one_row_and_one_key),
        cmocka_unit_test(few_rows_beside_long_keys),
        cmocka_unit_test(nothing_at_all),
        cmocka_unit_test(nothing_visible_and_rows_that_see_nothing),
        cmocka_unit_test(bitmaps_of_many_intervals),
        cmocka_unit_test(every_fourth_key),
        cmocka_unit_test(every_head_dim_forward_and_backward),
        cmocka_unit_test(gradients_that_are_not_wanted_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

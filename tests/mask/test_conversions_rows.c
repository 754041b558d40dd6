/* Row ranges and dense matrices, both ways. */
#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/random_mask.h"
#include "support/truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 10000, MOST = 40, MOST_PAIRS = 3 * 3 * MOST * MOST, MOST_RANGES = 7, MOST_VALUES = 3 * 3 * MOST * MOST_RANGES };

static fm_mask_shape random_shape(test_random *r, int64_t most) {
    return (fm_mask_shape){random_integer(r, 1, 3), random_integer(r, 1, 3), random_integer(r, 1, most),
                           random_integer(r, 1, most)};
}

/* Most rows repeat the one above, as in real masks; some keys need more than 4 row intervals. */
static void row_ranges_are_exact_and_round_trip(void **state) {
    static uint8_t visible[MOST_PAIRS];
    static int32_t start[MOST_VALUES], end[MOST_VALUES];
    test_random r = {500};
    int with_fallback = 0;
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const fm_mask_shape s = random_shape(&r, MOST);
        const int32_t ranges = (int32_t)random_integer(&r, 0, MOST_RANGES);
        const int64_t count = s.batch * s.heads * ranges * s.rows;
        memset(visible, 0, sizeof visible);
        for (int64_t k = 0; k < count; k++) {
            const int64_t plane = k / s.rows / ranges, row = k % s.rows, first = random_integer(&r, 0, s.columns);
            const bool repeat = row > 0 && random_chance(&r, 0.6);
            start[k] = repeat ? start[k - 1] : (int32_t)first;
            end[k] = repeat ? end[k - 1] : (int32_t)random_integer(&r, first, s.columns);
            memset(visible + (plane * s.rows + row) * s.columns + start[k], 1, (size_t)(end[k] - start[k]));
        }
        fm_mask *mask = NULL, *again = NULL;
        succeed(fm_mask_from_row_ranges(s, ranges, start, end, NULL, &mask));
        assert_conversion(mask, s, visible);
        with_fallback += fm_mask_has_fallback(mask);
        succeed(fm_mask_to_row_ranges(mask, ranges, start, end, count));
        succeed(fm_mask_from_row_ranges(s, ranges, start, end, NULL, &again));
        assert_true(fm_mask_equal(mask, again));
        fm_mask_free(mask);
        fm_mask_free(again);
    }
    assert_true(with_fallback > 500);
}

/* Through the widest row ranges that any mask can need, and back. */
static void assert_row_ranges_come_back(const fm_mask *mask) {
    const fm_mask_shape s = fm_mask_get_shape(mask);
    const int32_t ranges = (int32_t)(s.columns + 1) / 2;
    const int64_t count = s.batch * s.heads * ranges * s.rows;
    int32_t *start = malloc((size_t)count * sizeof *start), *end = malloc((size_t)count * sizeof *end);
    fm_mask *again = NULL;
    assert_non_null(start);
    assert_non_null(end);
    succeed(fm_mask_to_row_ranges(mask, ranges, start, end, count));
    succeed(fm_mask_from_row_ranges(s, ranges, start, end, NULL, &again));
    assert_true(fm_mask_equal(mask, again));
    fm_mask_free(again);
    free(start);
    free(end);
}

/* Interval masks and bitmap masks alike, on both sides of stripe edges. */
static void any_mask_equals_its_dense_matrix_and_its_rows(void **state) {
    enum { LENGTH = 300 };
    static uint8_t visible[2 * 2 * LENGTH * LENGTH];
    test_random r = {600};
    int with_fallback = 0;
    (void)state;
    for (int draw = 0; draw < 240; draw++) {
        const fm_mask_shape s = {random_integer(&r, 1, 2), random_integer(&r, 1, 2), random_integer(&r, 1, LENGTH),
                                 random_integer(&r, 1, LENGTH)};
        fm_mask *mask = random_mask(&r, s, draw % 2 == 0 ? FM_MAX_INTERVALS : 16, visible);
        if (draw % 3 == 0) { /* intervals of a few rows: bitmaps wherever they reach */
            truth noise = truth_random(&r, s, 0.5);
            for (int64_t i = 0; i < truth_pairs(s); i++) {
                visible[i] |= i % s.columns >= s.columns / 2 && noise.visible[i];
            }
            truth_free(&noise);
            fm_mask_free(mask);
            mask = truth_mask(&(truth){s, visible}, NULL);
        }
        with_fallback += fm_mask_has_fallback(mask);
        assert_conversion(mask, s, visible);
        assert_row_ranges_come_back(mask);
        fm_mask_free(mask);
    }
    assert_true(with_fallback > 80 && with_fallback < 200);
}

/* More bitmap stripes than are drawn together, some with interval stripes between them, and more than one slab of a dense
 * matrix. */
static void wide_masks_come_back(void **state) {
    const fm_mask_shape s = {1, 1, 21, 9100};
    test_random r = {650};
    (void)state;
    for (int draw = 0; draw < 4; draw++) {
        truth t = truth_make(s);
        for (int64_t i = 0; i < truth_pairs(s); i++) {
            const int64_t row = i / s.columns, stripe = i % s.columns / 128;
            t.visible[i] = stripe % 7 < 4 ? row % 2 == 0 && random_chance(&r, 0.9) : row > stripe % 20;
        }
        fm_mask *mask = truth_mask(&t, NULL);
        assert_true(fm_mask_has_fallback(mask));
        assert_conversion(mask, s, t.visible);
        assert_row_ranges_come_back(mask);
        fm_mask_free(mask);
        truth_free(&t);
    }
}

static void ten_thousand_dense_matrices_come_back(void **state) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {700};
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const fm_mask_shape s = random_shape(&r, MOST);
        const double density = random_chance(&r, 0.5) ? 0.5 : 0.05;
        fm_mask *mask = NULL;
        uint8_t *raw = calloc(MOST_PAIRS, 1);
        assert_non_null(raw);
        for (int64_t i = 0; i < s.batch * s.heads * s.rows * s.columns; i++) { /* any nonzero byte is visible */
            raw[i] = random_chance(&r, density) ? (uint8_t)random_integer(&r, 1, 255) : 0;
            visible[i] = raw[i] != 0;
        }
        succeed(fm_mask_from_dense(s, raw, NULL, &mask));
        free(raw);
        assert_conversion(mask, s, visible);
        fm_mask_free(mask);
    }
}

/* The ranges of a row are counted from the truth: accepted iff every row has few enough, and then minimal and ascending. */
static void row_ranges_are_refused_only_where_a_row_has_more(void **state) {
    static uint8_t visible[MOST_PAIRS];
    static int32_t start[MOST_VALUES], end[MOST_VALUES];
    test_random r = {800};
    int refused = 0;
    (void)state;
    for (int draw = 0; draw < 3000; draw++) {
        const fm_mask_shape s = random_shape(&r, MOST);
        const int32_t ranges = (int32_t)random_integer(&r, 0, MOST_RANGES);
        fm_mask *mask = random_mask(&r, s, (int32_t)random_integer(&r, 0, 6), visible);
        int64_t first_misfit = -1;
        for (int64_t row = 0; row < s.batch * s.heads * s.rows && first_misfit < 0; row++) {
            int64_t runs = 0;
            for (int64_t j = 0; j < s.columns; j++) {
                runs += visible[row * s.columns + j] && (j == 0 || !visible[row * s.columns + j - 1]);
            }
            first_misfit = runs > ranges ? row % s.rows : -1;
        }
        memset(start, 0x5a, sizeof start);
        const fm_status status = fm_mask_to_row_ranges(mask, ranges, start, end, s.batch * s.heads * ranges * s.rows);
        if (first_misfit < 0) {
            assert_int_equal(status, FM_OK);
        } else {
            char text[40];
            (void)snprintf(text, sizeof text, "row %d (", (int)first_misfit);
            refuse(status, FM_ERROR_CANNOT_EXPRESS, text);
            assert_int_equal(start[0], 0x5a5a5a5a);
            refused++;
        }
        fm_mask_free(mask);
    }
    assert_true(refused > 300 && refused < 2700);
}

/* https://github.com/SandAI-org/MagiAttention/issues/147 */
static void ranges_outside_the_keys_are_refused(void **state) {
    const fm_mask_shape s = {1, 1, 2, 5};
    const int32_t bad[][2] = {{3, 2}, {-1, 2}, {0, 6}, {INT32_MIN, INT32_MAX}, {INT32_MAX, INT32_MIN}, {6, 6}};
    fm_mask *mask = NULL;
    (void)state;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        const int32_t start[2] = {0, bad[k][0]}, end[2] = {5, bad[k][1]};
        refuse(fm_mask_from_row_ranges(s, 1, start, end, NULL, &mask), FM_ERROR_ARGUMENT, "range 0 of row 1");
    }
    const int32_t zero[2] = {0, 0};
    refuse(fm_mask_from_row_ranges(s, -1, zero, zero, NULL, &mask), FM_ERROR_ARGUMENT, "ranges: is -1");
    refuse(fm_mask_from_row_ranges(s, 1, zero, NULL, NULL, &mask), FM_ERROR_ARGUMENT, "end: is NULL");
    refuse(fm_mask_from_row_ranges((fm_mask_shape){2147483647, 1, 2147483647, 0}, 2147483647, zero, zero, NULL, &mask),
           FM_ERROR_LIMIT, "start");
    assert_null(mask);
}

/* https://github.com/flashinfer-ai/flashinfer/issues/3176 */
static void room_is_checked_before_anything_is_written(void **state) {
    const fm_mask_shape s = {1, 1, 10, 20};
    uint8_t dense[200];
    int32_t start[20], end[20];
    fm_mask *mask = NULL;
    (void)state;
    memset(dense, 1, sizeof dense);
    succeed(fm_mask_from_dense(s, dense, NULL, &mask));
    memset(dense, 7, sizeof dense);
    refuse(fm_mask_to_dense(mask, dense, 150), FM_ERROR_ARGUMENT, "capacity: is 150, visible needs 200");
    assert_int_equal(dense[0], 7);
    refuse(fm_mask_to_row_ranges(mask, 2, start, end, 19), FM_ERROR_ARGUMENT, "capacity: is 19");
    refuse(fm_mask_to_row_ranges(mask, 2, start, NULL, 20), FM_ERROR_ARGUMENT, "end: is NULL");
    refuse(fm_mask_to_dense(mask, NULL, 200), FM_ERROR_ARGUMENT, "visible: is NULL");
    refuse(fm_mask_to_dense(NULL, dense, 200), FM_ERROR_ARGUMENT, "mask");
    refuse(fm_mask_from_dense(s, NULL, NULL, &mask), FM_ERROR_ARGUMENT, "visible: is NULL");
    succeed(fm_mask_to_row_ranges(mask, 2, start, end, 20));
    assert_int_equal(end[9], 20);
    assert_int_equal(start[10], 20); /* an unused range is [Sk, Sk) */
    fm_mask_free(mask);
}

static void a_dense_matrix_past_4_gib_is_refused(void **state) {
    const fm_mask_shape s = {1, 1, 65537, 65537};
    uint8_t byte = 7;
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_from_intervals(s, 0, NULL, &mask));
    refuse(fm_mask_to_dense(mask, &byte, INT64_MAX), FM_ERROR_LIMIT, "4295098369 bytes");
    assert_int_equal(byte, 7);
    fm_mask_free(mask);
}

static void the_fallback_limit_is_kept(void **state) {
    const fm_mask_shape s = {1, 1, 40, 3};
    uint8_t dense[120];
    int32_t start[80], end[80];
    fm_mask_options options = FM_MASK_OPTIONS_INIT;
    fm_mask *mask = NULL;
    (void)state;
    for (int i = 0; i < 120; i++) {
        dense[i] = (i / 3) % 2 == 0 && i % 3 == 1; /* column 1 in every second row */
    }
    for (int i = 0; i < 40; i++) {
        start[i] = 1;
        end[i] = 1 + (i % 2 == 0);
    }
    options.fallback_limit = 100;
    refuse(fm_mask_from_dense(s, dense, &options, &mask), FM_ERROR_LIMIT, "the limit is 100");
    refuse(fm_mask_from_row_ranges(s, 1, start, end, &options, &mask), FM_ERROR_LIMIT, "the limit is 100");
    assert_null(mask);
    options.fallback_limit = 4096;
    succeed(fm_mask_from_row_ranges(s, 1, start, end, &options, &mask));
    assert_conversion(mask, s, dense);
    fm_mask_free(mask);
}

static void zero_sizes_and_one_are_legal(void **state) {
    const int32_t zero = 0, one = 1;
    const uint8_t yes = 1;
    int32_t start = 7, end = 7;
    (void)state;
    for (int64_t rows = 0; rows <= 1; rows++) {
        for (int64_t columns = 0; columns <= 1; columns++) {
            const fm_mask_shape s = {1, 1, rows, columns};
            fm_mask *mask = NULL;
            succeed(fm_mask_from_dense(s, rows * columns > 0 ? &yes : NULL, NULL, &mask));
            assert_conversion(mask, s, &yes);
            succeed(fm_mask_to_row_ranges(mask, 1, &start, &end, rows));
            fm_mask_free(mask);
            succeed(fm_mask_from_row_ranges(s, 1, &zero, columns > 0 ? &one : &zero, NULL, &mask));
            assert_conversion(mask, s, &yes);
            fm_mask_free(mask);
            succeed(fm_mask_from_row_ranges(s, 0, NULL, NULL, NULL, &mask));
            succeed(fm_mask_to_row_ranges(mask, 0, NULL, NULL, 0));
            assert_int_equal(fm_mask_interval_count(mask), 0);
            fm_mask_free(mask);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_ranges_are_exact_and_round_trip),
        cmocka_unit_test(any_mask_equals_its_dense_matrix_and_its_rows),
        cmocka_unit_test(wide_masks_come_back),
        cmocka_unit_test(ten_thousand_dense_matrices_come_back),
        cmocka_unit_test(row_ranges_are_refused_only_where_a_row_has_more),
        cmocka_unit_test(ranges_outside_the_keys_are_refused),
        cmocka_unit_test(room_is_checked_before_anything_is_written),
        cmocka_unit_test(a_dense_matrix_past_4_gib_is_refused),
        cmocka_unit_test(the_fallback_limit_is_kept),
        cmocka_unit_test(zero_sizes_and_one_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

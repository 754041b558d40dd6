/* startend_row_indices, FMS/FME and intervals, both ways, against dense truths built by their definitions. */
#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/random_mask.h"
#include "support/truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 10000, MOST = 40, MOST_PAIRS = 3 * 3 * MOST * MOST, MOST_VALUES = 3 * 3 * MOST * 4 };

typedef struct form {
    int32_t vectors;
    bool causal;
} form;
static const form forms[] = {{1, true}, {2, true}, {2, false}, {4, false}};

static fm_mask_shape random_shape(test_random *r) {
    return (fm_mask_shape){random_integer(r, 1, 3), random_integer(r, 1, 3), random_integer(r, 1, MOST),
                           random_integer(r, 1, MOST)};
}

/* Mostly row numbers and their neighbourhood, sometimes anything. */
static int32_t random_row(test_random *r, int64_t rows) {
    static const int32_t hostile[] = {INT32_MIN, INT32_MIN + 1, -3, INT32_MAX - 1, INT32_MAX};
    return random_chance(r, 0.05) ? hostile[random_integer(r, 0, 4)] : (int32_t)random_integer(r, -2, rows + 7);
}

/* The definition, read off the public table: masked half-open intervals, and the diagonal. */
static bool startend_hides(form f, const int32_t *v, int64_t row, int64_t column, fm_mask_shape shape) {
    if (f.causal && column > row + (shape.columns - shape.rows)) {
        return true;
    }
    if (f.causal && f.vectors == 1) {
        return row >= v[0];
    }
    if (f.causal) {
        return row >= v[0] && row < v[1];
    }
    if (f.vectors == 2) {
        return row >= v[0] || row < v[1];
    }
    return (row >= v[0] && row < v[1]) || (row >= v[2] && row < v[3]);
}

static void startend_truth(form f, fm_mask_shape s, const int32_t *v, uint8_t *visible) {
    for (int64_t p = 0; p < s.batch * s.heads; p++) {
        for (int64_t i = 0; i < s.rows; i++) {
            for (int64_t j = 0; j < s.columns; j++) {
                visible[(p * s.rows + i) * s.columns + j] = !startend_hides(f, v + (p * s.columns + j) * f.vectors, i, j, s);
            }
        }
    }
}

static void startend_form_round_trips(form f) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {100 + (uint64_t)f.vectors + f.causal};
    for (int draw = 0; draw < DRAWS; draw++) {
        const fm_mask_shape s = random_shape(&r);
        const int64_t count = s.batch * s.heads * s.columns * f.vectors;
        int32_t v[MOST_VALUES], back[MOST_VALUES];
        for (int64_t i = 0; i < count; i++) {
            v[i] = random_row(&r, s.rows);
        }
        fm_mask *mask = NULL, *again = NULL;
        succeed(fm_mask_from_startend_row_indices(s, f.vectors, f.causal, v, &mask));
        startend_truth(f, s, v, visible);
        assert_conversion(mask, s, visible);
        succeed(fm_mask_to_startend_row_indices(mask, f.vectors, f.causal, back, count));
        succeed(fm_mask_from_startend_row_indices(s, f.vectors, f.causal, back, &again));
        assert_true(fm_mask_equal(mask, again));
        for (int64_t i = 0; i < count; i++) { /* what we write, every kernel of that form can read */
            assert_in_range(back[i], 0, s.rows);
        }
        fm_mask_free(mask);
        fm_mask_free(again);
    }
}

static void causal_1_vector_is_exact_and_round_trips(void **state) {
    (void)state;
    startend_form_round_trips(forms[0]);
}
static void causal_2_vectors_are_exact_and_round_trip(void **state) {
    (void)state;
    startend_form_round_trips(forms[1]);
}
static void two_vectors_are_exact_and_round_trip(void **state) {
    (void)state;
    startend_form_round_trips(forms[2]);
}
static void four_vectors_are_exact_and_round_trip(void **state) {
    (void)state;
    startend_form_round_trips(forms[3]);
}

static void fms_fme_is_exact_and_round_trips(void **state) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {200};
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const fm_mask_shape s = random_shape(&r);
        const int32_t m = (int32_t)random_integer(&r, 1, FM_MAX_INTERVALS);
        const int64_t planes = s.batch * s.heads, count = planes * m * s.columns;
        int32_t fms[MOST_VALUES], fme[MOST_VALUES];
        memset(visible, 0, sizeof visible);
        for (int64_t k = 0; k < count; k++) {
            fms[k] = random_row(&r, s.rows);
            fme[k] = random_row(&r, s.rows);
            const int64_t plane = k / s.columns / m, j = k % s.columns;
            for (int64_t i = 0; i < s.rows; i++) {
                visible[(plane * s.rows + i) * s.columns + j] |= i >= fms[k] && i <= fme[k];
            }
        }
        fm_mask *mask = NULL, *again = NULL;
        succeed(fm_mask_from_fms_fme(s, m, fms, fme, &mask));
        assert_conversion(mask, s, visible);
        succeed(fm_mask_to_fms_fme(mask, m, fms, fme, count));
        succeed(fm_mask_from_fms_fme(s, m, fms, fme, &again));
        assert_true(fm_mask_equal(mask, again));
        fm_mask_free(mask);
        fm_mask_free(again);
    }
}

static void intervals_are_exact_and_round_trip(void **state) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {300};
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const fm_mask_shape s = random_shape(&r);
        const int32_t m = (int32_t)random_integer(&r, 0, FM_MAX_INTERVALS);
        const int64_t count = s.batch * s.heads * m * s.columns;
        fm_interval v[MOST_VALUES];
        memset(visible, 0, sizeof visible);
        for (int64_t k = 0; k < count; k++) {
            const int64_t start = random_integer(&r, 0, s.rows), end = random_integer(&r, start, s.rows);
            v[k] = (fm_interval){(int32_t)start, (int32_t)end};
            for (int64_t i = start; i < end; i++) {
                visible[(k / s.columns / m * s.rows + i) * s.columns + k % s.columns] = 1;
            }
        }
        fm_mask *mask = NULL, *again = NULL;
        succeed(fm_mask_from_intervals(s, m, v, &mask));
        assert_conversion(mask, s, visible);
        succeed(fm_mask_to_intervals(mask, m, v, count));
        succeed(fm_mask_from_intervals(s, m, v, &again));
        assert_true(fm_mask_equal(mask, again));
        fm_mask_free(mask);
        fm_mask_free(again);
    }
}

/* Whatever a target accepts comes back as the same mask; whatever it refuses is refused for a real reason, and untouched. */
static void any_mask_comes_back_or_is_refused(void **state) {
    test_random r = {400};
    int refused[4] = {0}, written[4] = {0};
    (void)state;
    for (int draw = 0; draw < 4000; draw++) {
        const fm_mask_shape s = random_shape(&r);
        fm_mask *mask = random_mask(&r, s, (int32_t)random_integer(&r, 0, 6), NULL);
        for (int k = 0; k < 4; k++) {
            int32_t v[MOST_VALUES];
            const int64_t count = s.batch * s.heads * s.columns * forms[k].vectors;
            memset(v, 0x5a, sizeof v);
            const fm_status status = fm_mask_to_startend_row_indices(mask, forms[k].vectors, forms[k].causal, v, count);
            if (status == FM_OK) {
                fm_mask *again = NULL;
                succeed(fm_mask_from_startend_row_indices(s, forms[k].vectors, forms[k].causal, v, &again));
                assert_true(fm_mask_equal(mask, again));
                fm_mask_free(again);
                written[k]++;
                continue;
            }
            refuse(status, FM_ERROR_CANNOT_EXPRESS, "column ");
            for (int64_t i = 0; i < MOST_VALUES; i++) {
                assert_int_equal(v[i], 0x5a5a5a5a);
            }
            refused[k]++;
        }
        fm_mask_free(mask);
    }
    for (int k = 0; k < 4; k++) {
        assert_true(refused[k] > 100 && written[k] > 20);
    }
}

/* Every 2-bit, 3-bit, ... column of up to 6 rows: a form refuses it only if no vectors at all give it. */
static void refusals_are_never_premature(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        for (int32_t rows = 1; rows <= 6; rows++) {
            const fm_mask_shape s = {1, 1, rows, 1};
            bool reachable[64] = {false};
            const int32_t n = rows + 1;
            for (int32_t code = 0; code < n * n * n * n; code++) {
                const int32_t v[4] = {code % n, code / n % n, code / n / n % n, code / n / n / n};
                int bits = 0;
                for (int32_t i = 0; i < rows; i++) {
                    bits |= !startend_hides(forms[k], v, i, 0, s) << i;
                }
                reachable[bits] = true;
            }
            for (int bits = 0; bits < 1 << rows; bits++) {
                uint8_t dense[6];
                int32_t v[4];
                fm_mask *mask = NULL;
                for (int32_t i = 0; i < rows; i++) {
                    dense[i] = (bits >> i) & 1;
                }
                succeed(fm_mask_from_dense(s, dense, NULL, &mask));
                const fm_status status = fm_mask_to_startend_row_indices(mask, forms[k].vectors, forms[k].causal, v, 4);
                assert_int_equal(status, reachable[bits] ? FM_OK : FM_ERROR_CANNOT_EXPRESS);
                fm_mask_free(mask);
            }
        }
    }
}

/* https://github.com/SandAI-org/MagiAttention/issues/147 */
static void hostile_values_mean_what_the_contract_says(void **state) {
    const fm_mask_shape s = {1, 1, 6, 1};
    const struct {
        int32_t v[4];
        const char *visible; /* rows 0 .. 5 */
    } cases[] = {
        {{4, 6 + 7, 0, 0}, "xxxx.."},
        {{-3, 2, 0, 0}, "..xxxx"},
        {{5, 2, 0, 0}, "xxxxxx"},
        {{6, 6, 0, 9}, "......"},
        {{INT32_MIN, INT32_MAX, 0, 0}, "......"},
        {{INT32_MAX, INT32_MIN, 0, 0}, "xxxxxx"},
        {{INT32_MIN, 1, 5, INT32_MAX}, ".xxxx."},
        {{3, 3, 3, 3}, "xxxxxx"},
        {{0, 6, 0, 6}, "......"},
        {{2, 4, 3, 5}, "xx...x"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        uint8_t visible[6];
        fm_mask *mask = NULL;
        for (int i = 0; i < 6; i++) {
            visible[i] = cases[k].visible[i] == 'x';
        }
        succeed(fm_mask_from_startend_row_indices(s, 4, false, cases[k].v, &mask));
        assert_conversion(mask, s, visible);
        fm_mask_free(mask);
    }
    const int32_t fms = 2, fme = INT32_MAX, low = INT32_MIN;
    fm_mask *mask = NULL;
    succeed(fm_mask_from_fms_fme(s, 1, &fms, &fme, &mask));
    assert_conversion(mask, s, (const uint8_t[]){0, 0, 1, 1, 1, 1});
    fm_mask_free(mask);
    succeed(fm_mask_from_fms_fme(s, 1, &low, &low, &mask));
    assert_conversion(mask, s, (const uint8_t[6]){0});
    fm_mask_free(mask);
}

/* Rows from v0 on are masked in the upper triangle too: the names lower and upper bind nothing. */
static void an_interval_may_cross_the_diagonal(void **state) {
    const fm_mask_shape s = {1, 1, 8, 8};
    int32_t v[16];
    uint8_t visible[64];
    fm_mask *mask = NULL;
    (void)state;
    for (int j = 0; j < 8; j++) {
        v[2 * j] = j == 6 ? 2 : 8;
        v[2 * j + 1] = 0;
        for (int i = 0; i < 8; i++) {
            visible[8 * i + j] = j != 6 || i < 2;
        }
    }
    succeed(fm_mask_from_startend_row_indices(s, 2, false, v, &mask));
    assert_conversion(mask, s, visible);
    refuse(fm_mask_to_startend_row_indices(mask, 1, true, v, 16), FM_ERROR_CANNOT_EXPRESS, "column 1 ");
    fm_mask_free(mask);
}

static void zero_sizes_and_one_are_legal(void **state) {
    (void)state;
    for (int64_t rows = 0; rows <= 1; rows++) {
        for (int64_t columns = 0; columns <= 1; columns++) {
            const fm_mask_shape s = {1, 1, rows, columns};
            const int32_t v[4] = {0, 0, 0, 0};
            int32_t back[4];
            const uint8_t one = 1;
            for (int k = 0; k < 4; k++) {
                fm_mask *mask = NULL;
                const int32_t shown[4] = {(int32_t)rows, (int32_t)(forms[k].vectors == 2 && !forms[k].causal ? 0 : rows), 0, 0};
                assert_int_equal(
                    fm_mask_from_startend_row_indices(s, forms[k].vectors, forms[k].causal, columns == 0 ? NULL : shown, &mask),
                    FM_OK);
                assert_conversion(mask, s, &one);
                assert_int_equal(fm_mask_to_startend_row_indices(mask, forms[k].vectors, forms[k].causal,
                                                                 columns == 0 ? NULL : back, columns * forms[k].vectors),
                                 FM_OK);
                fm_mask_free(mask);
            }
            fm_mask *mask = NULL;
            succeed(fm_mask_from_fms_fme(s, 1, v, v, &mask));
            assert_conversion(mask, s, &one);
            succeed(fm_mask_to_fms_fme(mask, 1, back, back + 1, 1));
            fm_mask_free(mask);
            succeed(fm_mask_from_intervals(s, 0, NULL, &mask));
            assert_int_equal(fm_mask_interval_count(mask), 0);
            succeed(fm_mask_to_intervals(mask, 0, NULL, 0));
            fm_mask_free(mask);
        }
    }
}

/* https://github.com/sgl-project/SpecForge/issues/452: one vector a key, whatever the number of query heads. */
static void a_shared_head_is_stored_once(void **state) {
    enum { LENGTH = 4096 };
    int32_t *v = calloc(LENGTH, sizeof *v);
    fm_mask *mask = NULL;
    (void)state;
    assert_non_null(v);
    for (int32_t j = 0; j < LENGTH; j++) {
        v[j] = LENGTH;
    }
    succeed(fm_mask_from_startend_row_indices((fm_mask_shape){1, 1, LENGTH, LENGTH}, 1, true, v, &mask));
    assert_int_equal(fm_mask_bytes(mask), 8 * LENGTH);
    fm_mask_free(mask);
    free(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(causal_1_vector_is_exact_and_round_trips),
        cmocka_unit_test(causal_2_vectors_are_exact_and_round_trip),
        cmocka_unit_test(two_vectors_are_exact_and_round_trip),
        cmocka_unit_test(four_vectors_are_exact_and_round_trip),
        cmocka_unit_test(fms_fme_is_exact_and_round_trips),
        cmocka_unit_test(intervals_are_exact_and_round_trip),
        cmocka_unit_test(any_mask_comes_back_or_is_refused),
        cmocka_unit_test(refusals_are_never_premature),
        cmocka_unit_test(hostile_values_mean_what_the_contract_says),
        cmocka_unit_test(an_interval_may_cross_the_diagonal),
        cmocka_unit_test(zero_sizes_and_one_are_legal),
        cmocka_unit_test(a_shared_head_is_stored_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

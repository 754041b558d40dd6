/* Numbers at the ends of the range, on every backend: softcap, sinks, scores of -inf, subnormal values. */
#include "support/cmocka_all.h"
#include "support/simple_case.h"

#include <math.h>

enum { ROWS = 70, COLUMNS = 90, HEADS = 2 };

static attention_case causal_case(void) {
    attention_case c = simple_case(1, ROWS, COLUMNS, HEADS, 1, 24);
    c.causal = true;
    return c;
}

/* ---- softcap ------------------------------------------------------------------------------------------------------ */

/* From one that changes no score to one below which every score is 0. */
static void any_softcap_agrees_with_the_oracle(void **state) {
    (void)state;
    static const float caps[] = {3e38f, 1e36f, 1e20f, 1e3f, 1e-3f, 1e-20f, 1e-38f, 1e-44f};
    for (size_t k = 0; k < sizeof caps / sizeof *caps; k++) {
        for (int i = 0; i < BACKENDS; i++) {
            attention_case c = causal_case();
            c.softcap = caps[k];
            c.with_grad_lse = true;
            test_random random = {k};
            attention_inputs in = attention_inputs_make(&c, &random);
            attention_results r = run_on(backends[i], &c, &in);
            assert_like_oracle(&c, &in, &r);
            attention_results_free(&r);
            attention_inputs_free(&in);
        }
    }
}

/* ---- sinks -------------------------------------------------------------------------------------------------------- */

static attention_results run_with_sink(fm_backend_id backend, const attention_case *c, const attention_inputs *in, float sink) {
    for (int64_t h = 0; h < c->heads; h++) {
        in->sinks[h] = sink;
    }
    return run_on(backend, c, in);
}

/* A sink of -inf is none; one of +inf takes the whole of every row, but for the gradient of lse, which leaves sinks out. */
static void an_infinite_sink_is_all_or_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 2 * BACKENDS; i++) {
        attention_case c = causal_case(), without;
        c.with_sinks = true;
        c.with_grad_lse = i >= BACKENDS;
        without = c;
        without.with_sinks = false;
        test_random random = {3};
        attention_inputs in = attention_inputs_make(&c, &random), sinkless = in;
        sinkless.sinks = NULL;
        attention_results none = run_on(backends[i % BACKENDS], &without, &sinkless);
        attention_results low = run_with_sink(backends[i % BACKENDS], &c, &in, -INFINITY);
        attention_results high = run_with_sink(backends[i % BACKENDS], &c, &in, INFINITY);
        for (int k = 0; k < 5; k++) {
            const test_tensor *a = result_at(&low, k), *b = result_at(&none, k);
            assert_true(c.with_grad_lse ? test_tensor_distance(a, b) <= 1e-5 : test_tensor_same(a, b));
        }
        assert_true(test_tensor_same(&high.lse, &none.lse));
        assert_true(test_tensor_largest(&high.output) == 0.0 && test_tensor_largest(&high.grad_value) == 0.0);
        assert_true(c.with_grad_lse || test_tensor_largest(&high.grad_query) + test_tensor_largest(&high.grad_key) == 0.0);
        assert_finite(&high);
        for (int64_t h = 0; h < c.heads; h++) {
            assert_true(element_at(&low.grad_sinks, 0, 0, 0, h) == 0.0 && element_at(&high.grad_sinks, 0, 0, 0, h) == 0.0);
        }
        attention_results_free(&none);
        attention_results_free(&low);
        attention_results_free(&high);
        attention_inputs_free(&in);
    }
}

/* Logits far above or below all scores, short of infinity. */
static void huge_sinks_agree_with_the_oracle(void **state) {
    (void)state;
    static const float sinks[] = {60.0f, 200.0f, 3e38f, -60.0f, -200.0f, -3e38f};
    for (size_t k = 0; k < sizeof sinks / sizeof *sinks; k++) {
        for (int i = 0; i < BACKENDS; i++) {
            attention_case c = causal_case();
            c.with_sinks = c.with_grad_lse = true;
            test_random random = {k};
            attention_inputs in = attention_inputs_make(&c, &random);
            attention_results r = run_with_sink(backends[i], &c, &in, sinks[k]);
            assert_like_oracle(&c, &in, &r);
            attention_results_free(&r);
            attention_inputs_free(&in);
        }
    }
}

/* It is not taken for a sink that is absent: rows that see a key show it, in the output and in every gradient. */
static void a_nan_sink_shows(void **state) {
    (void)state;
    for (int i = 0; i < BACKENDS; i++) {
        attention_case c = causal_case();
        c.with_sinks = true;
        test_random random = {4};
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results r = run_with_sink(backends[i], &c, &in, NAN);
        for (int k = 0; k < RESULT_COUNT; k++) {
            const double element = element_at(result_at(&r, k), 0, 0, 0, 0);
            assert_true(k == 1 ? isfinite(element) : isnan(element));
        }
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

/* ---- scores of -inf ----------------------------------------------------------------------------------------------- */

/* Rows FIRST .. 2 FIRST - 1 have a score of -10^40, which is -inf in f32, at every key: they count as empty. Row 0 has it at
 * the keys of the first tile alone, and the scores of the second decide. */
static void rows_of_minus_infinity_are_empty(void **state) {
    (void)state;
    enum { FIRST = 20 };
    for (int i = 0; i < 8 * BACKENDS; i++) {
        attention_case c = simple_case(1, ROWS, COLUMNS, 1, 1, 1);
        c.with_sinks = (i / BACKENDS & 1) != 0;
        c.with_grad_lse = (i / BACKENDS & 2) != 0;
        c.scale = 1.0f;
        c.head_dim = c.head_dim_v = 1 + 3 * (i / BACKENDS & 4) / 4;
        test_random random = {5};
        attention_inputs in = attention_inputs_make(&c, &random);
        for (int64_t j = 0; j < COLUMNS; j++) {
            fm_tensor_store(&in.key.view, fm_tensor_offset(&in.key.view, 0, j, 0, 0), j < 64 ? -1e20 : -1e19);
        }
        for (int64_t row = 0; row < ROWS; row++) {
            fm_tensor_store(&in.query.view, fm_tensor_offset(&in.query.view, 0, row, 0, 0), 1e-20);
        }
        for (int64_t row = FIRST; row < 2 * FIRST; row++) {
            fm_tensor_store(&in.query.view, fm_tensor_offset(&in.query.view, 0, row, 0, 0), 1e21);
        }
        fm_tensor_store(&in.query.view, fm_tensor_offset(&in.query.view, 0, 0, 0, 0), 4e18);
        attention_results r = run_on(backends[i % BACKENDS], &c, &in);
        assert_empty_rows(&c, &r, 0, FIRST, 2 * FIRST);
        assert_finite(&r);
        assert_true(element_at(&r.lse, 0, 0, 0, 0) < -3e37 && isfinite(element_at(&r.lse, 0, 0, 0, 0)));
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

/* Keys of the second tile are for the rows of one part alone, those of the first for the rows behind it. */
enum { TILE = 64 };
static fm_interval whole_tile_for_far_keys(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h;
    return j < TILE ? (fm_interval){TILE, (int32_t)shape->rows} : (fm_interval){0, TILE};
}
static fm_interval part_of_a_tile_for_far_keys(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h;
    return j < TILE ? (fm_interval){40, (int32_t)shape->rows} : (fm_interval){20, 40};
}

/* Rows that see nothing but keys of -inf count as empty, and 0 times what they see or bring must not be NaN: infinite keys and
 * values, gradients of NaN. */
static void rows_of_minus_infinity_take_and_give_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 4 * BACKENDS; i++) {
        const bool whole = (i / BACKENDS & 1) != 0;
        const int64_t first = whole ? 0 : 20, end = whole ? TILE : 40;
        attention_case c = simple_case(1, ROWS, 2 * TILE, HEADS, 1, 5);
        fm_mask *mask =
            mask_by_rule((fm_mask_shape){1, 1, ROWS, 2 * TILE}, whole ? whole_tile_for_far_keys : part_of_a_tile_for_far_keys);
        c.mask = mask;
        c.with_sinks = c.with_grad_lse = (i / BACKENDS & 2) != 0;
        test_random random = {6};
        attention_inputs in = attention_inputs_make(&c, &random);
        for (int64_t j = TILE; j < 2 * TILE; j++) {
            set_row(&in.key, 0, j, -INFINITY);
            set_row(&in.value, 0, j, INFINITY);
        }
        for (int64_t row = first; row < end; row++) {
            set_row(&in.query, 0, row, row % 2 == 0 ? INFINITY : 1.0);
            set_row(&in.grad_output, 0, row, NAN);
        }
        attention_results r = run_on(backends[i % BACKENDS], &c, &in);
        assert_empty_rows(&c, &r, 0, 0, end);
        assert_finite(&r);
        for (int64_t j = TILE; j < 2 * TILE; j++) {
            for (int64_t d = 0; d < c.head_dim; d++) {
                assert_true(element_at(&r.grad_key, 0, j, 0, d) == 0.0 && element_at(&r.grad_value, 0, j, 0, d) == 0.0);
            }
        }
        assert_true(test_tensor_largest(&r.grad_value) > 0.0);
        attention_results_free(&r);
        attention_inputs_free(&in);
        fm_mask_free(mask);
    }
}

/* ---- subnormal values --------------------------------------------------------------------------------------------- */

/* A row that sees one key gives its value back, to the last subnormal bit. */
static void subnormal_values_survive(void **state) {
    (void)state;
    static const double smallest[] = {[FM_F32] = 0x1p-149, [FM_F16] = 0x1p-24, [FM_BF16] = 0x1p-133};
    for (int i = 0; i < 3 * BACKENDS; i++) {
        attention_case c = simple_case(1, ROWS, ROWS, 1, 1, 5);
        c.dtype = (fm_dtype)(i / BACKENDS);
        c.window_left = c.window_right = 0;
        test_random random = {6};
        attention_inputs in = attention_inputs_make(&c, &random);
        for (int64_t row = 0; row < ROWS; row++) {
            set_row(&in.value, 0, row, smallest[c.dtype] * (double)(1 + row));
            set_row(&in.grad_output, 0, row, -smallest[c.dtype] * (double)(1 + row));
        }
        attention_results r = run_on(backends[i % BACKENDS], &c, &in);
        assert_true(test_tensor_same(&r.output, &in.value) && test_tensor_same(&r.grad_value, &in.grad_output));
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_softcap_agrees_with_the_oracle),
        cmocka_unit_test(an_infinite_sink_is_all_or_nothing),
        cmocka_unit_test(huge_sinks_agree_with_the_oracle),
        cmocka_unit_test(a_nan_sink_shows),
        cmocka_unit_test(rows_of_minus_infinity_are_empty),
        cmocka_unit_test(subnormal_values_survive),
        cmocka_unit_test(rows_of_minus_infinity_take_and_give_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

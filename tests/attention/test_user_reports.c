/* Faults that users of other attention libraries reported in public, on every backend: sizes, heads, strides, windows, sinks. */
#include "support/cmocka_all.h"
#include "support/simple_case.h"

#include <math.h>
#include <string.h>

/* Sizes of tensors and mask that do not fit, or heads that do not divide. */
typedef struct misfit {
    int64_t batch, rows, columns, heads, heads_kv;
    fm_mask_shape mask; /* rows 0: no mask */
    const char *words;
} misfit;

static void refuses(const misfit *m, fm_backend_id backend) {
    float query[4096] = {0}, key[4096] = {0}, value[4096] = {0}, output[4096], before[4096];
    fm_mask *mask = m->mask.rows > 0 ? mask_by_rule(m->mask, rule_everything) : NULL;
    memset(output, 0xff, sizeof output);
    memcpy(before, output, sizeof output);
    fm_attention_forward_args args = FM_ATTENTION_FORWARD_ARGS_INIT;
    args.query = fm_tensor_contiguous(query, FM_F32, m->batch, m->rows, m->heads, 8);
    args.key = fm_tensor_contiguous(key, FM_F32, m->batch, m->columns, m->heads_kv, 8);
    args.value = fm_tensor_contiguous(value, FM_F32, m->batch, m->columns, m->heads_kv, 8);
    args.key.stride[1] *= 2; /* every second row of a longer buffer, which a longer mask must not reach */
    args.output = fm_tensor_contiguous(output, FM_F32, m->batch, m->rows, m->heads, 8);
    args.mask = mask;
    args.backend = backend;
    assert_int_equal(fm_attention_forward(&args), FM_ERROR_SHAPE);
    assert_non_null(strstr(fm_error_message(), m->words));
    assert_memory_equal(output, before, sizeof output);
    fm_mask_free(mask);
}

/* https://github.com/meta-pytorch/attention-gym/issues/34, https://github.com/pytorch/pytorch/issues/139462,
 * https://github.com/facebookresearch/xformers/issues/1122, https://github.com/flashinfer-ai/flashinfer/issues/3176,
 * https://github.com/fla-org/flash-linear-attention/issues/1029 */
static void what_does_not_fit_is_refused_and_not_run(void **state) {
    (void)state;
    const misfit table[] = {
        {1, 128, 128, 1, 1, {1, 1, 256, 256}, "mask: has 256 rows, query has 128"},
        {2, 2, 2, 1, 1, {1, 1, 2, 256}, "mask: has 256 columns, key has 2"},
        {1, 20, 10, 1, 1, {1, 1, 20, 20}, "mask: has 20 columns, key has 10"},
        {1, 10, 20, 1, 1, {1, 1, 10, 15}, "mask: has 15 columns, key has 20"},
        {1, 10, 20, 1, 1, {1, 1, 20, 10}, "mask: has 20 rows, query has 10"},
        {1, 10, 20, 1, 1, {1, 1, 11, 20}, "mask: has 11 rows, query has 10"},
        {1, 10, 20, 1, 1, {1, 1, 10, 21}, "mask: has 21 columns, key has 20"},
        {1, 4, 4, 33, 2, {0}, "key: has 2 heads, of which query's 33 is no multiple"},
        {1, 4, 4, 3, 2, {0}, "key: has 2 heads, of which query's 3 is no multiple"},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        for (int i = 0; i < BACKENDS; i++) {
            refuses(&table[k], backends[i]);
        }
    }
}

/* https://github.com/PaddlePaddle/Paddle/pull/74929 */
static void no_mask_is_plain_attention(void **state) {
    (void)state;
    for (int is_causal = 0; is_causal < 2; is_causal++) {
        attention_case c = simple_case(2, 70, 90, 2, 1, 16);
        test_random random = {7};
        attention_inputs in = attention_inputs_make(&c, &random);
        fm_mask *mask = mask_by_rule((fm_mask_shape){1, 1, 70, 90}, is_causal ? rule_causal : rule_everything);
        for (int i = 0; i < BACKENDS; i++) {
            c.mask = NULL;
            c.causal = is_causal != 0;
            attention_results without = run_on(backends[i], &c, &in);
            c.mask = mask;
            c.causal = false;
            attention_results with = run_on(backends[i], &c, &in);
            attention_assert_same_bits(&without, &with);
            assert_like_oracle(&c, &in, &without);
            attention_results_free(&without);
            attention_results_free(&with);
        }
        fm_mask_free(mask);
        attention_inputs_free(&in);
    }
}

/* Another document boundary for each key head. */
static fm_interval document_of_head(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)b;
    const int32_t cut = (int32_t)(5 + 3 * h);
    return j < cut ? (fm_interval){(int32_t)j, cut} : (fm_interval){(int32_t)j, (int32_t)s->rows};
}

/* https://github.com/pytorch/pytorch/issues/143117, https://github.com/pytorch/pytorch/issues/151359 */
static void any_ratio_of_heads_works(void **state) {
    (void)state;
    const int64_t heads[][2] = {{6, 1}, {12, 2}, {28, 4}, {9, 3}, {5, 5}};
    for (int k = 0; k < 5; k++) {
        attention_case c = simple_case(1, 33, 33, heads[k][0], heads[k][1], 8);
        test_random random = {8};
        attention_inputs in = attention_inputs_make(&c, &random);
        fm_mask *mask = mask_by_rule((fm_mask_shape){1, c.heads_kv, 33, 33}, document_of_head);
        c.mask = mask;
        for (int i = 0; i < BACKENDS; i++) {
            attention_results r = run_on(backends[i], &c, &in);
            assert_like_oracle(&c, &in, &r);
            attention_results_free(&r);
        }
        fm_mask_free(mask);
        attention_inputs_free(&in);
    }
}

/* https://github.com/Dao-AILab/flash-attention/issues/355, https://github.com/Dao-AILab/flash-attention/issues/325 */
static void strides_of_the_output_gradient_are_honoured(void **state) {
    (void)state;
    attention_case c = simple_case(2, 35, 41, 4, 2, 16);
    c.causal = true;
    test_random random = {9};
    attention_inputs in = attention_inputs_make(&c, &random), ones = in, other = in;
    test_tensor one = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, 1, 1, 1);
    fm_tensor_store(&one.view, 0, 1.0);
    ones.grad_output = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 2, 35, 4, 16);
    for (int64_t i = 0; i < 2 * 35 * 4 * 16; i++) {
        fm_tensor_store(&ones.grad_output.view, i, 1.0);
    }
    other.grad_output = one;
    other.grad_output.view = ones.grad_output.view;
    other.grad_output.view.data = one.buffer;
    memset(other.grad_output.view.stride, 0, sizeof other.grad_output.view.stride);
    for (int i = 0; i < BACKENDS; i++) {
        attention_results dense = run_on(backends[i], &c, &ones), expanded = run_on(backends[i], &c, &other);
        attention_assert_same_bits(&dense, &expanded);
        assert_like_oracle(&c, &ones, &dense);
        attention_results_free(&dense);
        attention_results_free(&expanded);
    }
    test_tensor_free(&one);
    test_tensor_free(&ones.grad_output);
    attention_inputs_free(&in);
}

static test_tensor relaid(const test_tensor *t, test_layout layout) {
    const int64_t *n = t->view.shape;
    test_tensor copy = test_tensor_make(layout, t->view.dtype, n[0], n[1], n[2], n[3]);
    test_tensor_copy(&copy, t);
    return copy;
}

/* https://github.com/flagos-ai/FlagAttention/issues/45, https://github.com/pytorch/pytorch/pull/187506 */
static void strides_change_no_result(void **state) {
    (void)state;
    attention_case c = simple_case(2, 37, 45, 4, 2, 20);
    c.causal = true;
    c.layout = LAYOUT_CONTIGUOUS;
    test_random random = {10};
    attention_inputs in = attention_inputs_make(&c, &random);
    const test_layout layouts[][4] = {
        {LAYOUT_CONTIGUOUS, LAYOUT_SLICED, LAYOUT_CONTIGUOUS, LAYOUT_CONTIGUOUS},
        {LAYOUT_SLICED, LAYOUT_CONTIGUOUS, LAYOUT_TRANSPOSED, LAYOUT_SLICED},
        {LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED},
    };
    for (int k = 0; k < 3 * BACKENDS; k++) {
        const test_layout *layout = layouts[k / BACKENDS];
        attention_inputs view = {relaid(&in.query, layout[0]),
                                 relaid(&in.key, layout[1]),
                                 relaid(&in.value, layout[2]),
                                 relaid(&in.grad_output, layout[3]),
                                 NULL,
                                 NULL};
        attention_results plain = run_on(backends[k % BACKENDS], &c, &in), strided = run_on(backends[k % BACKENDS], &c, &view);
        attention_assert_same_bits(&plain, &strided);
        attention_results_free(&plain);
        attention_results_free(&strided);
        attention_inputs_free(&view);
    }
    attention_inputs_free(&in);
}

static void assert_same_as_unlimited(attention_case c, int64_t left, int64_t right, bool is_causal) {
    test_random random = {12};
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int i = 0; i < BACKENDS; i++) {
        c.window_left = c.window_right = -1;
        c.causal = is_causal;
        attention_results wanted = run_on(backends[i], &c, &in);
        c.window_left = left;
        c.window_right = right;
        c.causal = false;
        attention_results r = run_on(backends[i], &c, &in);
        attention_assert_same_bits(&wanted, &r);
        attention_results_free(&wanted);
        attention_results_free(&r);
    }
    attention_inputs_free(&in);
}

/* https://github.com/Dao-AILab/flash-attention/issues/1133, https://github.com/Dao-AILab/flash-attention/issues/895,
 * https://github.com/Dao-AILab/flash-attention/issues/1116; a window right of -3 is refused in test_arguments.c */
static void windows_that_cover_all_are_none(void **state) {
    (void)state;
    assert_same_as_unlimited(simple_case(1, 16, 16, 2, 1, 8), -1, 0, true);
    assert_same_as_unlimited(simple_case(1, 16, 16, 2, 1, 8), 16, 0, true);
    assert_same_as_unlimited(simple_case(1, 16, 16, 2, 1, 8), 15, 0, true);
    assert_same_as_unlimited(simple_case(1, 5, 2, 2, 1, 8), -1, INT32_MAX, false);
    assert_same_as_unlimited(simple_case(1, 5, 2, 2, 1, 8), INT64_MAX, INT64_MAX, false);
}

/* sum(O * grad_output) of the f64 reference. */
static double sink_loss(const attention_case *c, const attention_inputs *wide) {
    attention_results r = run_on(FM_BACKEND_REFERENCE, c, wide);
    double sum = 0.0;
    for (int64_t i = 0; i < 4 * 2 * 16; i++) {
        sum += fm_tensor_load(&r.output.view, i) * fm_tensor_load(&wide->grad_output.view, i);
    }
    attention_results_free(&r);
    return sum;
}

/* https://github.com/Dao-AILab/flash-attention/issues/1973, https://github.com/Dao-AILab/flash-attention/issues/2102,
 * https://github.com/huggingface/transformers/pull/41083 */
static void a_sink_joins_the_denominator_and_has_a_gradient(void **state) {
    (void)state;
    attention_case c = simple_case(1, 4, 4, 2, 2, 16);
    c.causal = c.with_sinks = true;
    test_random random = {13};
    attention_inputs in = attention_inputs_make(&c, &random);
    in.sinks[0] = 0.3f;
    in.sinks[1] = -1.0f;
    attention_inputs wide = attention_inputs_widen(&c, &in);
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        assert_like_oracle(&c, &in, &r);
        for (int h = 0; h < 2; h++) {
            const float step = 0x1p-9f;
            wide.sinks[h] = in.sinks[h] + step;
            const double above = sink_loss(&c, &wide), high = (double)wide.sinks[h];
            wide.sinks[h] = in.sinks[h] - step;
            const double difference = (above - sink_loss(&c, &wide)) / (high - (double)wide.sinks[h]);
            wide.sinks[h] = in.sinks[h];
            assert_true(fabs(element_at(&r.grad_sinks, 0, 0, 0, h) - difference) < 1e-5 * (1.0 + fabs(difference)));
            /* row 0 sees one key: O = V / (1 + exp(sink - lse)), lse without the sink */
            const double share = 1.0 / (1.0 + exp((double)in.sinks[h] - element_at(&r.lse, 0, 0, h, 0)));
            assert_true(fabs(element_at(&r.output, 0, 0, h, 3) - share * element_at(&in.value, 0, 0, h, 3)) < 1e-5);
        }
        attention_results_free(&r);
    }
    attention_inputs_free(&wide);
    attention_inputs_free(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_refused_and_not_run),
        cmocka_unit_test(no_mask_is_plain_attention),
        cmocka_unit_test(any_ratio_of_heads_works),
        cmocka_unit_test(strides_of_the_output_gradient_are_honoured),
        cmocka_unit_test(strides_change_no_result),
        cmocka_unit_test(windows_that_cover_all_are_none),
        cmocka_unit_test(a_sink_joins_the_denominator_and_has_a_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What users of other libraries reported of GPUs, in the small: masks, numbers, strides. Each test names its reports. */
#include "device_case.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- empty rows -------------------------------------------------------------------------------------------------------- */

static fm_interval rule_but_rows_of_items(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)h, (void)j;
    const fm_interval rows[] = {{14, 64}, {0, 20}, {0, 50}}; /* rows 0-13, from 20 on, the last 14 see nothing */
    (void)s;
    return rows[b];
}

/* https://github.com/ikawrakow/ik_llama.cpp/issues/2344, https://github.com/pytorch/pytorch/issues/110213 */
static void it_does_not_matter_where_empty_rows_stand(void **state) {
    (void)state;
    test_random random = {1};
    attention_case c = device_half_case(3, 64, 64, 2, 2, 64);
    c.mask = mask_by_rule((fm_mask_shape){3, 1, 64, 64}, rule_but_rows_of_items);
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int way = 0; way < DEVICE_WAYS; way++) {
        attention_results ours = device_run_way(&c, &in, way), cpu = run_on(FM_BACKEND_CPU, &c, &in);
        assert_empty_rows(&c, &ours, 0, 0, 14);
        assert_empty_rows(&c, &ours, 1, 20, 64);
        assert_empty_rows(&c, &ours, 2, 50, 64);
        assert_empty_rows(&c, &cpu, 2, 50, 64);
        assert_finite(&ours);
        assert_like_oracle(&c, &in, &ours);
        attention_results_free(&ours);
        attention_results_free(&cpu);
    }
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* Padded items, and the output of one call as keys and values of the next.
 * https://github.com/NVIDIA-NeMo/Automodel/pull/2826, https://github.com/pytorch/pytorch/issues/41508 */
static void padding_stays_finite_through_two_layers(void **state) {
    (void)state;
    test_random random = {2};
    const int64_t left[] = {0, 3}, right[] = {0, 4};
    attention_case c = device_half_case(2, 10, 10, 2, 2, 64);
    succeed(fm_mask_padding(2, 10, 10, left, right, (fm_mask **)&c.mask));
    c.causal = true;
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results first = device_run_way(&c, &in, 0);
    test_tensor_copy(&in.key, &first.output);
    test_tensor_copy(&in.value, &first.output);
    attention_results second = device_run_way(&c, &in, 0);
    assert_finite(&second);
    assert_empty_rows(&c, &second, 1, 0, 3);
    assert_empty_rows(&c, &second, 1, 6, 10);
    assert_like_oracle(&c, &in, &second);
    attention_results_free(&first);
    attention_results_free(&second);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* ---- documents --------------------------------------------------------------------------------------------------------- */

typedef struct documents_case {
    int32_t cu_q[6], cu_k[6];
    int64_t documents, rows, columns, heads, heads_kv, head_dim;
    bool causal;
} documents_case;

static const documents_case reported_documents[] = {
    /* zero-length documents: https://github.com/Dao-AILab/flash-attention/issues/2562 */
    {{0, 0, 3, 5, 5}, {0, 2, 4, 6, 9}, 4, 5, 9, 4, 1, 256, false},
    {{0, 0, 3, 5, 5}, {0, 2, 4, 6, 9}, 4, 5, 9, 4, 1, 128, true},
    {{0, 0, 302, 512, 512}, {0, 635, 1070, 1280, 2048}, 4, 512, 2048, 4, 1, 256, true},
    /* https://github.com/Dao-AILab/flash-attention/issues/1254 */
    {{0, 0, 0, 7}, {0, 0, 1, 14}, 3, 7, 14, 2, 2, 128, true},
    {{0, 0, 0, 1023}, {0, 0, 1, 2046}, 3, 1023, 2046, 1, 1, 128, true},
    /* lengths 0 and 1: https://github.com/Dao-AILab/flash-attention/issues/1537 */
    {{0, 1, 1, 2}, {0, 3, 3, 8}, 3, 2, 8, 9, 3, 64, true},
    /* https://github.com/facebookresearch/xformers/issues/722 */
    {{0, 5, 6, 16}, {0, 5, 6, 16}, 3, 16, 16, 2, 2, 64, true},
    /* a buffer longer than its documents: https://github.com/pytorch/pytorch/pull/186786,
     * https://github.com/Dao-AILab/flash-attention/pull/2324 */
    {{0, 144, 432, 944}, {0, 144, 432, 944}, 3, 946, 946, 2, 1, 64, true},
    /* https://github.com/tile-ai/tilelang/pull/2461: results and workspaces hold NaN before the call */
    {{0, 70, 130}, {0, 70, 130}, 2, 130, 130, 6, 2, 64, true},
};

static void reported_packs_of_documents_are_right(void **state) {
    (void)state;
    test_random random = {3};
    for (int i = 0; i < COUNT(reported_documents); i++) {
        const documents_case *d = &reported_documents[i];
        attention_case c = device_half_case(1, d->rows, d->columns, d->heads, d->heads_kv, d->head_dim);
        c.mask = device_documents(d->cu_q, d->cu_k, d->documents, d->causal, d->rows, d->columns);
        device_assert_case(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Position ids alone tell documents apart, at any first value; another document's tokens change no bit.
 * https://github.com/huggingface/transformers/pull/46634, https://github.com/huggingface/transformers/pull/47525,
 * https://github.com/MeetKai/functionary/issues/265 */
static void another_document_changes_no_bit(void **state) {
    (void)state;
    const int32_t ids[] = {2, 3, 4, 2, 3};
    test_random random = {4};
    attention_case c = device_half_case(1, 5, 5, 2, 1, 64);
    succeed(fm_mask_from_position_ids(1, 5, ids, true, false, (fm_mask **)&c.mask));
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results one = device_run_way(&c, &in, 1);
    assert_like_oracle(&c, &in, &one);
    for (int64_t i = 0; i < 3; i++) {
        set_row(&in.key, 0, i, 5.0);
        set_row(&in.value, 0, i, -7.0);
    }
    attention_results other = device_run_way(&c, &in, 1);
    const test_tensor a = test_tensor_rows(&one.output, 3, 2), b = test_tensor_rows(&other.output, 3, 2);
    assert_true(test_tensor_same(&a, &b));
    assert_false(test_tensor_same(&one.output, &other.output));
    attention_results_free(&one);
    attention_results_free(&other);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------------- */

static void set_all(const test_tensor *t, double value) {
    for (int64_t b = 0; b < t->view.shape[0]; b++) {
        for (int64_t i = 0; i < t->view.shape[1]; i++) {
            set_row(t, b, i, value);
        }
    }
}

/* At 133120 a score's rounding is 8192: exp(S - lse) may be anything, but a weight is at most 1.
 * https://github.com/pytorch/pytorch/issues/121558, https://github.com/Dao-AILab/flash-attention/issues/41 */
static void large_constants_stay_finite(void **state) {
    (void)state;
    static const struct {
        int64_t length, heads, head_dim;
        double value, grad;
    } cases[] = {{1, 1, 64, 133120, 1}, {2, 1, 64, 133120, 1}, {512, 8, 32, 1000, 1.0 / 512}};
    test_random random = {5};
    for (int i = 0; i < COUNT(cases); i++) {
        attention_case c =
            device_half_case(1, cases[i].length, cases[i].length, cases[i].heads, cases[i].heads, cases[i].head_dim);
        c.causal = true;
        attention_inputs in = attention_inputs_make(&c, &random);
        set_all(&in.query, cases[i].value);
        set_all(&in.key, cases[i].value);
        set_all(&in.value, cases[i].value);
        set_all(&in.grad_output, cases[i].grad);
        for (int way = 0; way < DEVICE_WAYS; way++) {
            attention_results r = device_run_way(&c, &in, way);
            assert_finite(&r);
            assert_true(fabs(element_at(&r.output, 0, c.rows - 1, 0, 0) - cases[i].value) <= 0x1p-7 * cases[i].value);
            attention_results_free(&r);
        }
        attention_inputs_free(&in);
    }
}

/* The base of such a row is rounded by up to 64 in units of log 2: a key may weigh 2^34, but all of them alike. */
static void equal_scores_far_from_zero_weigh_alike(void **state) {
    (void)state;
    static const double values[] = {4192, 9984, 12224};
    test_random random = {17};
    for (int i = 0; i < 2 * COUNT(values); i++) {
        attention_case c = device_half_case(1, 130, i % 2 == 0 ? 1024 : 4096, 2, 1, 128);
        attention_inputs in = attention_inputs_make(&c, &random);
        set_all(&in.query, values[i / 2]);
        set_all(&in.key, values[i / 2]);
        for (int64_t j = 0; j < c.columns; j++) {
            set_row(&in.value, 0, j, j < c.columns / 2 ? 0 : 1);
        }
        for (int way = 0; way < DEVICE_WAYS; way++) {
            attention_results r = device_run_way(&c, &in, way);
            assert_true(fabs(element_at(&r.output, 0, c.rows - 1, 1, 0) - 0.5) <= 0x1p-7);
            attention_results_free(&r);
        }
        attention_inputs_free(&in);
    }
}

/* Probabilities overflow where scores are below -88 and a kernel takes keys past the last for real ones: their scores are 0. */
static void scores_far_below_zero_keep_gradients_finite(void **state) {
    (void)state;
    test_random random = {13};
    for (int64_t columns = 64; columns <= 256; columns += 32) {
        attention_case c = device_half_case(1, 100, columns, 1, 1, 64);
        attention_inputs in = attention_inputs_make(&c, &random);
        set_all(&in.query, 4.0);
        set_all(&in.key, -8.0); /* S = -256 */
        for (int way = 0; way < DEVICE_WAYS; way++) {
            attention_results r = device_run_way(&c, &in, way);
            assert_finite(&r);
            attention_results_free(&r);
        }
        attention_inputs_free(&in);
    }
}

static fm_interval rule_but_first_rows_and_last_keys(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h;
    return j < s->columns - 20 ? (fm_interval){10, (int32_t)s->rows} : (fm_interval){0, 0};
}

/* Products of theirs overflow: 0 * infinity would be NaN. */
static void hidden_values_that_are_huge_reach_nothing(void **state) {
    (void)state;
    test_random random = {14};
    for (int i = 0; i < 4; i++) {
        attention_case c = device_half_case(1, 100, 150, 2, 1, i / 2 == 0 ? 64 : 192);
        c.softcap = i % 2 == 0 ? 0.0f : 20.0f;
        c.mask = mask_by_rule((fm_mask_shape){1, 1, c.rows, c.columns}, rule_but_first_rows_and_last_keys);
        attention_inputs in = attention_inputs_make(&c, &random);
        for (int64_t j = c.columns - 20; j < c.columns; j++) {
            set_row(&in.key, 0, j, j % 2 == 0 ? 3e38 : -3e38);
            set_row(&in.value, 0, j, j % 2 == 0 ? 3e38 : -3e38);
        }
        for (int64_t row = 0; row < 10; row++) {
            set_row(&in.grad_output, 0, row, 3e38);
        }
        for (int way = 0; way < DEVICE_WAYS; way++) {
            attention_results r = device_run_way(&c, &in, way);
            assert_finite(&r);
            attention_results_free(&r);
        }
        attention_inputs_free(&in);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* https://github.com/Dao-AILab/flash-attention/issues/334 */
static void one_token_has_no_gradient_for_query_and_key(void **state) {
    (void)state;
    test_random random = {6};
    attention_case c = device_half_case(1, 1, 1, 1, 1, 16);
    device_assert_case(&c, &random);
    c.dtype = FM_F32; /* https://github.com/Dao-AILab/flash-attention/issues/152: f32 is not refused */
    device_assert_case(&c, &random);
}

/* https://github.com/pytorch/pytorch/issues/153799, https://github.com/meta-pytorch/attention-gym/issues/50 */
static void a_last_tile_that_is_cut_is_right_with_softcap(void **state) {
    (void)state;
    static const int64_t lengths[] = {1, 2, 63, 65, 127, 129, 137, 255, 257, 1025};
    test_random random = {7};
    for (int i = 0; i < COUNT(lengths); i++) {
        attention_case c = device_half_case(1, lengths[i], lengths[i], 2, 1, 64);
        c.causal = true;
        c.softcap = 3.0f;
        device_assert_case(&c, &random);
    }
}

/* https://github.com/Dao-AILab/flash-attention/issues/1973, https://github.com/huggingface/transformers/pull/41083 */
static void sinks_join_the_denominator_alone_and_have_a_gradient(void **state) {
    (void)state;
    test_random random = {8};
    attention_case c = device_half_case(2, 40, 40, 4, 2, 64);
    c.causal = c.with_sinks = true;
    device_assert_case(&c, &random);
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int64_t h = 0; h < c.heads; h++) {
        in.sinks[h] = -INFINITY; /* none */
    }
    attention_results r = device_run_way(&c, &in, 1);
    assert_like_oracle(&c, &in, &r);
    assert_true(test_tensor_largest(&r.grad_sinks) == 0.0 && test_tensor_distance(&r.grad_sinks, &r.grad_sinks) == 0.0);
    attention_results_free(&r);
    attention_inputs_free(&in);
}

/* ---- alignment and windows ----------------------------------------------------------------------------------------------- */

/* https://github.com/Dao-AILab/flash-attention/issues/1778, https://github.com/NVIDIA/cutlass/issues/2336 */
static void causal_is_bottom_right_for_unlike_lengths(void **state) {
    (void)state;
    static const int64_t lengths[][2] = {{2, 5}, {5, 2}, {3, 128}, {128, 3}, {600, 300}};
    test_random random = {9};
    for (int i = 0; i < COUNT(lengths); i++) {
        attention_case c = device_half_case(1, lengths[i][0], lengths[i][1], 2, 1, 64);
        c.causal = true;
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results r = device_run_way(&c, &in, 0);
        assert_like_oracle(&c, &in, &r);
        assert_empty_rows(&c, &r, 0, 0, c.rows > c.columns ? c.rows - c.columns : 0);
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
}

/* Windows that mean the same give the same bits.
 * https://github.com/Dao-AILab/flash-attention/issues/1133, https://github.com/NVIDIA/TransformerEngine/issues/1197 */
static void equal_windows_have_equal_bits(void **state) {
    (void)state;
    enum { LENGTH = 150 };
    static const int64_t windows[][2] = {{-1, 0}, {LENGTH, 0}, {LENGTH - 1, 0}};
    test_random random = {10};
    attention_case c = device_half_case(1, LENGTH, LENGTH, 2, 1, 64);
    attention_inputs in = attention_inputs_make(&c, &random);
    c.causal = true;
    attention_results one = device_run_way(&c, &in, 1);
    for (int i = 0; i < COUNT(windows); i++) {
        c.causal = i == 1;
        c.window_left = windows[i][0];
        c.window_right = windows[i][1];
        attention_results other = device_run_way(&c, &in, 1);
        attention_assert_same_bits(&one, &other);
        attention_results_free(&other);
    }
    c.causal = false;
    c.window_left = 16;
    c.window_right = 0;
    attention_results narrow = device_run_way(&c, &in, 2);
    assert_like_oracle(&c, &in, &narrow);
    attention_results_free(&narrow);
    attention_results_free(&one);
    attention_inputs_free(&in);
}

/* ---- strides ----------------------------------------------------------------------------------------------------------- */

/* https://github.com/Dao-AILab/flash-attention/issues/355, https://github.com/Dao-AILab/flash-attention/issues/325 */
static void an_expanded_output_gradient_is_read_as_it_is(void **state) {
    (void)state;
    test_random random = {11};
    attention_case c = device_half_case(2, 70, 90, 4, 2, 64);
    attention_inputs in = attention_inputs_make(&c, &random);
    set_all(&in.grad_output, 1.0);
    memset(in.grad_output.view.stride, 0, sizeof in.grad_output.view.stride);
    for (int way = 0; way < 2; way++) {
        attention_results r = device_run_way(&c, &in, way);
        assert_like_oracle(&c, &in, &r);
        attention_results_free(&r);
    }
    attention_inputs_free(&in);
}

/* One key and value for a whole batch by stride 0, and key and value of unlike strides.
 * https://github.com/flagos-ai/FlagAttention/issues/45 */
static void shared_keys_and_unlike_strides_are_read_as_they_are(void **state) {
    (void)state;
    test_random random = {12};
    attention_case c = device_half_case(3, 70, 90, 4, 2, 64);
    attention_inputs in = attention_inputs_make(&c, &random);
    in.key.view.stride[0] = in.value.view.stride[0] = 0;
    in.value.view.stride[1] = in.key.view.stride[1] / 2; /* heads overlap: both heads of a row lie half a row apart */
    for (int way = 0; way < DEVICE_WAYS; way++) {
        attention_results r = device_run_way(&c, &in, way);
        assert_like_oracle(&c, &in, &r);
        attention_results_free(&r);
    }
    attention_inputs_free(&in);
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_does_not_matter_where_empty_rows_stand),
        cmocka_unit_test(padding_stays_finite_through_two_layers),
        cmocka_unit_test(reported_packs_of_documents_are_right),
        cmocka_unit_test(another_document_changes_no_bit),
        cmocka_unit_test(large_constants_stay_finite),
        cmocka_unit_test(equal_scores_far_from_zero_weigh_alike),
        cmocka_unit_test(scores_far_below_zero_keep_gradients_finite),
        cmocka_unit_test(hidden_values_that_are_huge_reach_nothing),
        cmocka_unit_test(one_token_has_no_gradient_for_query_and_key),
        cmocka_unit_test(a_last_tile_that_is_cut_is_right_with_softcap),
        cmocka_unit_test(sinks_join_the_denominator_alone_and_have_a_gradient),
        cmocka_unit_test(causal_is_bottom_right_for_unlike_lengths),
        cmocka_unit_test(equal_windows_have_equal_bits),
        cmocka_unit_test(an_expanded_output_gradient_is_read_as_it_is),
        cmocka_unit_test(shared_keys_and_unlike_strides_are_read_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

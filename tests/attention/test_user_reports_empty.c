/* Faults that users of other attention libraries reported in public, on every backend: empty rows, padding, NaN. */
#include "mask/writer.h"
#include "support/cmocka_all.h"
#include "support/simple_case.h"

#include <math.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Item 0 is causal; item 1 sees the key and the one before, and its keys 2 and 3 are padding: row 3 sees nothing. */
static fm_interval padded_window(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    return b == 0 ? rule_causal(s, b, h, j) : j < 2 ? (fm_interval){(int32_t)j, (int32_t)j + 2} : rule_nothing(s, b, h, j);
}

/* https://github.com/pytorch/pytorch/issues/41508 */
static void an_empty_row_poisons_no_gradient(void **state) {
    (void)state;
    attention_case c = simple_case(2, 4, 4, 1, 1, 1);
    test_random random = {1};
    attention_inputs in = attention_inputs_make(&c, &random);
    fm_mask *mask = mask_by_rule((fm_mask_shape){2, 1, 4, 4}, padded_window);
    for (int i = 0; i < BACKENDS; i++) {
        c.mask = mask;
        set_row(&in.grad_output, 1, 3, 0.0);
        attention_results r = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &r, 1, 3, 4);
        assert_finite(&r);
        set_row(&in.grad_output, 1, 3, NAN);
        attention_results poisoned = run_on(backends[i], &c, &in);
        attention_assert_same_bits(&r, &poisoned);
        attention_results_free(&r);
        attention_results_free(&poisoned);
    }
    fm_mask_free(mask);
    attention_inputs_free(&in);
}

static fm_interval not_the_last_row(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h, (void)j;
    return (fm_interval){0, (int32_t)s->rows - 1};
}

/* https://github.com/pytorch/pytorch/issues/103749 */
static void a_masked_last_row_is_zero(void **state) {
    (void)state;
    attention_case c = simple_case(1, 6, 10, 2, 2, 8);
    c.scale = 0.125f;
    c.causal = true;
    test_random random = {2};
    attention_inputs in = attention_inputs_make(&c, &random);
    fm_mask *mask = mask_by_rule((fm_mask_shape){1, 1, 6, 10}, not_the_last_row);
    c.mask = mask;
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &r, 0, 5, 6);
        assert_finite(&r);
        assert_like_oracle(&c, &in, &r);
        attention_results_free(&r);
    }
    fm_mask_free(mask);
    attention_inputs_free(&in);
}

/* https://github.com/ikawrakow/ik_llama.cpp/issues/2344 */
static void empty_rows_are_zero_wherever_they_stand(void **state) {
    (void)state;
    const int64_t first[] = {0, 20, 50};
    for (int k = 0; k < 3; k++) {
        attention_case c = simple_case(1, 64, 64, 2, 1, 16);
        test_random random = {3};
        attention_inputs in = attention_inputs_make(&c, &random);
        fm_mask_writer writer;
        fm_mask *mask = NULL;
        assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, 64, 64}, 2, NULL), FM_OK);
        const fm_interval rows[] = {{0, (int32_t)first[k]}, {(int32_t)first[k] + 14, 64}};
        for (int64_t j = 0; j < 64; j++) {
            assert_int_equal(fm_mask_writer_column(&writer, 0, 0, j, rows, 2), FM_OK);
        }
        assert_int_equal(fm_mask_writer_finish(&writer, &mask), FM_OK);
        fm_mask_writer_close(&writer);
        c.mask = mask;
        for (int i = 0; i < BACKENDS; i++) {
            attention_results r = run_on(backends[i], &c, &in);
            assert_empty_rows(&c, &r, 0, first[k], first[k] + 14);
            assert_like_oracle(&c, &in, &r);
            attention_results_free(&r);
        }
        fm_mask_free(mask);
        attention_inputs_free(&in);
    }
}

/* Lengths 10 and 6 in sequences of 10. */
static fm_interval padded_to_ten(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)s, (void)h;
    const int32_t length = b == 0 ? 10 : 6;
    return j < length ? (fm_interval){0, length} : (fm_interval){0, 0};
}

/* https://github.com/NVIDIA-NeMo/Automodel/pull/2826 */
static void padding_rows_do_not_poison_the_next_layer(void **state) {
    (void)state;
    attention_case c = simple_case(2, 10, 10, 2, 2, 8);
    test_random random = {4};
    fm_mask *mask = mask_by_rule((fm_mask_shape){2, 1, 10, 10}, padded_to_ten);
    c.mask = mask;
    for (int i = 0; i < BACKENDS; i++) {
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results first = run_on(backends[i], &c, &in);
        test_tensor_copy(&in.key, &first.output);
        test_tensor_copy(&in.value, &first.output);
        attention_results second = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &second, 1, 6, 10);
        assert_finite(&second);
        assert_like_oracle(&c, &in, &second);
        attention_results_free(&first);
        attention_results_free(&second);
        attention_inputs_free(&in);
    }
    fm_mask_free(mask);
}

static fm_interval first_hundred(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)s, (void)b, (void)h;
    return j < 100 ? (fm_interval){(int32_t)j, 100} : (fm_interval){0, 0};
}

/* https://github.com/tile-ai/tilelang/pull/2461: what scratch holds before the call reaches nothing. */
static void garbage_in_scratch_reaches_no_gradient(void **state) {
    (void)state;
    attention_case c = simple_case(1, 130, 130, 4, 2, 24);
    c.with_sinks = c.with_grad_lse = true;
    fm_mask *mask = mask_by_rule((fm_mask_shape){1, 1, 130, 130}, first_hundred);
    c.mask = mask;
    for (int i = 0; i < 3 * BACKENDS; i++) {
        c.dtype = (fm_dtype)(i / BACKENDS);
        test_random random = {5};
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results clean = run_on(backends[i % BACKENDS], &c, &in);
#ifdef __GLIBC__
        mallopt(M_PERTURB, 0x80); /* fresh memory is 0x7f7f...: 3e38 in f32 and bf16, NaN in f16 */
#endif
        attention_results r = run_on(backends[i % BACKENDS], &c, &in);
#ifdef __GLIBC__
        mallopt(M_PERTURB, 0);
#endif
        attention_assert_same_bits(&clean, &r);
        assert_finite(&r);
        for (int64_t j = 100; j < 130; j++) {
            for (int64_t d = 0; d < c.head_dim; d++) {
                assert_true(element_at(&r.grad_key, 0, j, 1, d) == 0.0 && element_at(&r.grad_value, 0, j, 1, d) == 0.0);
            }
        }
        attention_results_free(&clean);
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
    fm_mask_free(mask);
}

/* https://github.com/Dao-AILab/flash-attention/issues/334: softmax of one score is 1 whatever the score. */
static void one_query_and_one_key(void **state) {
    (void)state;
    attention_case c = simple_case(1, 1, 1, 1, 1, 16);
    test_random random = {6};
    attention_inputs in = attention_inputs_make(&c, &random);
    test_tensor_fill(&in.query, &random, 3.0);
    test_tensor_fill(&in.key, &random, 3.0);
    set_row(&in.grad_output, 0, 0, 1.0);
    double score = 0.0;
    for (int64_t d = 0; d < 16; d++) {
        score += element_at(&in.query, 0, 0, 0, d) * element_at(&in.key, 0, 0, 0, d) / 4.0;
    }
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        assert_true(fabs(element_at(&r.lse, 0, 0, 0, 0) - score) <= 1e-6 * fabs(score));
        assert_true(test_tensor_distance(&r.output, &in.value) <= 1e-6);
        assert_true(test_tensor_distance(&r.grad_value, &in.grad_output) <= 1e-6);
        assert_true(test_tensor_largest(&r.grad_query) <= 1e-5 && test_tensor_largest(&r.grad_key) <= 1e-5);
        assert_finite(&r);
        attention_results_free(&r);
    }
    attention_inputs_free(&in);
}

/* https://github.com/Dao-AILab/flash-attention/pull/978, https://github.com/flashinfer-ai/flashinfer/issues/4484 */
static void empty_partial_results_merge(void **state) {
    (void)state;
    attention_case c = simple_case(1, 1, 1, 1, 1, 64);
    test_random random = {11};
    attention_inputs in = attention_inputs_make(&c, &random);
    fm_mask *none = mask_by_rule((fm_mask_shape){1, 1, 1, 1}, rule_nothing);
    for (int i = 0; i < BACKENDS; i++) {
        c.mask = none;
        attention_results empty = run_on(backends[i], &c, &in), other = run_on(backends[i], &c, &in);
        c.mask = NULL;
        attention_results live = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &empty, 0, 0, 1);
        assert_int_equal(fm_attention_merge(&empty.output.view, empty.lse.buffer, &other.output.view, other.lse.buffer, NULL,
                                            &empty.output.view, empty.lse.buffer),
                         FM_OK);
        assert_empty_rows(&c, &empty, 0, 0, 1);
        assert_int_equal(fm_attention_merge(&empty.output.view, empty.lse.buffer, &live.output.view, live.lse.buffer, NULL,
                                            &empty.output.view, empty.lse.buffer),
                         FM_OK);
        assert_true(test_tensor_same(&empty.output, &live.output) && test_tensor_same(&empty.lse, &live.lse));
        attention_results_free(&empty);
        attention_results_free(&other);
        attention_results_free(&live);
    }
    fm_mask_free(none);
    attention_inputs_free(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_row_poisons_no_gradient),
        cmocka_unit_test(a_masked_last_row_is_zero),
        cmocka_unit_test(empty_rows_are_zero_wherever_they_stand),
        cmocka_unit_test(padding_rows_do_not_poison_the_next_layer),
        cmocka_unit_test(garbage_in_scratch_reaches_no_gradient),
        cmocka_unit_test(one_query_and_one_key),
        cmocka_unit_test(empty_partial_results_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

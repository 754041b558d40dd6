/* Faults that users of other attention libraries reported in public, on every backend: repeated calls, numerics, far strides. */
#include <flashmask/masks.h>

#include "core/tensor.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

/* https://github.com/pytorch/pytorch/issues/110213: backends follow one rule on empty rows. */
static void backends_agree_on_empty_rows(void **state) {
    (void)state;
    attention_case c = simple_case(1, 3, 3, 1, 1, 4);
    test_random random = {50};
    attention_inputs in = attention_inputs_make(&c, &random);
    const uint8_t visible[] = {0, 0, 0, 1, 1, 0, 1, 1, 1};
    succeed(fm_mask_from_dense((fm_mask_shape){1, 1, 3, 3}, visible, NULL, (fm_mask **)&c.mask));
    attention_results r[BACKENDS];
    for (int i = 0; i < BACKENDS; i++) {
        r[i] = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &r[i], 0, 0, 1);
        assert_like_oracle(&c, &in, &r[i]);
    }
    for (int i = 0; i < BACKENDS; i++) {
        attention_results_free(&r[i]);
    }
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

/* https://github.com/flashinfer-ai/flashinfer/pull/1028: a call does not keep the mask of the one before. */
static void no_mask_outlives_its_call(void **state) {
    (void)state;
    attention_case c = simple_case(1, 150, 150, 2, 1, 16), causal = c;
    causal.causal = true;
    test_random random = {51};
    attention_inputs in = attention_inputs_make(&c, &random);
    succeed(fm_mask_random_sparse(150, 150, 0.3, 1, NULL, (fm_mask **)&c.mask));
    for (int i = 0; i < BACKENDS; i++) {
        attention_results first = run_on(backends[i], &c, &in), between = run_on(backends[i], &causal, &in);
        attention_results third = run_on(backends[i], &c, &in);
        attention_assert_same_bits(&first, &third);
        assert_like_oracle(&causal, &in, &between);
        attention_results_free(&first);
        attention_results_free(&between);
        attention_results_free(&third);
    }
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

/* https://github.com/Dao-AILab/flash-attention/issues/152, https://github.com/Dao-AILab/flash-attention/issues/622,
 * https://github.com/Dao-AILab/flash-attention/issues/13: f32 is a dtype like the others;
 * https://github.com/pytorch/pytorch/issues/148752, https://github.com/pytorch/pytorch/issues/169224: the CPU has a backward. */
static void f32_runs_both_ways_on_the_cpu(void **state) {
    (void)state;
    for (int64_t n = 8; n <= 16; n += 8) {
        attention_case c = simple_case(1, n, n, 2, 1, 8);
        test_random random = {52};
        attention_inputs in = attention_inputs_make(&c, &random);
        succeed(fm_mask_sink_window(n, n, 1, 3, (fm_mask **)&c.mask));
        attention_results r = run_on(FM_BACKEND_AUTO, &c, &in);
        assert_like_oracle(&c, &in, &r);
        assert_true(test_tensor_largest(&r.grad_query) > 0.01 && test_tensor_largest(&r.grad_key) > 0.01);
        attention_results_free(&r);
        fm_mask_free((fm_mask *)c.mask);
        attention_inputs_free(&in);
    }
}

/* Many times, on changing numbers of threads. */
static void assert_repeatable(const attention_case *c, int times) {
    test_random random = {53};
    attention_inputs in = attention_inputs_make(c, &random);
    attention_results first = run_on(FM_BACKEND_CPU, c, &in);
    for (int k = 0; k < times; k++) {
        attention_results r = attention_run(c, &in, (attention_run_options){.backend = FM_BACKEND_CPU, .num_threads = 1 + k % 4});
        attention_assert_same_bits(&first, &r);
        attention_results_free(&r);
    }
    attention_results_free(&first);
    attention_inputs_free(&in);
}

/* https://github.com/Dao-AILab/flash-attention/issues/2244, https://github.com/PaddlePaddle/flash-attention/pull/134,
 * https://github.com/SandAI-org/MagiAttention/issues/65, https://github.com/Dao-AILab/flash-attention/issues/359 */
static void repeated_calls_give_the_same_bits(void **state) {
    (void)state;
    attention_case c = simple_case(2, 512, 512, 3, 3, 64);
    c.dtype = FM_F16;
    c.causal = true;
    assert_repeatable(&c, 20);

    c = simple_case(1, 512, 512, 8, 2, 32);
    c.dtype = FM_BF16;
    const fm_question question = {200, 3, (const int64_t[]){100, 150, 62}};
    succeed(fm_mask_share_question(1, &question, false, 0, (fm_mask **)&c.mask));
    assert_repeatable(&c, 50);
    fm_mask_free((fm_mask *)c.mask);

    c = simple_case(4, 256, 128, 1, 1, 128);
    assert_repeatable(&c, 50);
}

/* The loss sum(lse): its gradient is P scale k for a query, P scale q for a key, 0 for a value. */
static void a_loss_of_lse_alone_has_gradients(void **state) {
    (void)state;
    enum { S = 70, D = 8 };
    attention_case c = simple_case(1, S, S, 1, 1, D);
    c.causal = true;
    c.with_grad_lse = true;
    test_random random = {55};
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int64_t i = 0; i < S; i++) {
        set_row(&in.grad_output, 0, i, 0.0);
        in.grad_lse[i] = 1.0f;
    }
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        double grad_key[S][D] = {{0}};
        for (int64_t row = 0; row < S; row++) {
            double grad_query[D] = {0};
            for (int64_t j = 0; j <= row; j++) {
                double score = 0.0;
                for (int64_t d = 0; d < D; d++) {
                    score += element_at(&in.query, 0, row, 0, d) * element_at(&in.key, 0, j, 0, d) / sqrt(D);
                }
                const double weight = exp(score - element_at(&r.lse, 0, 0, 0, row)) / sqrt(D);
                for (int64_t d = 0; d < D; d++) {
                    grad_query[d] += weight * element_at(&in.key, 0, j, 0, d);
                    grad_key[j][d] += weight * element_at(&in.query, 0, row, 0, d);
                }
            }
            for (int64_t d = 0; d < D; d++) {
                assert_true(fabs(element_at(&r.grad_query, 0, row, 0, d) - grad_query[d]) < 1e-5);
                assert_true(element_at(&r.grad_value, 0, row, 0, d) == 0.0);
            }
        }
        for (int64_t k = 0; k < S * D; k++) {
            assert_true(fabs(element_at(&r.grad_key, 0, k / D, 0, k % D) - grad_key[k / D][k % D]) < 1e-4);
        }
        attention_results_free(&r);
    }
    attention_inputs_free(&in);
}

/* A hidden key is not one with a large negative score: visible scores may be far lower still. */
static void scores_below_any_fill_value_win_over_hidden_keys(void **state) {
    (void)state;
    attention_case c = simple_case(1, 4, 4, 1, 1, 4);
    c.scale = 1.0f;
    test_random random = {56};
    attention_inputs in = attention_inputs_make(&c, &random);
    const uint8_t visible[] = {1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0};
    succeed(fm_mask_from_dense((fm_mask_shape){1, 1, 4, 4}, visible, NULL, (fm_mask **)&c.mask));
    for (int64_t i = 0; i < 4; i++) {
        set_row(&in.query, 0, i, 1000.0);
        set_row(&in.key, 0, i, i < 2 ? -1000.0 : 1.0); /* scores -4e6 where visible, +4000 where not */
    }
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        for (int64_t d = 0; d < 4; d++) {
            const double mean = (element_at(&in.value, 0, 0, 0, d) + element_at(&in.value, 0, 1, 0, d)) / 2.0;
            assert_true(fabs(element_at(&r.output, 0, 2, 0, d) - mean) < 1e-6);
        }
        assert_true(element_at(&r.lse, 0, 0, 0, 1) < -3.9e6);
        assert_empty_rows(&c, &r, 0, 3, 4);
        attention_results_free(&r);
    }
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

/* Tensors of [2, 40, heads, 5] spread over 32 GiB of addresses each, of which only the pages in use take memory: positions of
 * one item are up to 2^31 elements apart, the items 2^32. */
enum { FAR_TENSORS = 8, FAR_ROWS = 40 };
static const size_t far_bytes = (size_t)32 << 30;

static bool make_far(test_tensor *t, const test_tensor *like) {
    void *pages = mmap(NULL, far_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *t = *like;
    t->buffer = NULL;
    t->view.data = pages;
    const int64_t strides[4] = {(INT64_C(1) << 32) + 64, (INT64_C(1) << 26) + 16, 8, 1};
    memcpy(t->view.stride, strides, sizeof strides);
    assert_true(fm_tensor_offset(&t->view, 0, FAR_ROWS - 1, 0, 0) > INT32_MAX);
    assert_true((size_t)fm_tensor_offset(&t->view, 1, FAR_ROWS - 1, 2, 0) * sizeof(float) < far_bytes);
    return pages != MAP_FAILED;
}

/* https://github.com/pytorch/pytorch/issues/190857, https://github.com/Dao-AILab/flash-attention/pull/1500,
 * https://github.com/Dao-AILab/flash-attention/issues/2214 */
static void strides_beyond_32_bits_change_no_bit(void **state) {
    (void)state;
    attention_case c = simple_case(2, FAR_ROWS, FAR_ROWS, 2, 1, 5);
    c.causal = true;
    test_random random = {57};
    attention_inputs in = attention_inputs_make(&c, &random);
    for (int i = 0; i < BACKENDS; i++) {
        attention_results wanted = run_on(backends[i], &c, &in);
        const test_tensor *like[FAR_TENSORS] = {&in.query,        &in.key,           &in.value,
                                                &in.grad_output,  &wanted.output,    &wanted.grad_query,
                                                &wanted.grad_key, &wanted.grad_value};
        test_tensor t[FAR_TENSORS];
        bool mapped = true;
        for (int k = 0; k < FAR_TENSORS; k++) {
            mapped = make_far(&t[k], like[k]) && mapped;
        }
        for (int k = 0; k < 4 && mapped; k++) {
            test_tensor_copy(&t[k], like[k]);
        }
        fm_attention_forward_args f = FM_ATTENTION_FORWARD_ARGS_INIT;
        f.query = t[0].view;
        f.key = t[1].view;
        f.value = t[2].view;
        f.output = t[4].view;
        f.lse = wanted.lse.buffer;
        f.causal = true;
        f.backend = backends[i];
        fm_attention_backward_args b = FM_ATTENTION_BACKWARD_ARGS_INIT;
        b.forward = &f;
        b.grad_output = t[3].view;
        b.grad_query = t[5].view;
        b.grad_key = t[6].view;
        b.grad_value = t[7].view;
        if (mapped) {
            succeed(fm_attention_forward(&f));
            succeed(fm_attention_backward(&b));
        }
        for (int k = 0; k < FAR_TENSORS; k++) {
            assert_true(!mapped || test_tensor_same(&t[k], like[k]));
            if (t[k].view.data != MAP_FAILED) {
                munmap(t[k].view.data, far_bytes);
            }
        }
        attention_results_free(&wanted);
        if (!mapped) {
            attention_inputs_free(&in);
            print_message("no address space for 8 x 32 GiB\n");
            skip();
        }
    }
    attention_inputs_free(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backends_agree_on_empty_rows),
        cmocka_unit_test(no_mask_outlives_its_call),
        cmocka_unit_test(f32_runs_both_ways_on_the_cpu),
        cmocka_unit_test(repeated_calls_give_the_same_bits),
        cmocka_unit_test(a_loss_of_lse_alone_has_gradients),
        cmocka_unit_test(scores_below_any_fill_value_win_over_hidden_keys),
        cmocka_unit_test(strides_beyond_32_bits_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

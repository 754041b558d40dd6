/* Faults that users of other attention libraries reported in public, on every backend: lengths, tiles, head dims, windows. */
#include <flashmask/masks.h>

#include "core/tensor.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Random inputs; every backend as close to the oracle as a plain computation. */
static void check(const attention_case *c) {
    test_random random = {40};
    attention_inputs in = attention_inputs_make(c, &random);
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], c, &in);
        assert_like_oracle(c, &in, &r);
        assert_finite(&r);
        attention_results_free(&r);
    }
    attention_inputs_free(&in);
}

/* https://github.com/pytorch/pytorch/issues/127055 */
static void a_long_narrow_window_on_the_cpu_is_exact(void **state) {
    (void)state;
    attention_case c = simple_case(1, 600, 600, 1, 1, 2);
    c.window_left = 10;
    c.window_right = 0;
    check(&c);
}

/* https://github.com/pytorch/pytorch/issues/153799: causal and a change of the scores, backward too, at any length;
 * https://github.com/meta-pytorch/attention-gym/issues/50: 128 rows were right, the 9 after them were not. */
static void any_length_is_exact_to_its_last_row(void **state) {
    (void)state;
    const int64_t lengths[] = {1, 2, 63, 65, 127, 129, 137, 255, 257, 1025};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        attention_case c = simple_case(1, lengths[k], lengths[k], lengths[k] == 137 ? 2 : 1, 1, 64);
        c.dtype = FM_BF16;
        c.causal = true;
        c.softcap = 20.0f;
        check(&c);
    }
    attention_case c = simple_case(1, 137, 137, 2, 2, 64);
    c.causal = true;
    check(&c);
}

/* https://github.com/pytorch/pytorch/issues/158212: the first keys, the last ones, and every w-th in between. */
static void every_fourth_key_has_right_gradients(void **state) {
    (void)state;
    enum { T = 64, OFFSET = 4, W = 4 };
    for (int strided = 0; strided <= 1; strided++) {
        uint8_t visible[T * T];
        for (int i = 0; i < T; i++) {
            for (int j = 0; j < T; j++) {
                visible[i * T + j] = j <= i && (j < OFFSET || i - j < W || (strided && (i - j) % W == 0));
            }
        }
        attention_case c = simple_case(1, T, T, 2, 1, 16);
        succeed(fm_mask_from_dense((fm_mask_shape){1, 1, T, T}, visible, NULL, (fm_mask **)&c.mask));
        assert_int_equal(fm_mask_has_fallback(c.mask), strided);
        for (int dtype = 0; dtype < 3; dtype++) {
            c.dtype = (fm_dtype)dtype;
            check(&c);
        }
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* A tensor whose last byte is the last of a page, before one that cannot be touched. */
typedef struct guarded {
    void *pages;
    size_t bytes;
    test_tensor tensor;
} guarded;

static guarded guarded_make(int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (size_t)(n0 * n1 * n2 * n3) * sizeof(float);
    guarded g = {.bytes = (used + page - 1) / page * page + page};
    g.pages = mmap(NULL, g.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.pages != MAP_FAILED);
    assert_int_equal(mprotect((char *)g.pages + g.bytes - page, page, PROT_NONE), 0);
    g.tensor.view = fm_tensor_contiguous((char *)g.pages + g.bytes - page - used, FM_F32, n0, n1, n2, n3);
    return g;
}

/* https://github.com/PaddlePaddle/flash-attention/pull/67: a tile that the last key cuts is not read past it. */
static void nothing_past_the_last_key_is_touched(void **state) {
    (void)state;
    enum { S = 129, H = 2, D = 5 };
    attention_case c = simple_case(1, S, S, H, H, D);
    test_random random = {41};
    attention_inputs in = attention_inputs_make(&c, &random);
    const int32_t cu[] = {0, 60, S};
    succeed(fm_mask_from_cu_seqlens(cu, NULL, 2, true, S, S, (fm_mask **)&c.mask));
    guarded g[9]; /* query, key, value, grad_output; output, lse, grad_query, grad_key, grad_value */
    for (int k = 0; k < 9; k++) {
        g[k] = k == 5 ? guarded_make(1, 1, H, S) : guarded_make(1, S, H, D);
    }
    const test_tensor *inputs[] = {&in.query, &in.key, &in.value, &in.grad_output};
    for (int k = 0; k < 4; k++) {
        test_tensor_copy(&g[k].tensor, inputs[k]);
    }
    for (int i = 0; i < BACKENDS; i++) {
        attention_results wanted = run_on(backends[i], &c, &in);
        fm_attention_forward_args f = FM_ATTENTION_FORWARD_ARGS_INIT;
        f.query = g[0].tensor.view;
        f.key = g[1].tensor.view;
        f.value = g[2].tensor.view;
        f.output = g[4].tensor.view;
        f.lse = g[5].tensor.view.data;
        f.mask = c.mask;
        f.backend = backends[i];
        succeed(fm_attention_forward(&f));
        fm_attention_backward_args b = FM_ATTENTION_BACKWARD_ARGS_INIT;
        b.forward = &f;
        b.grad_output = g[3].tensor.view;
        b.grad_query = g[6].tensor.view;
        b.grad_key = g[7].tensor.view;
        b.grad_value = g[8].tensor.view;
        succeed(fm_attention_backward(&b));
        for (int k = 0; k < RESULT_COUNT - 1; k++) {
            assert_true(test_tensor_same(result_at(&wanted, k), &g[4 + k].tensor));
        }
        attention_results_free(&wanted);
    }
    for (int k = 0; k < 9; k++) {
        munmap(g[k].pages, g[k].bytes);
    }
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

/* The flags of the call and a mask that says the same give the same bits. */
static void assert_flags_equal_mask(attention_case c, fm_mask *mask) {
    test_random random = {42};
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_case by_mask = c;
    by_mask.mask = mask;
    by_mask.causal = false;
    by_mask.window_left = by_mask.window_right = -1;
    for (int i = 0; i < BACKENDS; i++) {
        attention_results a = run_on(backends[i], &c, &in), b = run_on(backends[i], &by_mask, &in);
        attention_assert_same_bits(&a, &b);
        assert_like_oracle(&by_mask, &in, &b);
        if (c.causal && c.rows > c.columns) {
            assert_empty_rows(&c, &a, 0, 0, c.rows - c.columns);
        }
        attention_results_free(&a);
        attention_results_free(&b);
    }
    fm_mask_free(mask);
    attention_inputs_free(&in);
}

/* https://github.com/Dao-AILab/flash-attention/issues/1778, https://github.com/NVIDIA/cutlass/issues/2336: where Sq > Sk, the
 * first rows see nothing. */
static void causal_is_bottom_right_and_first_rows_may_be_empty(void **state) {
    (void)state;
    const int64_t sizes[][2] = {{2, 5}, {5, 2}, {3, 128}, {2048, 1024}};
    for (int k = 0; k < 4; k++) {
        attention_case c = simple_case(1, sizes[k][0], sizes[k][1], 1, 1, 8);
        c.causal = true;
        assert_flags_equal_mask(c, mask_by_rule((fm_mask_shape){1, 1, c.rows, c.columns}, rule_causal));
    }
}

/* https://github.com/NVIDIA/TransformerEngine/issues/1197: a window as flags, as intervals, and beside a bitmap. */
static void a_window_is_the_same_however_it_is_given(void **state) {
    (void)state;
    enum { S = 32, W = 16 };
    fm_mask *window, *last, *both;
    attention_case c = simple_case(1, S, S, 2, 1, 64);
    c.window_left = W;
    c.window_right = 0;
    succeed(fm_mask_sliding_window(S, S, W, 0, &window));
    assert_flags_equal_mask(c, window);

    uint8_t visible[S * S]; /* the last key but one is seen by every second row: the whole stripe is a bitmap */
    for (int i = 0; i < S * S; i++) {
        visible[i] = i % S != S - 2 || i / S % 2 == 0;
    }
    succeed(fm_mask_from_dense((fm_mask_shape){1, 1, S, S}, visible, NULL, &last));
    assert_true(fm_mask_has_fallback(last));
    succeed(fm_mask_sliding_window(S, S, W, 0, &window));
    succeed(fm_mask_and(last, window, NULL, &both));
    assert_false(fm_mask_has_fallback(both)); /* rows 30 and on see that key: two rows */
    c.mask = last;
    assert_flags_equal_mask(c, both);
    fm_mask_free(last);
    fm_mask_free(window);
}

/* https://github.com/unslothai/unsloth/issues/4036, https://github.com/meta-pytorch/attention-gym/issues/127,
 * https://github.com/Dao-AILab/flash-attention/issues/2492, https://github.com/Dao-AILab/flash-attention/issues/1290,
 * https://github.com/flashinfer-ai/flashinfer/issues/860: value with a head dim of its own. */
static void any_head_dim_works_both_ways(void **state) {
    (void)state;
    const int64_t dims[][2] = {{8, 8},   {16, 16},   {31, 31},   {40, 40},   {64, 64},   {72, 72},   {80, 80},
                               {96, 96}, {104, 104}, {128, 128}, {192, 192}, {256, 256}, {192, 128}, {1, 1}};
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        attention_case c = simple_case(1, 130, 130, 2, 1, dims[k][0]);
        c.head_dim_v = dims[k][1];
        c.dtype = FM_BF16;
        c.causal = true;
        check(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_narrow_window_on_the_cpu_is_exact),
        cmocka_unit_test(any_length_is_exact_to_its_last_row),
        cmocka_unit_test(every_fourth_key_has_right_gradients),
        cmocka_unit_test(nothing_past_the_last_key_is_touched),
        cmocka_unit_test(causal_is_bottom_right_and_first_rows_may_be_empty),
        cmocka_unit_test(a_window_is_the_same_however_it_is_given),
        cmocka_unit_test(any_head_dim_works_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

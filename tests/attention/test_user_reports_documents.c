/* Faults that users of other attention libraries reported in public, on every backend: packed documents, batches, padding. */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every backend is as close to the oracle as a plain computation, and finite. */
static void assert_backends(const attention_case *c, const attention_inputs *in) {
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], c, in);
        assert_like_oracle(c, in, &r);
        assert_finite(&r);
        attention_results_free(&r);
    }
}

/* Rows [start, end) of one tensor of one item. */
static void assert_zero_rows(const test_tensor *t, int64_t b, int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i++) {
        for (int64_t k = 0; k < t->view.shape[2] * t->view.shape[3]; k++) {
            assert_true(element_at(t, b, i, k / t->view.shape[3], k % t->view.shape[3]) == 0.0);
        }
    }
}

static void assert_near(const test_tensor *a, const test_tensor *b, double tolerance) {
    assert_true(test_tensor_distance(a, b) <= tolerance);
}

/* In f64, causal attention over tokens [first, first + count) of item b alone gives what the whole run `all` gives there. */
static void assert_as_alone(const attention_case *c, const attention_inputs *in, const attention_results *all, int64_t b,
                            int64_t first, int64_t count) {
    attention_case alone = *c;
    alone.batch = 1;
    alone.rows = alone.columns = count;
    alone.mask = NULL;
    alone.causal = true;
    const test_tensor *inputs[] = {&in->query, &in->key, &in->value, &in->grad_output};
    test_tensor own[4];
    for (int k = 0; k < 4; k++) {
        const test_tensor item = test_tensor_item(inputs[k], b);
        own[k] = test_tensor_rows(&item, first, count);
    }
    const attention_inputs part = {.query = own[0], .key = own[1], .value = own[2], .grad_output = own[3]};
    attention_results r = run_on(FM_BACKEND_REFERENCE, &alone, &part);
    const test_tensor *pairs[][2] = {{&all->output, &r.output},
                                     {&all->grad_query, &r.grad_query},
                                     {&all->grad_key, &r.grad_key},
                                     {&all->grad_value, &r.grad_value}};
    for (int k = 0; k < 4; k++) {
        const test_tensor item = test_tensor_item(pairs[k][0], b), ours = test_tensor_rows(&item, first, count);
        assert_near(&ours, pairs[k][1], 1e-12);
    }
    attention_results_free(&r);
}

/* https://github.com/pytorch/pytorch/pull/186786, https://github.com/Dao-AILab/flash-attention/pull/2324: tokens after the last
 * document get zero gradients, whatever their memory held; every result starts as NaN. */
static void tokens_after_the_last_document_get_zeros(void **state) {
    (void)state;
    attention_case c = simple_case(1, 946, 946, 2, 1, 16);
    test_random random = {20};
    attention_inputs in = attention_inputs_make(&c, &random);
    const int32_t cu[] = {0, 144, 432, 944};
    succeed(fm_mask_from_cu_seqlens(cu, NULL, 3, true, 946, 946, (fm_mask **)&c.mask));
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &r, 0, 944, 946);
        assert_zero_rows(&r.grad_key, 0, 944, 946);
        assert_zero_rows(&r.grad_value, 0, 944, 946);
        assert_like_oracle(&c, &in, &r);
        attention_results_free(&r);
    }
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

/* https://github.com/Dao-AILab/flash-attention/issues/2562, https://github.com/Dao-AILab/flash-attention/issues/1254,
 * https://github.com/Dao-AILab/flash-attention/issues/1537: documents without rows, without keys, of one token. */
static void documents_without_rows_or_keys_run_both_ways(void **state) {
    (void)state;
    const struct {
        int64_t documents, heads, heads_kv, head_dim;
        bool causal;
        int32_t cu_q[5], cu_k[5];
    } table[] = {
        {4, 4, 1, 256, false, {0, 0, 3, 5, 5}, {0, 2, 4, 6, 9}},
        {4, 4, 1, 256, true, {0, 0, 151, 256, 256}, {0, 317, 535, 640, 1024}},
        {3, 2, 2, 128, false, {0, 0, 0, 7}, {0, 0, 1, 14}},
        {3, 9, 3, 64, true, {0, 1, 1, 2}, {0, 3, 3, 8}},
    };
    for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
        const int64_t n = table[k].documents, Sq = table[k].cu_q[n], Sk = table[k].cu_k[n];
        attention_case c = simple_case(1, Sq, Sk, table[k].heads, table[k].heads_kv, table[k].head_dim);
        c.dtype = FM_BF16;
        test_random random = {21};
        attention_inputs in = attention_inputs_make(&c, &random);
        succeed(fm_mask_from_cu_seqlens(table[k].cu_q, table[k].cu_k, n, table[k].causal, Sq, Sk, (fm_mask **)&c.mask));
        for (int i = 0; i < BACKENDS; i++) {
            attention_results r = run_on(backends[i], &c, &in);
            for (int64_t d = 0; d < n; d++) {
                if (table[k].cu_q[d] == table[k].cu_q[d + 1]) { /* keys without rows */
                    assert_zero_rows(&r.grad_key, 0, table[k].cu_k[d], table[k].cu_k[d + 1]);
                    assert_zero_rows(&r.grad_value, 0, table[k].cu_k[d], table[k].cu_k[d + 1]);
                }
            }
            assert_like_oracle(&c, &in, &r);
            attention_results_free(&r);
        }
        fm_mask_free((fm_mask *)c.mask);
        attention_inputs_free(&in);
    }
}

/* https://github.com/huggingface/transformers/issues/29075 */
static void left_padded_items_equal_unpadded_ones(void **state) {
    (void)state;
    attention_case c = simple_case(2, 8, 8, 2, 1, 8);
    test_random random = {22};
    attention_inputs in = attention_inputs_make(&c, &random), wide = attention_inputs_widen(&c, &in);
    fm_mask *padding, *causal;
    succeed(fm_mask_padding(2, 8, 8, (const int64_t[]){3, 0}, (const int64_t[]){0, 0}, &padding));
    succeed(fm_mask_causal(8, 8, &causal));
    succeed(fm_mask_and(padding, causal, NULL, (fm_mask **)&c.mask));
    attention_results all = run_on(FM_BACKEND_REFERENCE, &c, &wide);
    assert_empty_rows(&c, &all, 0, 0, 3);
    assert_as_alone(&c, &wide, &all, 0, 3, 5);
    assert_as_alone(&c, &wide, &all, 1, 0, 8);
    assert_backends(&c, &in);
    attention_results_free(&all);
    fm_mask_free(padding);
    fm_mask_free(causal);
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
    attention_inputs_free(&wide);
}

/* https://github.com/facebookresearch/xformers/issues/722 */
static void short_documents_in_bf16_are_finite(void **state) {
    (void)state;
    attention_case c = simple_case(1, 16, 16, 2, 2, 16);
    c.dtype = FM_BF16;
    test_random random = {23};
    attention_inputs in = attention_inputs_make(&c, &random);
    succeed(fm_mask_documents(3, (const int64_t[]){5, 1, 10}, true, 0, (fm_mask **)&c.mask));
    assert_backends(&c, &in);
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

static attention_inputs item_of(const attention_inputs *in, int64_t b) {
    return (attention_inputs){.query = test_tensor_item(&in->query, b),
                              .key = test_tensor_item(&in->key, b),
                              .value = test_tensor_item(&in->value, b),
                              .grad_output = test_tensor_item(&in->grad_output, b)};
}

/* The first `batch` items with a mask of their own each have the bits of calls with one item. */
static void assert_items_are_independent(attention_case c, const attention_inputs *in, fm_mask *const items[], fm_backend_id on) {
    succeed(fm_mask_stack_batch((const fm_mask *const *)items, c.batch, (fm_mask **)&c.mask));
    attention_results all = run_on(on, &c, in);
    for (int64_t b = 0; b < c.batch; b++) {
        attention_case alone = c;
        alone.batch = 1;
        alone.mask = items[b];
        const attention_inputs own = item_of(in, b);
        attention_results r = run_on(on, &alone, &own);
        for (int i = 0; i < RESULT_COUNT - 1; i++) {
            const test_tensor *whole = result_at(&all, i);
            const test_tensor ours = whole == &all.lse ? test_tensor_rows(whole, b, 1) : test_tensor_item(whole, b);
            assert_true(test_tensor_same(&ours, result_at(&r, i)));
        }
        attention_results_free(&r);
    }
    attention_results_free(&all);
    fm_mask_free((fm_mask *)c.mask);
}

/* https://github.com/pytorch/pytorch/issues/157675: a mask for each sequence of the batch;
 * https://github.com/pytorch/pytorch/issues/152297: the last batch is smaller. */
static void every_item_of_a_batch_has_its_own_mask(void **state) {
    (void)state;
    attention_case c = simple_case(4, 32, 32, 2, 1, 16);
    test_random random = {24};
    attention_inputs in = attention_inputs_make(&c, &random);
    fm_mask *items[4];
    succeed(fm_mask_documents(1, (const int64_t[]){32}, true, 0, &items[0]));
    succeed(fm_mask_documents(2, (const int64_t[]){16, 16}, true, 0, &items[1]));
    succeed(fm_mask_documents(2, (const int64_t[]){1, 31}, true, 0, &items[2]));
    succeed(fm_mask_documents(4, (const int64_t[]){8, 8, 8, 8}, true, 0, &items[3]));
    for (int i = 0; i < BACKENDS; i++) {
        for (c.batch = 4; c.batch >= 3; c.batch--) {
            attention_inputs some = in;
            test_tensor *tensors[] = {&some.query, &some.key, &some.value, &some.grad_output};
            for (int k = 0; k < 4; k++) {
                tensors[k]->view.shape[0] = c.batch;
            }
            assert_items_are_independent(c, &some, items, backends[i]);
        }
    }
    for (int b = 0; b < 4; b++) {
        fm_mask_free(items[b]);
    }
    attention_inputs_free(&in);
}

/* https://github.com/MeetKai/functionary/issues/265, https://github.com/huggingface/nanoVLM/pull/204,
 * https://github.com/modelscope/ms-swift/issues/5690, https://github.com/axolotl-ai-cloud/axolotl/issues/449: packed documents do
 * not see each other, on the CPU too. */
static void packed_documents_equal_documents_alone(void **state) {
    (void)state;
    attention_case c = simple_case(1, 8, 8, 2, 1, 8);
    test_random random = {25};
    attention_inputs in = attention_inputs_make(&c, &random), wide = attention_inputs_widen(&c, &in);
    succeed(fm_mask_documents(2, (const int64_t[]){3, 5}, true, 0, (fm_mask **)&c.mask));
    attention_results all = run_on(FM_BACKEND_REFERENCE, &c, &wide);
    assert_as_alone(&c, &wide, &all, 0, 0, 3);
    assert_as_alone(&c, &wide, &all, 0, 3, 5);
    assert_backends(&c, &in);
    for (int i = 0; i < BACKENDS; i++) {
        attention_results before = run_on(backends[i], &c, &in);
        for (int64_t row = 0; row < 3; row++) { /* another first document */
            set_row(&in.query, 0, row, 7.0 + i);
            set_row(&in.key, 0, row, -3.0);
            set_row(&in.value, 0, row, 1000.0 - i);
        }
        attention_results after = run_on(backends[i], &c, &in);
        for (int k = 0; k < RESULT_COUNT - 1; k++) {
            if (k != 1) { /* lse is [1, B, Hq, Sq] */
                const test_tensor a = test_tensor_rows(result_at(&before, k), 3, 5),
                                  b = test_tensor_rows(result_at(&after, k), 3, 5);
                assert_true(test_tensor_same(&a, &b));
            }
        }
        for (int64_t row = 3; row < 8; row++) {
            assert_true(element_at(&before.lse, 0, 0, 1, row) == element_at(&after.lse, 0, 0, 1, row));
        }
        attention_results_free(&before);
        attention_results_free(&after);
    }
    attention_results_free(&all);
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
    attention_inputs_free(&wide);
}

/* https://github.com/hiyouga/LlamaFactory/pull/7318 */
static void padding_in_document_ids_leaves_gradients_finite(void **state) {
    (void)state;
    attention_case c = simple_case(1, 7, 7, 2, 2, 8);
    test_random random = {26};
    attention_inputs in = attention_inputs_make(&c, &random);
    const int32_t ids[] = {1, 1, 1, 2, 2, 0, 0};
    succeed(fm_mask_from_document_ids(1, 7, ids, 0, true, NULL, (fm_mask **)&c.mask));
    for (int i = 0; i < BACKENDS; i++) {
        attention_results r = run_on(backends[i], &c, &in);
        assert_empty_rows(&c, &r, 0, 5, 7);
        assert_zero_rows(&r.grad_key, 0, 5, 7);
        assert_zero_rows(&r.grad_value, 0, 5, 7);
        assert_finite(&r);
        assert_like_oracle(&c, &in, &r);
        attention_results_free(&r);
    }
    fm_mask_free((fm_mask *)c.mask);
    attention_inputs_free(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_after_the_last_document_get_zeros),
        cmocka_unit_test(documents_without_rows_or_keys_run_both_ways),
        cmocka_unit_test(left_padded_items_equal_unpadded_ones),
        cmocka_unit_test(short_documents_in_bf16_are_finite),
        cmocka_unit_test(every_item_of_a_batch_has_its_own_mask),
        cmocka_unit_test(packed_documents_equal_documents_alone),
        cmocka_unit_test(padding_in_document_ids_leaves_gradients_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

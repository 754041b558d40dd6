/* What users of other libraries reported of GPUs, in the small: vectors in device memory, graphs, calls that follow one another, several
 * devices. Each test names its reports. */
#include "device_case.h"
#include "device_graph.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- device vectors -------------------------------------------------------------------------------------------------------- */

/* A plan of STARTEND vectors that lie on the host as v [heads of the mask: 1][Sk][count]. */
static device_plan startend_plan(const attention_case *c, const int32_t *v, int32_t count, bool causal, bool repeat_heads) {
    device_plan p = {.description = FM_MASK_VECTORS_INIT};
    size_t bytes = 0;
    int32_t intervals = 0;
    p.vectors = device_memory_make(v, (size_t)(c->columns * count) * sizeof *v, 0);
    p.description.format = FM_VECTORS_STARTEND;
    p.description.shape = (fm_mask_shape){1, repeat_heads ? c->heads : 1, c->rows, c->columns};
    p.description.vectors = count;
    p.description.causal = causal;
    p.description.data = p.vectors.data;
    p.description.stride[2] = count; /* batch and heads: 0 repeats */
    p.description.stride[3] = 1;
    p.description.device = (fm_device){FM_CUDA, 0};
    succeed(fm_mask_vectors_intervals(&p.description, &intervals));
    succeed(fm_plan_device_bytes(p.description.shape, intervals, NULL, &bytes));
    p.buffer = device_memory_make(NULL, bytes, 0);
    succeed(fm_plan_create_from_vectors(&p.description, NULL, p.buffer.data, bytes, NULL, &p.plan));
    return p;
}

/* Every form of the vectors, with values outside of the rows, ends before starts and the ends of the range: clamped as the host
 * does. https://github.com/SandAI-org/MagiAttention/issues/147, https://github.com/sgl-project/SpecForge/issues/452 */
static void vectors_out_of_range_mean_what_they_mean_on_the_host(void **state) {
    (void)state;
    enum { LENGTH = 200 };
    static const struct {
        int32_t vectors;
        bool causal;
    } forms[] = {{1, true}, {2, true}, {2, false}, {4, false}};
    test_random random = {13};
    for (int i = 0; i < 4 * COUNT(forms); i++) {
        const int32_t count = forms[i % 4].vectors;
        int32_t v[LENGTH * 4];
        for (int k = 0; k < LENGTH * count; k++) {
            const int32_t strange[] = {INT32_MIN, INT32_MAX, -3, -1, LENGTH, LENGTH + 7};
            v[k] = random_chance(&random, 0.2) ? strange[random_integer(&random, 0, 5)]
                                               : (int32_t)random_integer(&random, 0, LENGTH);
        }
        attention_case c = device_half_case(2, LENGTH, LENGTH, 4, 2, 64);
        succeed(fm_mask_from_startend_row_indices((fm_mask_shape){1, 1, LENGTH, LENGTH}, count, forms[i % 4].causal, v,
                                                  (fm_mask **)&c.mask));
        attention_inputs in = attention_inputs_make(&c, &random);
        device_plan plan = startend_plan(&c, v, count, forms[i % 4].causal, i % 8 >= 4);
        attention_results wanted = device_run_way(&c, &in, 1);
        attention_results r = device_run(&c, &in, (device_options){.plan = &plan, .deterministic = true});
        attention_assert_same_bits(&wanted, &r);
        attention_results_free(&wanted);
        attention_results_free(&r);
        device_plan_free(&plan);
        attention_inputs_free(&in);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Captured with documents of 8 and 8, replayed with 3 and 13.
 * https://github.com/Dao-AILab/flash-attention/issues/1164, https://github.com/pytorch/torchtitan/pull/3776 */
static void a_replay_takes_the_documents_of_its_own_time(void **state) {
    (void)state;
    enum { LENGTH = 16 };
    test_random random = {14};
    int32_t v[2][LENGTH];
    const int32_t cu[2][3] = {{0, 8, LENGTH}, {0, 3, LENGTH}};
    for (int j = 0; j < LENGTH; j++) {
        v[0][j] = j < 8 ? 8 : LENGTH;
        v[1][j] = j < 3 ? 3 : LENGTH;
    }
    attention_case c = device_half_case(1, LENGTH, LENGTH, 2, 1, 64);
    attention_inputs in = attention_inputs_make(&c, &random);
    device_plan plan = startend_plan(&c, v[0], 1, true, false);
    cudaStream_t stream = device_stream_make();
    device_call x = device_call_make(&c, &in, (device_options){.plan = &plan, .deterministic = true, .stream = stream});
    device_call_launch(&x);
    device_capture_begin(stream);
    succeed(fm_plan_update_from_vectors(plan.plan, &plan.description, stream));
    device_call_launch(&x);
    cudaGraphExec_t graph = device_capture_end(stream);
    for (int i = 1; i >= 0; i--) {
        device_memory_write(&plan.vectors, v[i]);
        device_call_poison(&x);
        device_replay(graph, stream);
        device_call_read(&x);
        c.mask = device_documents(cu[i], NULL, 2, true, LENGTH, LENGTH);
        assert_like_oracle(&c, &in, &x.results);
        fm_mask_free((fm_mask *)c.mask);
    }
    CUDA(cudaGraphExecDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    device_call_free(&x);
    device_plan_free(&plan);
    attention_inputs_free(&in);
}

/* ---- calls that follow one another ----------------------------------------------------------------------------------------- */

/* https://github.com/flashinfer-ai/flashinfer/pull/1028, https://github.com/PaddlePaddle/Paddle/pull/74929 */
static void a_mask_leaves_nothing_behind_for_the_next_call(void **state) {
    (void)state;
    const int32_t cu[] = {0, 30, 100};
    test_random random = {15};
    attention_case masked = device_half_case(1, 100, 100, 2, 1, 64), plain = masked;
    masked.mask = device_documents(cu, NULL, 2, false, 100, 100);
    plain.causal = true;
    attention_inputs in = attention_inputs_make(&plain, &random);
    attention_results first = device_run_way(&masked, &in, 1), second = device_run_way(&plain, &in, 0);
    attention_results third = device_run_way(&masked, &in, 1);
    attention_assert_same_bits(&first, &third);
    assert_like_oracle(&plain, &in, &second);
    attention_results_free(&first);
    attention_results_free(&second);
    attention_results_free(&third);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)masked.mask);
}

/* One plan for batches of 4 and of 3. https://github.com/pytorch/pytorch/issues/152297 */
static void one_plan_serves_batches_of_any_size(void **state) {
    (void)state;
    const int32_t cu[] = {0, 50, 51, 100};
    test_random random = {16};
    attention_case c = device_half_case(4, 100, 100, 2, 1, 64);
    c.mask = device_documents(cu, NULL, 3, true, 100, 100);
    device_plan plan = device_plan_of_mask(&c, NULL);
    for (c.batch = 4; c.batch >= 1; c.batch--) {
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results r = device_run(&c, &in, (device_options){.plan = &plan});
        assert_like_oracle(&c, &in, &r);
        attention_results_free(&r);
        attention_inputs_free(&in);
    }
    device_plan_free(&plan);
    fm_mask_free((fm_mask *)c.mask);
}

/* Activation checkpointing: forward, forward again, backward from the second one's results; the mask is not the causal one.
 * https://github.com/meta-pytorch/attention-gym/issues/53, https://github.com/pytorch/pytorch/issues/175258,
 * https://github.com/lightly-ai/lightly/pull/2050 */
static void recomputing_the_forward_pass_changes_no_gradient(void **state) {
    (void)state;
    const int64_t lengths[] = {70, 30, 101}, prefix[] = {9, 0, 50};
    test_random random = {17};
    attention_case c = device_half_case(1, 201, 201, 4, 2, 64);
    succeed(fm_mask_prefix_documents(3, prefix, lengths, 0, (fm_mask **)&c.mask));
    attention_inputs in = attention_inputs_make(&c, &random);
    const device_options options = {.deterministic = true};
    attention_results once = device_run(&c, &in, options);
    device_call x = device_call_make(&c, &in, options);
    device_call_launch_forward(&x);
    device_call_poison(&x);
    device_call_launch_forward(&x);
    device_call_launch_backward(&x);
    attention_results again = device_call_finish(&x);
    attention_assert_same_bits(&once, &again);
    attention_results_free(&once);
    attention_results_free(&again);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* ---- devices ------------------------------------------------------------------------------------------------------------- */

/* Everything on device 1 while device 0 is current, which it stays. https://github.com/flashinfer-ai/flashinfer/issues/452,
 * https://github.com/Dao-AILab/flash-attention/pull/1793 */
static void tensors_of_another_device_than_the_current_one(void **state) {
    (void)state;
    int devices = 0, current = -1;
    CUDA(cudaGetDeviceCount(&devices));
    if (devices < 2) {
        print_message("skipped: needs two CUDA devices\n");
        skip();
    }
    test_random random = {18};
    attention_case c = device_half_case(1, 200, 200, 2, 1, 128);
    c.causal = true;
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results here = device_run(&c, &in, (device_options){.deterministic = true});
    CUDA(cudaSetDevice(1));
    device_call x = device_call_make(&c, &in, (device_options){.deterministic = true});
    enum { VIEWS = 8 };
    fm_tensor *const views[VIEWS] = {&x.forward.query,     &x.forward.key,          &x.forward.value,
                                     &x.forward.output,    &x.backward.grad_output, &x.backward.grad_query,
                                     &x.backward.grad_key, &x.backward.grad_value};
    for (int i = 0; i < VIEWS; i++) {
        views[i]->device.index = 1;
    }
    CUDA(cudaSetDevice(0));
    device_call_launch(&x);
    CUDA(cudaGetDevice(&current));
    assert_int_equal(current, 0);
    CUDA(cudaSetDevice(1));
    attention_results there = device_call_finish(&x);
    CUDA(cudaSetDevice(0));
    attention_assert_same_bits(&here, &there);
    attention_results_free(&here);
    attention_results_free(&there);
    attention_inputs_free(&in);
}

/* ---- context parallel ------------------------------------------------------------------------------------------------------ */

/* Each of `world` ranks takes a share of the rows, as even as it goes, and the mask's slice. Documents and lengths need not divide.
 * https://github.com/axolotl-ai-cloud/axolotl/issues/3608, https://github.com/NVIDIA/TransformerEngine/issues/1930,
 * https://github.com/zhuzilin/ring-flash-attention/issues/51 */
static void assert_shares_of_rows(const int32_t *cu, int64_t documents, int64_t length, int64_t world, test_random *random) {
    attention_case whole = device_half_case(1, length, length, 2, 1, 64);
    whole.mask = device_documents(cu, NULL, documents, true, length, length);
    for (int64_t rank = 0; rank < world; rank++) {
        const int64_t first = length * rank / world, end = length * (rank + 1) / world;
        attention_case share = whole;
        share.rows = end - first;
        succeed(fm_mask_slice(whole.mask, first, end, 0, length, NULL, (fm_mask **)&share.mask));
        device_assert_case(&share, random);
        fm_mask_free((fm_mask *)share.mask);
    }
    fm_mask_free((fm_mask *)whole.mask);
}

static void shares_of_rows_need_not_divide(void **state) {
    (void)state;
    const int32_t five[] = {0, 100, 101, 500, 777, 1024}, seven[] = {0, 7}, small[] = {0, 1, 3, 6, 11};
    test_random random = {19};
    assert_shares_of_rows(five, 5, 1024, 2, &random);
    assert_shares_of_rows(seven, 1, 7, 2, &random);
    assert_shares_of_rows(small, 4, 11, 4, &random);
}

/* Inputs of the keys [first, end) alone. */
static attention_inputs inputs_of_keys(const attention_case *half, const attention_inputs *in, int64_t first,
                                       test_random *random) {
    attention_inputs keys = attention_inputs_make(half, random);
    const test_tensor key = test_tensor_rows(&in->key, first, half->columns);
    const test_tensor value = test_tensor_rows(&in->value, first, half->columns);
    test_tensor_copy(&keys.query, &in->query);
    test_tensor_copy(&keys.key, &key);
    test_tensor_copy(&keys.value, &value);
    test_tensor_copy(&keys.grad_output, &in->grad_output);
    return keys;
}

static void add_to(const test_tensor *sum, const test_tensor *t) {
    float *a = sum->buffer;
    const float *b = t->buffer;
    for (size_t i = 0; i < sum->bytes / sizeof *a; i++) {
        a[i] += b[i];
    }
}

/* A half's backward call from the merged output and lse; its gradients into the merged ones. */
static void finish_half(device_call *half, int64_t first, const attention_results *merged) {
    const int64_t count = half->attention.columns;
    device_memory_write(&half->outputs[RESULT_OUTPUT], merged->output.buffer);
    device_memory_write(&half->outputs[RESULT_LSE], merged->lse.buffer);
    device_call_launch_backward(half);
    device_call_read(half);
    const test_tensor keys = test_tensor_rows(&merged->grad_key, first, count);
    const test_tensor values = test_tensor_rows(&merged->grad_value, first, count);
    test_tensor_copy(&keys, &half->results.grad_key);
    test_tensor_copy(&values, &half->results.grad_value);
    add_to(&merged->grad_query, &half->results.grad_query);
    fm_mask_free((fm_mask *)half->attention.mask);
    device_call_free(half);
}

/* Forward calls of the halves of the keys, merged; backward calls of the halves from the merged output and lse: gradients of keys
 * are theirs, those of queries add up. */
static void halves_of_the_keys_merge_into_the_whole(void **state) {
    (void)state;
    const int32_t cu[] = {0, 100, 101, 300, 333};
    enum { LENGTH = 333, CUT = 150 };
    static const int64_t first[] = {0, CUT}, count[] = {CUT, LENGTH - CUT};
    test_random random = {20};
    attention_case c = device_half_case(1, LENGTH, LENGTH, 2, 1, 64);
    c.f32_results = true;
    c.mask = device_documents(cu, NULL, 4, true, LENGTH, LENGTH);
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results merged = attention_results_make(&c);
    memset(merged.grad_query.buffer, 0, merged.grad_query.bytes);
    device_call part[2];
    for (int k = 0; k < 2; k++) {
        attention_case half = c;
        half.columns = count[k];
        succeed(fm_mask_slice(c.mask, 0, LENGTH, first[k], first[k] + count[k], NULL, (fm_mask **)&half.mask));
        attention_inputs keys = inputs_of_keys(&half, &in, first[k], &random);
        part[k] = device_call_make(&half, &keys, (device_options){0});
        device_call_launch_forward(&part[k]);
        device_call_read(&part[k]);
        attention_inputs_free(&keys);
    }
    const attention_results *a = &part[0].results, *b = &part[1].results;
    succeed(fm_attention_merge(&a->output.view, a->lse.buffer, &b->output.view, b->lse.buffer, NULL, &merged.output.view,
                               merged.lse.buffer));
    for (int k = 0; k < 2; k++) {
        finish_half(&part[k], first[k], &merged);
    }
    assert_like_oracle(&c, &in, &merged);
    attention_results_free(&merged);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_out_of_range_mean_what_they_mean_on_the_host),
        cmocka_unit_test(a_replay_takes_the_documents_of_its_own_time),
        cmocka_unit_test(a_mask_leaves_nothing_behind_for_the_next_call),
        cmocka_unit_test(one_plan_serves_batches_of_any_size),
        cmocka_unit_test(recomputing_the_forward_pass_changes_no_gradient),
        cmocka_unit_test(tensors_of_another_device_than_the_current_one),
        cmocka_unit_test(shares_of_rows_need_not_divide),
        cmocka_unit_test(halves_of_the_keys_merge_into_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

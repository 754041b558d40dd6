/* Extents that make 32-bit offsets, grids and counters overflow, checked on samples: whole documents of a long pack, which are
 * attention problems of their own, and rows and keys of long sequences. */
#include "device_case.h"
#include "device_tensor.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random_mask.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <stdlib.h>
#include <string.h>

/* ---- packs too large for the host ------------------------------------------------------------------------------------ */

typedef struct pack {
    int64_t batch, length, heads, head_dim;
    fm_dtype dtype;
    int64_t documents, *lengths, *offset; /* of every batch item; offset [documents + 1] */
    fm_mask *mask;                        /* causal documents */
} pack;

enum { MOST_DOCUMENT = 900, SAMPLED_DOCUMENTS = 3 };

static pack pack_make(int64_t batch, int64_t length, int64_t heads, int64_t head_dim, fm_dtype dtype, test_random *random) {
    pack p = {.batch = batch, .length = length, .heads = heads, .head_dim = head_dim, .dtype = dtype};
    p.lengths = calloc((size_t)length, sizeof *p.lengths);
    p.offset = calloc((size_t)length + 1, sizeof *p.offset);
    assert_non_null(p.lengths);
    assert_non_null(p.offset);
    for (int64_t at = 0; at < length; p.documents++) {
        const int64_t most = length - at < MOST_DOCUMENT ? length - at : MOST_DOCUMENT;
        p.lengths[p.documents] = random_integer(random, 1, most);
        at += p.lengths[p.documents];
        p.offset[p.documents + 1] = at;
    }
    succeed(fm_mask_documents(p.documents, p.lengths, true, 0, &p.mask));
    return p;
}

static void pack_free(pack *p) {
    fm_mask_free(p->mask);
    free(p->lengths);
    free(p->offset);
}

enum { QUERY, KEY, VALUE, GRAD_OUTPUT, OUTPUT, GRAD_QUERY, GRAD_KEY, GRAD_VALUE, PACK_TENSORS };

typedef struct pack_run {
    device_tensor tensors[PACK_TENSORS]; /* without backward, the gradients are not there */
    device_memory lse;
    bool backward;
} pack_run;

static void *workspace_of(size_t bytes, device_memory *memory) {
    *memory = device_memory_make(NULL, bytes, 0);
    return memory->data;
}

static pack_run pack_run_make(const pack *p, bool backward, test_random *random) {
    pack_run r = {.backward = backward};
    for (int i = 0; i < PACK_TENSORS; i++) {
        if (backward || i == QUERY || i == KEY || i == VALUE || i == OUTPUT) {
            r.tensors[i] = device_tensor_make(p->dtype, p->batch, p->length, p->heads, p->head_dim);
        }
        if (i <= GRAD_OUTPUT && r.tensors[i].view.data != NULL) {
            device_tensor_fill(&r.tensors[i], random);
        }
    }
    r.lse = device_memory_make(NULL, (size_t)(p->batch * p->heads * p->length) * sizeof(float), 0);
    return r;
}

static void pack_run_launch(const pack *p, pack_run *r) {
    device_memory workspace[2] = {{0}};
    fm_attention_forward_args forward = FM_ATTENTION_FORWARD_ARGS_INIT;
    forward.query = r->tensors[QUERY].view;
    forward.key = r->tensors[KEY].view;
    forward.value = r->tensors[VALUE].view;
    forward.output = r->tensors[OUTPUT].view;
    forward.lse = r->lse.data;
    forward.mask = p->mask;
    succeed(fm_attention_forward_workspace(&forward, &forward.workspace_bytes));
    forward.workspace = workspace_of(forward.workspace_bytes, &workspace[0]);
    succeed(fm_attention_forward(&forward));
    if (r->backward) {
        fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
        backward.forward = &forward;
        backward.grad_output = r->tensors[GRAD_OUTPUT].view;
        backward.grad_query = r->tensors[GRAD_QUERY].view;
        backward.grad_key = r->tensors[GRAD_KEY].view;
        backward.grad_value = r->tensors[GRAD_VALUE].view;
        succeed(fm_attention_backward_workspace(&backward, &backward.workspace_bytes));
        backward.workspace = workspace_of(backward.workspace_bytes, &workspace[1]);
        succeed(fm_attention_backward(&backward));
    }
    CUDA(cudaDeviceSynchronize());
    device_memory_free(&workspace[0]);
    device_memory_free(&workspace[1]);
}

static void pack_run_free(pack_run *r) {
    for (int i = 0; i < PACK_TENSORS; i++) {
        device_tensor_free(&r->tensors[i]);
    }
    device_memory_free(&r->lse);
}

/* Documents [document, document + SAMPLED_DOCUMENTS) of one item and head against the oracle of those documents alone. */
static void pack_run_assert(const pack *p, const pack_run *r, int64_t item, int64_t head, int64_t document) {
    const int64_t first = p->offset[document], count = p->offset[document + SAMPLED_DOCUMENTS] - first;
    attention_case c = simple_case(1, count, count, 1, 1, p->head_dim);
    c.dtype = p->dtype;
    c.is_gpu = true;
    succeed(fm_mask_documents(SAMPLED_DOCUMENTS, p->lengths + document, true, 0, (fm_mask **)&c.mask));
    test_tensor t[PACK_TENSORS];
    for (int i = 0; i < PACK_TENSORS; i++) { /* without backward its tensors are compared with themselves */
        const int from = r->tensors[i].view.data != NULL ? i : i == GRAD_OUTPUT ? QUERY : i;
        t[i] = r->tensors[from].view.data != NULL ? device_tensor_slice(&r->tensors[from], item, first, count, head)
                                                  : (test_tensor){0};
    }
    attention_inputs in = {.query = t[QUERY], .key = t[KEY], .value = t[VALUE], .grad_output = t[GRAD_OUTPUT]};
    attention_inputs wide = attention_inputs_widen(&c, &in);
    attention_results ours = {.output = t[OUTPUT],
                              .lse = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, 1, 1, count),
                              .grad_query = t[GRAD_QUERY],
                              .grad_key = t[GRAD_KEY],
                              .grad_value = t[GRAD_VALUE]};
    const float *lse = (const float *)r->lse.data + (item * p->heads + head) * p->length + first;
    CUDA(cudaMemcpy(ours.lse.buffer, lse, ours.lse.bytes, cudaMemcpyDeviceToHost));
    attention_results plain = run_on(FM_BACKEND_REFERENCE, &c, &in), oracle = run_on(FM_BACKEND_REFERENCE, &c, &wide);
    for (int i = 0; i < (r->backward ? RESULT_GRAD_SINKS : RESULT_GRAD_QUERY); i++) {
        attention_assert_result_close(&c, &ours, &plain, &oracle, i);
    }
    attention_results_free(&ours);
    attention_results_free(&plain);
    attention_results_free(&oracle);
    attention_inputs_free(&wide);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* Runs a pack if the device has `gigabytes` free, with backward if it has `backward_gigabytes`; three samples. */
static void assert_pack(const pack *p, double gigabytes, double backward_gigabytes, test_random *random) {
    const double available = (double)device_free_bytes() * 1e-9;
    if (available < gigabytes) {
        print_message("skipped: %.0f GB of device memory are free, the case takes %.0f\n", available, gigabytes);
        skip();
    }
    if (available < backward_gigabytes) {
        print_message("backward skipped: %.0f GB of device memory are free, it takes %.0f\n", available, backward_gigabytes);
    }
    pack_run r = pack_run_make(p, available >= backward_gigabytes, random);
    pack_run_launch(p, &r);
    pack_run_assert(p, &r, p->batch - 1, p->heads - 1, p->documents - SAMPLED_DOCUMENTS);
    pack_run_assert(p, &r, p->batch - 1, 0, 0);
    pack_run_assert(p, &r, 0, p->heads / 2, p->documents / 2);
    pack_run_free(&r);
}

/* B * S * H * D = 2 * 65601 * 128 * 128 = 2^31 + 2129920. https://github.com/pytorch/pytorch/issues/190857,
 * https://github.com/Dao-AILab/flash-attention/pull/1500 */
static void tensors_of_more_than_two_to_the_31_elements(void **state) {
    (void)state;
    test_random random = {31};
    pack p = pack_make(2, 65601, 128, 128, FM_F16, &random);
    assert_true(p.batch * p.length * p.heads * p.head_dim > INT64_C(1) << 31);
    assert_pack(&p, 20.0, 50.0, &random);
    pack_free(&p);
}

/* 2^28 tiles, the most of a plan. https://github.com/pytorch/pytorch/issues/134756 */
static void a_million_keys_of_causal_documents(void **state) {
    (void)state;
    test_random random = {20};
    pack p = pack_make(1, INT64_C(1) << 20, 1, 64, FM_BF16, &random);
    assert_pack(&p, 2.0, 3.0, &random);
    pack_free(&p);
}

/* ---- long sequences under other masks -------------------------------------------------------------------------------- */

enum { SAMPLE = 96, RUNS = 2 /* the first ways of device_case.h */ };

/* Rows of one run. */
static void assert_rows_of(const attention_case *c, const attention_results *r, const attention_results *plain,
                           const attention_results *oracle, int64_t first) {
    attention_results ours = {.output = test_tensor_rows(&r->output, first, SAMPLE),
                              .lse = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, c->batch, c->heads, SAMPLE),
                              .grad_query = test_tensor_rows(&r->grad_query, first, SAMPLE)};
    const int64_t rows = r->lse.view.shape[3];
    for (int64_t plane = 0; plane < c->batch * c->heads; plane++) {
        memcpy((float *)ours.lse.buffer + plane * SAMPLE, (const float *)r->lse.buffer + plane * rows + first,
               SAMPLE * sizeof(float));
    }
    for (int i = RESULT_OUTPUT; i <= RESULT_GRAD_QUERY; i++) {
        attention_assert_result_close(c, &ours, plain, oracle, i);
    }
    test_tensor_free(&ours.lse);
}

/* Rows [first, first + SAMPLE) against an oracle that computes those alone. */
static void assert_rows(const attention_case *c, const attention_inputs *in, const attention_results *r, int64_t first) {
    attention_case some = *c;
    some.rows = SAMPLE;
    succeed(fm_mask_slice(c->mask, first, first + SAMPLE, 0, c->columns, NULL, (fm_mask **)&some.mask));
    const attention_inputs rows = {.query = test_tensor_rows(&in->query, first, SAMPLE),
                                   .key = in->key,
                                   .value = in->value,
                                   .grad_output = test_tensor_rows(&in->grad_output, first, SAMPLE)};
    attention_inputs wide = attention_inputs_widen(&some, &rows);
    attention_results plain = run_on(FM_BACKEND_REFERENCE, &some, &rows), oracle = run_on(FM_BACKEND_REFERENCE, &some, &wide);
    for (int k = 0; k < RUNS; k++) {
        assert_rows_of(&some, &r[k], &plain, &oracle, first);
    }
    attention_results_free(&plain);
    attention_results_free(&oracle);
    attention_inputs_free(&wide);
    fm_mask_free((fm_mask *)some.mask);
}

/* The reference's gradients of a few keys, from an output and lse of all keys, as a partial backward takes them. */
static attention_results key_gradients(const attention_case *c, const attention_inputs *in, const test_tensor *output,
                                       const test_tensor *lse) {
    const fm_dtype dtype = in->query.view.dtype;
    attention_results r = {.output = *output, .lse = *lse};
    r.grad_key = test_tensor_make(LAYOUT_CONTIGUOUS, dtype, c->batch, c->columns, c->heads_kv, c->head_dim);
    r.grad_value = test_tensor_make(LAYOUT_CONTIGUOUS, dtype, c->batch, c->columns, c->heads_kv, c->head_dim_v);
    fm_attention_forward_args forward = attention_forward_arguments(c, in, &r);
    fm_attention_backward_args backward = attention_backward_arguments(in, &r);
    forward.backend = FM_BACKEND_REFERENCE;
    backward.forward = &forward;
    backward.grad_query.data = NULL;
    succeed(fm_attention_backward(&backward));
    return r;
}

/* Keys [first, first + SAMPLE) against an oracle that computes those alone. Runs agree in output and lse, bit for bit. */
static void assert_keys(const attention_case *c, const attention_inputs *in, const attention_results *r, int64_t first) {
    attention_case some = *c;
    some.columns = SAMPLE;
    succeed(fm_mask_slice(c->mask, 0, c->rows, first, first + SAMPLE, NULL, (fm_mask **)&some.mask));
    const attention_inputs keys = {.query = in->query,
                                   .key = test_tensor_rows(&in->key, first, SAMPLE),
                                   .value = test_tensor_rows(&in->value, first, SAMPLE),
                                   .grad_output = in->grad_output};
    attention_inputs wide = attention_inputs_widen(&some, &keys);
    test_tensor output = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F64, c->batch, c->rows, c->heads, c->head_dim_v);
    test_tensor_copy(&output, &r->output);
    attention_results plain = key_gradients(&some, &keys, &r->output, &r->lse);
    attention_results oracle = key_gradients(&some, &wide, &output, &r->lse);
    for (int k = 0; k < RUNS; k++) {
        const attention_results ours = {.output = r[k].output,
                                        .grad_key = test_tensor_rows(&r[k].grad_key, first, SAMPLE),
                                        .grad_value = test_tensor_rows(&r[k].grad_value, first, SAMPLE)};
        attention_assert_result_close(&some, &ours, &plain, &oracle, RESULT_GRAD_KEY);
        attention_assert_result_close(&some, &ours, &plain, &oracle, RESULT_GRAD_VALUE);
    }
    const test_tensor made[] = {output, plain.grad_key, plain.grad_value, oracle.grad_key, oracle.grad_value};
    for (int i = 0; i < 5; i++) {
        free(made[i].buffer);
    }
    attention_inputs_free(&wide);
    fm_mask_free((fm_mask *)some.mask);
}

static void assert_samples(attention_case c, test_random *random) {
    attention_inputs in = attention_inputs_make(&c, random);
    attention_results r[RUNS];
    for (int way = 0; way < RUNS; way++) {
        r[way] = device_run_way(&c, &in, way);
    }
    assert_true(test_tensor_same(&r[0].output, &r[1].output) && test_tensor_same(&r[0].lse, &r[1].lse));
    for (int k = 0; k < 3; k++) {
        assert_rows(&c, &in, r, k == 0 ? 0 : k == 1 ? c.rows / 2 - 31 : c.rows - SAMPLE);
        assert_keys(&c, &in, r, k == 0 ? 0 : k == 1 ? c.columns / 2 - 31 : c.columns - SAMPLE);
    }
    for (int way = 0; way < RUNS; way++) {
        attention_results_free(&r[way]);
    }
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

static void a_long_causal_sequence_off_the_tile(void **state) {
    (void)state;
    test_random random = {1};
    attention_case c = simple_case(1, 32771, 32771, 2, 1, 64);
    c.dtype = FM_BF16;
    succeed(fm_mask_causal(c.rows, c.columns, (fm_mask **)&c.mask));
    assert_samples(c, &random);
}

static void long_sequences_of_unlike_lengths_with_a_mask_for_each_head(void **state) {
    (void)state;
    test_random random = {2};
    attention_case c = simple_case(1, 20011, 32999, 2, 2, 128);
    c.dtype = FM_F16;
    c.mask = random_mask(&random, (fm_mask_shape){1, 2, c.rows, c.columns}, 2, NULL);
    assert_samples(c, &random);
}

static void more_rows_than_keys_and_a_document_mask_with_windows(void **state) {
    (void)state;
    test_random random = {3};
    const int64_t lengths[] = {12001, 1, 13000, 7000};
    fm_mask *square = NULL;
    attention_case c = simple_case(1, 32002, 20480, 2, 1, 96);
    c.dtype = FM_BF16;
    succeed(fm_mask_documents_sink_window(4, lengths, 64, 4000, 0, &square));
    succeed(fm_mask_slice(square, 0, c.rows, 0, c.columns, NULL, (fm_mask **)&c.mask));
    fm_mask_free(square);
    assert_samples(c, &random);
}

static void a_few_rows_over_a_million_keys(void **state) {
    (void)state;
    test_random random = {4};
    attention_case c = simple_case(1, 4, INT64_C(1) << 20, 1, 1, 16);
    c.is_gpu = true;
    c.dtype = FM_BF16;
    device_assert_case(&c, &random);
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_causal_sequence_off_the_tile),
        cmocka_unit_test(long_sequences_of_unlike_lengths_with_a_mask_for_each_head),
        cmocka_unit_test(more_rows_than_keys_and_a_document_mask_with_windows),
        cmocka_unit_test(a_few_rows_over_a_million_keys),
        cmocka_unit_test(a_million_keys_of_causal_documents),
        cmocka_unit_test(tensors_of_more_than_two_to_the_31_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

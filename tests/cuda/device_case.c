#include "device_case.h"

#include <flashmask/masks.h>

#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

static const fm_device device = {FM_CUDA, 0};
enum { BLOCK_BYTES = 2048 /* of a bitmap block, flashmask.h */ };

/* ---- cases -------------------------------------------------------------------------------------------------------- */

attention_case device_half_case(int64_t batch, int64_t rows, int64_t columns, int64_t heads, int64_t heads_kv, int64_t head_dim) {
    attention_case c = simple_case(batch, rows, columns, heads, heads_kv, device_head_dim(head_dim));
    c.dtype = FM_BF16;
    c.is_gpu = true;
    return c;
}

fm_mask *device_documents(const int32_t *cu_q, const int32_t *cu_k, int64_t documents, bool causal, int64_t Sq, int64_t Sk) {
    fm_mask *mask = NULL;
    succeed(fm_mask_from_cu_seqlens(cu_q, cu_k, documents, causal, Sq, Sk, &mask));
    return mask;
}

fm_mask *device_blocks(test_random *random, int64_t rows, int64_t columns, double probability) {
    enum { BLOCK = 64 };
    fm_mask *mask = NULL;
    uint8_t *dense = malloc((size_t)(rows * columns));
    assert_non_null(dense);
    for (int64_t i0 = 0; i0 < rows; i0 += BLOCK) {
        for (int64_t j0 = 0; j0 < columns; j0 += BLOCK) {
            const uint8_t visible = random_chance(random, probability);
            for (int64_t i = i0; i < i0 + BLOCK && i < rows; i++) {
                memset(dense + i * columns + j0, visible, (size_t)(columns - j0 < BLOCK ? columns - j0 : BLOCK));
            }
        }
    }
    succeed(fm_mask_from_dense((fm_mask_shape){1, 1, rows, columns}, dense, NULL, &mask));
    free(dense);
    return mask;
}

/* ---- plans -------------------------------------------------------------------------------------------------------- */

static fm_plan_options plan_options(const attention_case *c, const fm_mask *mask) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.backend = FM_BACKEND_CUDA_SM80;
    options.causal = c->causal;
    options.window_left = c->window_left;
    options.window_right = c->window_right;
    options.fallback_blocks = (fm_mask_fallback_bytes(mask) + BLOCK_BYTES - 1) / BLOCK_BYTES;
    return options;
}

static fm_mask *full_mask_of(const attention_case *c) {
    fm_mask *full = NULL;
    succeed(fm_mask_full(c->rows, c->columns, &full));
    return full;
}

device_plan device_plan_of_mask(const attention_case *c, cudaStream_t stream) {
    device_plan p = {0};
    size_t bytes = 0;
    fm_mask *full = c->mask == NULL ? full_mask_of(c) : NULL;
    const fm_mask *mask = c->mask != NULL ? c->mask : full;
    const fm_plan_options options = plan_options(c, mask);
    succeed(fm_plan_device_bytes(fm_mask_get_shape(mask), fm_mask_interval_count(mask), &options, &bytes));
    p.buffer = device_memory_make(NULL, bytes, 0);
    succeed(fm_plan_create_device(mask, &options, device, p.buffer.data, bytes, stream, &p.plan));
    fm_mask_free(full);
    return p;
}

/* What a mask that stores none still has room for. */
static int32_t stored_intervals(const fm_mask *mask) {
    const int32_t intervals = fm_mask_interval_count(mask);
    return intervals > 0 ? intervals : 1;
}

int32_t *device_plan_vectors(const fm_mask *mask, size_t *bytes) {
    const fm_mask_shape s = fm_mask_get_shape(mask);
    const int64_t k = stored_intervals(mask), count = s.batch * s.heads * k * s.columns;
    fm_interval *v = malloc((size_t)count * sizeof *v + 1); /* [Bm, Hm, k, Sk] */
    int32_t *out = malloc((size_t)count * sizeof *v + 1);   /* [Bm, Hm, Sk, 2 k] */
    assert_non_null(v);
    assert_non_null(out);
    succeed(fm_mask_to_intervals(mask, (int32_t)k, v, count));
    for (int64_t i = 0; i < count; i++) {
        const int64_t column = i % s.columns, interval = i / s.columns % k, plane = i / s.columns / k;
        int32_t *to = out + 2 * ((plane * s.columns + column) * k + interval);
        to[0] = v[i].start;
        to[1] = v[i].end;
    }
    free(v);
    *bytes = (size_t)count * sizeof *v;
    return out;
}

fm_mask_vectors device_plan_description(const fm_mask *mask, const int32_t *data) {
    fm_mask_vectors v = FM_MASK_VECTORS_INIT;
    v.format = FM_VECTORS_INTERVALS;
    v.shape = fm_mask_get_shape(mask);
    v.vectors = 2 * stored_intervals(mask);
    v.data = data;
    v.stride[3] = 1;
    v.stride[2] = v.vectors;
    v.stride[1] = v.shape.columns * v.stride[2];
    v.stride[0] = v.shape.heads * v.stride[1];
    v.device = device;
    return v;
}

device_plan device_plan_of_vectors(const attention_case *c, cudaStream_t stream) {
    device_plan p = {0};
    size_t bytes = 0;
    int32_t intervals = 0;
    fm_mask *full = c->mask == NULL ? full_mask_of(c) : NULL;
    const fm_mask *mask = c->mask != NULL ? c->mask : full;
    const fm_plan_options options = plan_options(c, mask);
    int32_t *v = device_plan_vectors(mask, &bytes);
    p.vectors = device_memory_make(v, bytes, 0);
    free(v);
    p.description = device_plan_description(mask, p.vectors.data);
    succeed(fm_mask_vectors_intervals(&p.description, &intervals));
    succeed(fm_plan_device_bytes(p.description.shape, intervals, &options, &bytes));
    p.buffer = device_memory_make(NULL, bytes, 0);
    succeed(fm_plan_create_from_vectors(&p.description, &options, p.buffer.data, bytes, stream, &p.plan));
    fm_mask_free(full);
    return p;
}

void device_plan_free(device_plan *p) {
    CUDA(cudaDeviceSynchronize());
    fm_plan_free(p->plan);
    device_memory_free(&p->buffer);
    device_memory_free(&p->vectors);
    *p = (device_plan){0};
}

/* ---- calls -------------------------------------------------------------------------------------------------------- */

/* What lies on the host of each input, and how many bytes. */
typedef struct host_array {
    const void *data;
    size_t bytes;
} host_array;

static void input_arrays(const attention_case *c, const attention_inputs *in, host_array arrays[INPUT_COUNT]) {
    const size_t heads = in->sinks != NULL ? (size_t)c->heads : 0;
    const size_t rows = in->grad_lse != NULL ? (size_t)(c->batch * c->heads * c->rows) : 0;
    arrays[INPUT_QUERY] = (host_array){in->query.buffer, in->query.bytes};
    arrays[INPUT_KEY] = (host_array){in->key.buffer, in->key.bytes};
    arrays[INPUT_VALUE] = (host_array){in->value.buffer, in->value.bytes};
    arrays[INPUT_GRAD_OUTPUT] = (host_array){in->grad_output.buffer, in->grad_output.bytes};
    arrays[INPUT_SINKS] = (host_array){in->sinks, heads * sizeof(float)};
    arrays[INPUT_GRAD_LSE] = (host_array){in->grad_lse, rows * sizeof(float)};
}

static void move(fm_tensor *view, const device_memory *to) {
    view->data = to->data;
    view->device = device;
}

/* Turns the host's arguments into the device's. */
static void move_arguments(device_call *x) {
    move(&x->forward.query, &x->inputs[INPUT_QUERY]);
    move(&x->forward.key, &x->inputs[INPUT_KEY]);
    move(&x->forward.value, &x->inputs[INPUT_VALUE]);
    move(&x->forward.output, &x->outputs[RESULT_OUTPUT]);
    x->forward.sinks = x->inputs[INPUT_SINKS].data;
    x->forward.lse = x->outputs[RESULT_LSE].data;
    move(&x->backward.grad_output, &x->inputs[INPUT_GRAD_OUTPUT]);
    move(&x->backward.grad_query, &x->outputs[RESULT_GRAD_QUERY]);
    move(&x->backward.grad_key, &x->outputs[RESULT_GRAD_KEY]);
    move(&x->backward.grad_value, &x->outputs[RESULT_GRAD_VALUE]);
    x->backward.grad_lse = x->inputs[INPUT_GRAD_LSE].data;
    x->backward.grad_sinks = x->forward.sinks != NULL ? x->outputs[RESULT_GRAD_SINKS].data : NULL;
}

static void set_options(device_call *x, device_options options) {
    x->forward.backend = options.backend;
    x->forward.no_skip = options.no_skip;
    x->forward.stream = options.stream;
    x->backward.stream = options.stream;
    x->backward.deterministic = options.deterministic;
    if (options.plan != NULL) {
        x->forward.plan = options.plan->plan;
        x->forward.mask = NULL; /* the plan's */
    }
}

static void make_workspaces(device_call *x) {
    x->backward.forward = &x->forward;
    succeed(fm_attention_forward_workspace(&x->forward, &x->forward.workspace_bytes));
    x->workspace[WORKSPACE_FORWARD] = device_memory_make(NULL, x->forward.workspace_bytes, 0);
    x->forward.workspace = x->workspace[WORKSPACE_FORWARD].data;
    succeed(fm_attention_backward_workspace(&x->backward, &x->backward.workspace_bytes));
    x->workspace[WORKSPACE_BACKWARD] = device_memory_make(NULL, x->backward.workspace_bytes, 0);
    x->backward.workspace = x->workspace[WORKSPACE_BACKWARD].data;
}

device_call device_call_make(const attention_case *c, const attention_inputs *in, device_options options) {
    device_call x = {.attention = *c, .results = attention_results_make(c)};
    host_array arrays[INPUT_COUNT];
    input_arrays(c, in, arrays);
    for (int i = 0; i < INPUT_COUNT; i++) {
        if (arrays[i].data != NULL) {
            x.inputs[i] = device_memory_make(arrays[i].data, arrays[i].bytes, i < INPUT_SINKS ? options.shift : 0);
        }
    }
    for (int i = 0; i < RESULT_COUNT; i++) {
        const bool is_array = i == RESULT_LSE || i == RESULT_GRAD_SINKS;
        x.outputs[i] = device_memory_make(NULL, result_at(&x.results, i)->bytes, is_array ? 0 : options.shift);
    }
    x.forward = attention_forward_arguments(c, in, &x.results);
    x.backward = attention_backward_arguments(in, &x.results);
    move_arguments(&x);
    set_options(&x, options);
    make_workspaces(&x);
    return x;
}

void device_call_write(const device_call *x, const attention_inputs *in) {
    host_array arrays[INPUT_COUNT];
    input_arrays(&x->attention, in, arrays);
    for (int i = 0; i < INPUT_COUNT; i++) {
        if (arrays[i].data != NULL) {
            device_memory_write(&x->inputs[i], arrays[i].data);
        }
    }
}

void device_call_poison(const device_call *x) {
    for (int i = 0; i < RESULT_COUNT; i++) {
        device_memory_write(&x->outputs[i], NULL);
    }
    for (int i = 0; i < WORKSPACE_COUNT; i++) {
        device_memory_write(&x->workspace[i], NULL);
    }
}

void device_call_launch_forward(device_call *x) { succeed(fm_attention_forward(&x->forward)); }

void device_call_launch_backward(device_call *x) {
    x->backward.forward = &x->forward;
    succeed(fm_attention_backward(&x->backward));
}

void device_call_launch(device_call *x) {
    device_call_launch_forward(x);
    device_call_launch_backward(x);
}

void device_call_read(const device_call *x) {
    for (int i = 0; i < RESULT_COUNT; i++) {
        const test_tensor *t = result_at(&x->results, i);
        device_memory_read(&x->outputs[i], t->buffer);
        if (!test_tensor_gaps_are_poisoned(t)) {
            fail_msg("%s: bytes between its elements were written", result_names[i]);
        }
    }
}

static void free_memory(device_call *x) {
    for (int i = 0; i < INPUT_COUNT; i++) {
        device_memory_free(&x->inputs[i]);
    }
    for (int i = 0; i < RESULT_COUNT; i++) {
        device_memory_free(&x->outputs[i]);
    }
    for (int i = 0; i < WORKSPACE_COUNT; i++) {
        device_memory_free(&x->workspace[i]);
    }
}

attention_results device_call_finish(device_call *x) {
    device_call_read(x);
    free_memory(x);
    return x->results;
}

void device_call_free(device_call *x) {
    free_memory(x);
    attention_results_free(&x->results);
}

attention_results device_run(const attention_case *c, const attention_inputs *in, device_options options) {
    device_call x = device_call_make(c, in, options);
    device_call_launch(&x);
    return device_call_finish(&x);
}

/* ---- cases -------------------------------------------------------------------------------------------------------- */

attention_results device_run_way(const attention_case *c, const attention_inputs *in, int way) {
    if (way == 0 || way == 3) {
        return device_run(c, in, (device_options){.backend = way == 0 ? FM_BACKEND_AUTO : FM_BACKEND_CUDA_SM80});
    }
    cudaStream_t stream = way == 2 ? device_stream_make() : NULL;
    const bool by_vectors = way == 2 && (c->mask == NULL || !fm_mask_has_fallback(c->mask));
    device_plan plan = by_vectors ? device_plan_of_vectors(c, stream) : device_plan_of_mask(c, stream);
    attention_results r = device_run(
        c, in, (device_options){.plan = &plan, .deterministic = way == 1, .stream = stream, .shift = way == 2 ? 4 : 0});
    device_plan_free(&plan);
    if (stream != NULL) {
        CUDA(cudaStreamDestroy(stream));
    }
    return r;
}

void device_assert_case(const attention_case *c, test_random *random) {
    attention_inputs in = attention_inputs_make(c, random), wide = attention_inputs_widen(c, &in);
    const attention_run_options reference = {.backend = FM_BACKEND_REFERENCE};
    attention_results oracle = attention_run(c, &wide, reference), plain = attention_run(c, &in, reference);
    for (int way = 0; way < DEVICE_WAYS; way++) {
        attention_results ours = device_run_way(c, &in, way);
        attention_assert_close(c, &ours, &plain, &oracle);
        attention_results_free(&ours);
    }
    attention_results_free(&oracle);
    attention_results_free(&plain);
    attention_inputs_free(&in);
    attention_inputs_free(&wide);
}

/* Every bad argument of a call on a GPU: one valid call, spoiled in one way at a time. Nothing is launched or written. */
#include "device_case.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <stdlib.h>

#define COUNT(table) (sizeof(table) / sizeof *(table))

enum { S = 40, HEADS = 4, HEADS_KV = 2, HOST_BYTES = 1 << 20 };

static _Alignas(256) unsigned char host[HOST_BYTES]; /* memory that no GPU was told of */

typedef struct fixture {
    attention_case c;
    device_call x;
    device_plan plan; /* of the mask, causal */
    fm_plan *host_plan;
    fm_mask *mask, *spare;
} fixture;

static attention_case fixture_case(void) {
    attention_case c = simple_case(2, S, S, HEADS, HEADS_KV, 64);
    c.dtype = FM_F16;
    c.with_sinks = c.with_grad_lse = true;
    return c;
}

static void open_fixture(fixture *x) {
    test_random random = {1};
    *x = (fixture){.c = fixture_case()};
    succeed(fm_mask_prefix_lm(S, S, 3, &x->mask));
    attention_inputs in = attention_inputs_make(&x->c, &random);
    attention_case planned = x->c;
    planned.mask = x->c.mask = x->mask;
    planned.causal = true;
    x->x = device_call_make(&x->c, &in, (device_options){0});
    x->plan = device_plan_of_mask(&planned, NULL);
    succeed(fm_plan_create(x->mask, NULL, &x->host_plan));
    attention_inputs_free(&in);
}

static bool is_poison(const test_tensor *t) {
    const unsigned char *bytes = t->buffer;
    for (size_t i = 0; i < t->bytes; i++) {
        if (bytes[i] != 0xff) {
            return false;
        }
    }
    return true;
}

static void close_fixture(fixture *x) {
    CUDA(cudaGetLastError());
    device_call_read(&x->x);
    for (int i = 0; i < RESULT_COUNT; i++) {
        assert_true(is_poison(result_at(&x->x.results, i)));
    }
    device_plan_free(&x->plan);
    device_call_free(&x->x);
    fm_plan_free(x->host_plan);
    fm_mask_free(x->mask);
    fm_mask_free(x->spare);
}

typedef struct spoilt {
    void (*spoil)(fixture *x);
    fm_status status;
    const char *words;
} spoilt;

static void assert_all_refused(const spoilt *table, size_t count, bool backward) {
    for (size_t i = 0; i < count; i++) {
        fixture x;
        open_fixture(&x);
        x.x.backward.forward = &x.x.forward;
        table[i].spoil(&x);
        refuse(backward ? fm_attention_backward(&x.x.backward) : fm_attention_forward(&x.x.forward), table[i].status,
               table[i].words);
        close_fixture(&x);
    }
}

/* ---- forward ------------------------------------------------------------------------------------------------------------ */

static fm_attention_forward_args *f(fixture *x) { return &x->x.forward; }

static void query_on_device_99(fixture *x) { f(x)->query.device.index = 99; }
static void key_on_device_1(fixture *x) { f(x)->key.device.index = 1; }
static void value_on_the_cpu(fixture *x) { f(x)->value.device.kind = FM_CPU; }
static void output_on_device_1(fixture *x) { f(x)->output.device.index = 1; }
static void output_on_the_cpu(fixture *x) { f(x)->output.device.kind = FM_CPU; }
static void query_in_host_memory(fixture *x) { f(x)->query.data = host; }
static void value_in_host_memory(fixture *x) { f(x)->value.data = host; }
static void output_in_host_memory(fixture *x) { f(x)->output.data = host; }
static void lse_in_host_memory(fixture *x) { f(x)->lse = (float *)(void *)host; }
static void sinks_in_host_memory(fixture *x) { f(x)->sinks = (const float *)(const void *)host; }
static void workspace_in_host_memory(fixture *x) { f(x)->workspace = host; }
static void workspace_null(fixture *x) { f(x)->workspace = NULL; }
static void workspace_small(fixture *x) { f(x)->workspace_bytes--; }
static void workspace_crooked(fixture *x) { f(x)->workspace = (char *)f(x)->workspace + 128; }
static void query_crooked(fixture *x) { f(x)->query.data = (char *)f(x)->query.data + 1; }
static void key_null(fixture *x) { f(x)->key.data = NULL; }
static void lse_crooked(fixture *x) { f(x)->lse = (float *)(void *)((char *)f(x)->lse + 2); }
static void set_head_dim(fixture *x, int64_t dim) { f(x)->query.shape[3] = f(x)->key.shape[3] = dim; }
static void head_dim_60(fixture *x) { set_head_dim(x, 60); }
static void head_dim_264(fixture *x) { set_head_dim(x, 264); }
static void value_dim_4(fixture *x) { f(x)->value.shape[3] = f(x)->output.shape[3] = 4; }
static void f64(fixture *x) { f(x)->query.dtype = f(x)->key.dtype = f(x)->value.dtype = FM_F64; }
static void key_bf16(fixture *x) { f(x)->key.dtype = FM_BF16; }
static void output_bf16(fixture *x) { f(x)->output.dtype = FM_BF16; }
static void heads_no_multiple(fixture *x) { f(x)->query.shape[2] = f(x)->output.shape[2] = 3; }
static void output_is_query(fixture *x) { f(x)->output = f(x)->query; }
static void output_is_workspace(fixture *x) { f(x)->workspace = f(x)->output.data; }
static void stride_negative(fixture *x) { f(x)->key.stride[1] = -1; }
static void backend_cpu(fixture *x) { f(x)->backend = FM_BACKEND_CPU; }
static void size_0(fixture *x) { f(x)->size = 0; }

static void set_mask(fixture *x, int64_t rows, int64_t columns) {
    succeed(fm_mask_full(rows, columns, &x->spare));
    f(x)->mask = x->spare;
}
static void mask_longer(fixture *x) { set_mask(x, 256, 256); }
static void mask_of_other_columns(fixture *x) { set_mask(x, S, S / 2); }
static void plan_of_the_host(fixture *x) { f(x)->plan = x->host_plan; }
static void plan_of_another_mask(fixture *x) {
    set_mask(x, S, S);
    f(x)->plan = x->plan.plan;
}
static void plan_with_another_window(fixture *x) {
    f(x)->plan = x->plan.plan;
    f(x)->window_left = 3;
}
static void plan_of_another_shape(fixture *x) {
    f(x)->plan = x->plan.plan;
    f(x)->mask = NULL;
    f(x)->query.shape[1] = f(x)->output.shape[1] = S - 1;
}
static void plan_of_vectors_and_a_mask(fixture *x) {
    attention_case c = x->c;
    device_plan_free(&x->plan);
    x->plan = device_plan_of_vectors(&c, NULL);
    f(x)->plan = x->plan.plan;
}

static const spoilt forward_table[] = {
    {query_on_device_99, FM_ERROR_DEVICE, "device index is 99"},
    {key_on_device_1, FM_ERROR_DEVICE, "key: is on device CUDA:1"},
    {value_on_the_cpu, FM_ERROR_DEVICE, "value: is on device CPU:0"},
    {output_on_device_1, FM_ERROR_DEVICE, "output: is on device CUDA:1"},
    {output_on_the_cpu, FM_ERROR_DEVICE, "output: is on device CPU:0"},
    {query_in_host_memory, FM_ERROR_DEVICE, "query: is host memory"},
    {value_in_host_memory, FM_ERROR_DEVICE, "value: is host memory"},
    {output_in_host_memory, FM_ERROR_DEVICE, "output: is host memory"},
    {lse_in_host_memory, FM_ERROR_DEVICE, "lse: is host memory"},
    {sinks_in_host_memory, FM_ERROR_DEVICE, "sinks: is host memory"},
    {workspace_in_host_memory, FM_ERROR_DEVICE, "workspace: is host memory"},
    {workspace_null, FM_ERROR_WORKSPACE, "workspace: is NULL"},
    {workspace_small, FM_ERROR_WORKSPACE, "workspace: workspace_bytes is"},
    {workspace_crooked, FM_ERROR_ARGUMENT, "workspace: is not aligned to 256 bytes"},
    {query_crooked, FM_ERROR_ARGUMENT, "query: data is not aligned"},
    {key_null, FM_ERROR_ARGUMENT, "key: data is NULL"},
    {lse_crooked, FM_ERROR_ARGUMENT, "lse: is not aligned"},
    {head_dim_60, FM_ERROR_SHAPE, "query: head_dim is 60"},
    {head_dim_264, FM_ERROR_SHAPE, "query: head_dim is 264"},
    {value_dim_4, FM_ERROR_SHAPE, "value: head_dim is 4"},
    {f64, FM_ERROR_DTYPE, "query: dtype is f64"},
    {key_bf16, FM_ERROR_DTYPE, "key: dtype is bf16"},
    {output_bf16, FM_ERROR_DTYPE, "output: dtype is bf16"},
    {heads_no_multiple, FM_ERROR_SHAPE, "key: has 2 heads"},
    {output_is_query, FM_ERROR_ARGUMENT, "output: shares memory with query"},
    {output_is_workspace, FM_ERROR_ARGUMENT, "shares memory with"},
    {stride_negative, FM_ERROR_SHAPE, "key"},
    {backend_cpu, FM_ERROR_DEVICE, "query: is on device CUDA:0"},
    {size_0, FM_ERROR_ARGUMENT, "size: is 0"},
    {mask_longer, FM_ERROR_SHAPE, "mask: has 256 rows"},
    {mask_of_other_columns, FM_ERROR_SHAPE, "mask: has 20 columns"},
    {plan_of_the_host, FM_ERROR_DEVICE, "plan: is on CPU:0"},
    {plan_of_another_mask, FM_ERROR_ARGUMENT, "plan: was built from another mask"},
    {plan_with_another_window, FM_ERROR_ARGUMENT, "plan: was built with window"},
    {plan_of_another_shape, FM_ERROR_SHAPE, "plan: its mask has 40 rows"},
    {plan_of_vectors_and_a_mask, FM_ERROR_ARGUMENT, "mask: is given beside a plan"},
};

/* https://github.com/flashinfer-ai/flashinfer/issues/3176, https://github.com/facebookresearch/xformers/issues/1122,
 * https://github.com/meta-pytorch/attention-gym/issues/34, https://github.com/fla-org/flash-linear-attention/issues/1029 */
static void bad_forward_arguments_are_refused_and_nothing_is_written(void **state) {
    (void)state;
    assert_all_refused(forward_table, COUNT(forward_table), false);
}

/* ---- backward ----------------------------------------------------------------------------------------------------------- */

static fm_attention_backward_args *b(fixture *x) { return &x->x.backward; }

static void grad_output_on_the_cpu(fixture *x) { b(x)->grad_output.device.kind = FM_CPU; }
static void grad_key_on_device_1(fixture *x) { b(x)->grad_key.device.index = 1; }
static void grad_output_in_host_memory(fixture *x) { b(x)->grad_output.data = host; }
static void grad_query_in_host_memory(fixture *x) { b(x)->grad_query.data = host; }
static void grad_lse_in_host_memory(fixture *x) { b(x)->grad_lse = (const float *)(const void *)host; }
static void grad_sinks_in_host_memory(fixture *x) { b(x)->grad_sinks = (float *)(void *)host; }
static void backward_workspace_null(fixture *x) { b(x)->workspace = NULL; }
static void backward_workspace_small(fixture *x) { b(x)->workspace_bytes--; }
static void backward_workspace_crooked(fixture *x) { b(x)->workspace = (char *)b(x)->workspace + 16; }
static void backward_workspace_in_host_memory(fixture *x) { b(x)->workspace = host; }
static void no_lse(fixture *x) { f(x)->lse = NULL; }
static void grad_sinks_alone(fixture *x) { f(x)->sinks = NULL; }
static void grad_value_is_value(fixture *x) { b(x)->grad_value = f(x)->value; }
static void grad_key_f64(fixture *x) { b(x)->grad_key.dtype = FM_F64; }

static const spoilt backward_table[] = {
    {key_on_device_1, FM_ERROR_DEVICE, "key: is on device CUDA:1"},
    {plan_of_the_host, FM_ERROR_DEVICE, "plan: is on CPU:0"},
    {lse_in_host_memory, FM_ERROR_DEVICE, "lse: is host memory"},
    {grad_output_on_the_cpu, FM_ERROR_DEVICE, "grad_output: is on device CPU:0"},
    {grad_key_on_device_1, FM_ERROR_DEVICE, "grad_key: is on device CUDA:1"},
    {grad_output_in_host_memory, FM_ERROR_DEVICE, "grad_output: is host memory"},
    {grad_query_in_host_memory, FM_ERROR_DEVICE, "grad_query: is host memory"},
    {grad_lse_in_host_memory, FM_ERROR_DEVICE, "grad_lse: is host memory"},
    {grad_sinks_in_host_memory, FM_ERROR_DEVICE, "grad_sinks: is host memory"},
    {backward_workspace_null, FM_ERROR_WORKSPACE, "workspace: is NULL"},
    {backward_workspace_small, FM_ERROR_WORKSPACE, "workspace: workspace_bytes is"},
    {backward_workspace_crooked, FM_ERROR_ARGUMENT, "workspace: is not aligned to 256 bytes"},
    {backward_workspace_in_host_memory, FM_ERROR_DEVICE, "workspace: is host memory"},
    {no_lse, FM_ERROR_ARGUMENT, "lse: is NULL"},
    {grad_sinks_alone, FM_ERROR_ARGUMENT, "grad_sinks: is wanted"},
    {grad_value_is_value, FM_ERROR_ARGUMENT, "grad_value: shares memory with value"},
    {grad_key_f64, FM_ERROR_DTYPE, "grad_key: dtype is f64"},
};

static void bad_backward_arguments_are_refused_and_nothing_is_written(void **state) {
    (void)state;
    assert_all_refused(backward_table, COUNT(backward_table), true);
}

/* ---- plans -------------------------------------------------------------------------------------------------------------- */

static const fm_device device_0 = {FM_CUDA, 0}, device_99 = {FM_CUDA, 99}, cpu = {FM_CPU, 0};

static void bad_buffers_of_plans_are_refused(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    const fm_mask *mask = x.mask;
    fm_plan *plan = NULL;
    size_t bytes = 0;
    succeed(fm_plan_device_bytes(fm_mask_get_shape(mask), 1, NULL, &bytes));
    device_memory memory = device_memory_make(NULL, bytes + 256, 0);
    char *good = memory.data;
    refuse(fm_plan_create_device(mask, NULL, device_0, good, bytes - 1, NULL, &plan), FM_ERROR_WORKSPACE, "bytes: is");
    refuse(fm_plan_create_device(mask, NULL, device_0, NULL, bytes, NULL, &plan), FM_ERROR_ARGUMENT, "buffer: is NULL");
    refuse(fm_plan_create_device(mask, NULL, device_0, good + 64, bytes, NULL, &plan), FM_ERROR_ARGUMENT,
           "buffer: is not aligned");
    refuse(fm_plan_create_device(mask, NULL, device_0, host, sizeof host, NULL, &plan), FM_ERROR_DEVICE,
           "buffer: is host memory");
    refuse(fm_plan_create_device(mask, NULL, device_99, good, bytes, NULL, &plan), FM_ERROR_DEVICE, "device index is 99");
    refuse(fm_plan_create_device(mask, NULL, cpu, good, bytes, NULL, &plan), FM_ERROR_DEVICE, "");
    refuse(fm_plan_create_device(NULL, NULL, device_0, good, bytes, NULL, &plan), FM_ERROR_ARGUMENT, "mask");
    refuse(fm_plan_create_device(mask, NULL, device_0, good, bytes, NULL, NULL), FM_ERROR_ARGUMENT, "out");
    fm_mask *sparse = NULL;
    succeed(fm_mask_random_sparse(300, 300, 0.5, 1, NULL, &sparse));
    refuse(fm_plan_create_device(sparse, NULL, device_0, good, bytes, NULL, &plan), FM_ERROR_LIMIT,
           "options.fallback_blocks: is 0");
    assert_null(plan);
    unsigned char *found = malloc(memory.bytes);
    assert_non_null(found);
    device_memory_read(&memory, found);
    for (size_t i = 0; i < memory.bytes; i++) {
        assert_int_equal(found[i], 0xff);
    }
    free(found);
    fm_mask_free(sparse);
    device_memory_free(&memory);
    close_fixture(&x);
}

static void bad_vectors_of_plans_are_refused(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    attention_case c = x.c;
    device_plan good = device_plan_of_vectors(&c, NULL);
    void *const buffer = good.buffer.data;
    const size_t bytes = good.buffer.bytes;
    fm_mask_vectors v = good.description;
    fm_plan *plan = NULL;
    v.data = (const int32_t *)(const void *)host;
    refuse(fm_plan_create_from_vectors(&v, NULL, buffer, bytes, NULL, &plan), FM_ERROR_DEVICE, "vectors->data: is host memory");
    refuse(fm_plan_update_from_vectors(good.plan, &v, NULL), FM_ERROR_DEVICE, "vectors->data: is host memory");
    v.data = NULL;
    refuse(fm_plan_create_from_vectors(&v, NULL, buffer, bytes, NULL, &plan), FM_ERROR_ARGUMENT, "vectors->data: is NULL");
    v = good.description;
    v.device = device_99;
    refuse(fm_plan_create_from_vectors(&v, NULL, buffer, bytes, NULL, &plan), FM_ERROR_DEVICE, "device index is 99");
    refuse(fm_plan_update_from_vectors(good.plan, &v, NULL), FM_ERROR_DEVICE, "vectors->device: is CUDA:99");
    v = good.description;
    v.shape.rows--;
    refuse(fm_plan_update_from_vectors(good.plan, &v, NULL), FM_ERROR_SHAPE, "vectors->shape: is");
    v = good.description;
    v.vectors += 2;
    refuse(fm_plan_update_from_vectors(good.plan, &v, NULL), FM_ERROR_SHAPE, "vectors->vectors: hold up to");
    refuse(fm_plan_update_from_vectors(x.plan.plan, &good.description, NULL), FM_ERROR_ARGUMENT, "plan: was not made by");
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.fallback_blocks = 1;
    refuse(fm_plan_create_from_vectors(&good.description, &options, buffer, bytes, NULL, &plan), FM_ERROR_ARGUMENT,
           "options.fallback_blocks: is 1");
    assert_null(plan);
    device_plan_free(&good);
    close_fixture(&x);
}

static void a_device_plan_answers_no_questions_of_a_host_plan(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    const fm_tile_run *runs;
    const fm_work *work;
    int64_t count;
    refuse(fm_plan_get_stats(x.plan.plan, &stats), FM_ERROR_DEVICE, "plan: is on CUDA device 0");
    refuse(fm_plan_row_runs(x.plan.plan, 0, 0, 0, &runs, &count), FM_ERROR_DEVICE, "plan: is on CUDA device 0");
    refuse(fm_plan_column_runs(x.plan.plan, 0, 0, 0, &runs, &count), FM_ERROR_DEVICE, "plan: is on CUDA device 0");
    refuse(fm_plan_order(x.plan.plan, &work, &count), FM_ERROR_DEVICE, "plan: is on CUDA device 0");
    close_fixture(&x);
}

static void a_device_plan_is_refused_by_a_call_on_the_cpu(void **state) {
    (void)state;
    fixture x;
    test_random random = {2};
    open_fixture(&x);
    attention_inputs in = attention_inputs_make(&x.c, &random);
    attention_results r = attention_results_make(&x.c);
    fm_attention_forward_args args = attention_forward_arguments(&x.c, &in, &r);
    args.plan = x.plan.plan;
    args.causal = true;
    refuse(fm_attention_forward(&args), FM_ERROR_DEVICE, "plan: is on CUDA:0");
    assert_true(is_poison(&r.output));
    attention_results_free(&r);
    attention_inputs_free(&in);
    close_fixture(&x);
}

/* Host memory that the GPU can reach is fine. */
static void pinned_memory_is_accepted(void **state) {
    (void)state;
    fixture x;
    open_fixture(&x);
    float *pinned = NULL;
    const size_t bytes = x.x.outputs[RESULT_LSE].bytes;
    CUDA(cudaMallocHost((void **)&pinned, bytes));
    device_call_launch_forward(&x.x);
    device_call_read(&x.x);
    x.x.forward.lse = pinned;
    device_call_launch_forward(&x.x);
    CUDA(cudaDeviceSynchronize());
    assert_memory_equal(pinned, x.x.results.lse.buffer, bytes);
    CUDA(cudaFreeHost(pinned));
    device_call_poison(&x.x);
    close_fixture(&x);
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_forward_arguments_are_refused_and_nothing_is_written),
        cmocka_unit_test(bad_backward_arguments_are_refused_and_nothing_is_written),
        cmocka_unit_test(bad_buffers_of_plans_are_refused),
        cmocka_unit_test(bad_vectors_of_plans_are_refused),
        cmocka_unit_test(a_device_plan_answers_no_questions_of_a_host_plan),
        cmocka_unit_test(a_device_plan_is_refused_by_a_call_on_the_cpu),
        cmocka_unit_test(pinned_memory_is_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

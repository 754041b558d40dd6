/* Every bad argument: one valid call, spoiled in one way at a time. */
#include "attention/arguments.h"
#include "core/tensor.h"
#include "support/cmocka_all.h"
#include "support/simple_case.h"

#include <math.h>
#include <string.h>

enum { B = 2, Sq = 3, Sk = 5, Hq = 4, Hkv = 2, D = 8, Dv = 6, ARENA = 4096 };

/* Everything that a call may write lies in the arena, filled with a pattern: comparing it tells whether anything was. */
static _Alignas(64) float arena[ARENA];
static float before[ARENA];

typedef struct fixture {
    fm_attention_forward_args f;
    fm_attention_backward_args b;
    fm_mask *mask, *spare;
    fm_plan *plan;
    float *next; /* free part of the arena */
} fixture;

/* All visible but for row 0 of key 0. */
static fm_interval not_the_first_pair(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h;
    return (fm_interval){j == 0, (int32_t)shape->rows};
}

static fm_mask *make_mask(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    return mask_by_rule((fm_mask_shape){batch, heads, rows, columns}, not_the_first_pair);
}

static void make_plan(fixture *x, const fm_mask *mask, bool causal, int64_t left, int32_t block) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = causal;
    options.window_left = left;
    options.block_m = block;
    assert_int_equal(fm_plan_create(mask, &options, &x->plan), FM_OK);
    x->f.plan = x->plan;
}

static float *take(fixture *x, int64_t floats) {
    float *taken = x->next;
    x->next += (floats + 15) / 16 * 16;
    assert_true(x->next <= arena + ARENA);
    return taken;
}

static fm_tensor take_tensor(fixture *x, int64_t n1, int64_t n2, int64_t n3) {
    return fm_tensor_contiguous(take(x, B * n1 * n2 * n3), FM_F32, B, n1, n2, n3);
}

static void open_fixture(fixture *x, fm_backend_id backend) {
    *x = (fixture){.f = FM_ATTENTION_FORWARD_ARGS_INIT, .b = FM_ATTENTION_BACKWARD_ARGS_INIT, .next = arena};
    memset(arena, 0x3d, sizeof arena);
    x->mask = make_mask(1, Hkv, Sq, Sk);
    x->f.query = take_tensor(x, Sq, Hq, D);
    x->f.key = take_tensor(x, Sk, Hkv, D);
    x->f.value = take_tensor(x, Sk, Hkv, Dv);
    x->f.output = take_tensor(x, Sq, Hq, Dv);
    x->f.lse = take(x, B * Hq * Sq);
    x->f.sinks = take(x, Hq);
    x->f.mask = x->mask;
    x->f.backend = backend;
    x->b.forward = &x->f;
    x->b.grad_output = take_tensor(x, Sq, Hq, Dv);
    x->b.grad_lse = take(x, B * Hq * Sq);
    x->b.grad_query = take_tensor(x, Sq, Hq, D);
    x->b.grad_key = take_tensor(x, Sk, Hkv, D);
    x->b.grad_value = take_tensor(x, Sk, Hkv, Dv);
    x->b.grad_sinks = take(x, Hq);
    memcpy(before, arena, sizeof arena);
}

typedef void spoil_function(fixture *x);
typedef struct spoilt {
    spoil_function *spoil;
    fm_status status;
    const char *words; /* in the message */
} spoilt;

static void close_fixture(fixture *x) {
    fm_mask_free(x->mask);
    fm_mask_free(x->spare);
    fm_plan_free(x->plan);
}

static void assert_all_refused(const spoilt *table, size_t count, fm_backend_id backend, bool is_backward) {
    for (size_t i = 0; i < count; i++) {
        fixture x;
        open_fixture(&x, backend);
        table[i].spoil(&x);
        const fm_status status = is_backward ? fm_attention_backward(&x.b) : fm_attention_forward(&x.f);
        if (status != table[i].status || strstr(fm_error_message(), table[i].words) == NULL) {
            fail_msg("case %zu, backend %d: wanted %s and \"%s\", got %s: %s", i, (int)backend, fm_status_name(table[i].status),
                     table[i].words, fm_status_name(status), fm_error_message());
        }
        assert_memory_equal(arena, before, sizeof arena);
        close_fixture(&x);
    }
}

/* -- what spoils a forward call -- */
static void no_size(fixture *x) { x->f.size = 0; }
static void later_size(fixture *x) { x->f.size += 8; }
static void query_rank(fixture *x) { x->f.query.rank = 3; }
static void query_null(fixture *x) { x->f.query.data = NULL; }
static void query_crooked(fixture *x) { x->f.query.data = (char *)x->f.query.data + 2; }
static void query_unknown_dtype(fixture *x) { x->f.query.dtype = (fm_dtype)4; }
static void query_f16(fixture *x) { x->f.query.dtype = FM_F16; }
static void value_bf16(fixture *x) { x->f.value.dtype = FM_BF16; }
static void query_no_head_dim(fixture *x) { x->f.query.shape[3] = x->f.key.shape[3] = 0; }
static void query_wide(fixture *x) { x->f.query.shape[3] = x->f.key.shape[3] = 257; }
static void value_wide(fixture *x) { x->f.value.shape[3] = x->f.output.shape[3] = 257; }
static void value_no_head_dim(fixture *x) { x->f.value.shape[3] = x->f.output.shape[3] = 0; }
static void key_batch(fixture *x) { x->f.key.shape[0] = 1; }
static void key_head_dim(fixture *x) { x->f.key.shape[3] = D - 1; }
static void value_keys(fixture *x) { x->f.value.shape[1] = Sk - 1; }
static void value_heads(fixture *x) { x->f.value.shape[2] = 1; }
static void value_batch(fixture *x) { x->f.value.shape[0] = 1; }
static void query_heads(fixture *x) { x->f.query.shape[2] = x->f.output.shape[2] = 3; }
static void key_no_heads(fixture *x) { x->f.key.shape[2] = x->f.value.shape[2] = 0; }
static void query_negative_stride(fixture *x) { x->f.query.stride[1] = -1; }
static void query_overflow(fixture *x) { x->f.query.stride[0] = INT64_MAX; }
static void query_negative_rows(fixture *x) { x->f.query.shape[1] = -3; }
static void output_null(fixture *x) { x->f.output.data = NULL; }
static void output_unset(fixture *x) { x->f.output = (fm_tensor){0}; }
static void output_rows(fixture *x) { x->f.output.shape[1] = Sq - 1; }
static void output_head_dim(fixture *x) { x->f.output.shape[3] = Dv - 1; }
static void output_bf16(fixture *x) { x->f.output.dtype = FM_BF16; }
static void output_expanded(fixture *x) { x->f.output.stride[0] = 0; }
static void query_on_gpu(fixture *x) { x->f.query.device.kind = FM_CUDA; }
static void key_on_gpu(fixture *x) { x->f.key.device.kind = FM_CUDA; }
static void output_on_gpu(fixture *x) { x->f.output.device.kind = FM_CUDA; }
static void query_nowhere(fixture *x) { x->f.query.device.kind = (fm_device_kind)5; }
static void value_cpu_1(fixture *x) { x->f.value.device.index = 1; }
static void left_minus_2(fixture *x) { x->f.window_left = -2; }
static void right_minus_3(fixture *x) { x->f.window_right = -3; }
static void scale_infinite(fixture *x) { x->f.softmax_scale = INFINITY; }
static void softcap_negative(fixture *x) { x->f.softcap = -1.0f; }
static void softcap_nan(fixture *x) { x->f.softcap = NAN; }
static void softcap_infinite(fixture *x) { x->f.softcap = INFINITY; }
static void sinks_crooked(fixture *x) { x->f.sinks = (const float *)(const void *)((const char *)x->f.sinks + 1); }
static void lse_crooked(fixture *x) { x->f.lse = (float *)(void *)((char *)x->f.lse + 2); }
static void threads_negative(fixture *x) { x->f.num_threads = -1; }
static void threads_many(fixture *x) { x->f.num_threads = INT32_MAX; }
static void backend_9(fixture *x) { x->f.backend = (fm_backend_id)9; }
static void stream_set(fixture *x) { x->f.stream = x; }
static void set_mask(fixture *x, int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
    x->spare = make_mask(batch, heads, rows, columns);
    x->f.mask = x->spare;
}
static void mask_rows(fixture *x) { set_mask(x, 1, 1, Sq + 1, Sk); }
static void mask_columns(fixture *x) { set_mask(x, 1, 1, Sq, 256); }
static void mask_transposed(fixture *x) { set_mask(x, 1, 1, Sk, Sq); }
static void mask_batch(fixture *x) { set_mask(x, 3, 1, Sq, Sk); }
static void mask_heads(fixture *x) { set_mask(x, 1, 3, Sq, Sk); }
static void plan_of_another_mask(fixture *x) {
    x->spare = make_mask(1, 1, Sq, Sk);
    make_plan(x, x->spare, false, -1, 0);
}
static void plan_of_another_shape(fixture *x) {
    x->spare = make_mask(1, 1, Sq, 2 * Sk);
    make_plan(x, x->spare, false, -1, 0);
    x->f.mask = NULL;
}
static void plan_without_causal(fixture *x) {
    make_plan(x, x->mask, false, -1, 0);
    x->f.causal = true;
}
static void plan_with_another_window(fixture *x) {
    make_plan(x, x->mask, true, 2, 0);
    x->f.causal = true;
}
static void output_is_query(fixture *x) { x->f.output.data = x->f.query.data; }
static void output_meets_key(fixture *x) { x->f.output.data = (float *)x->f.key.data + 1; }
static void output_in_sinks(fixture *x) { x->f.sinks = (float *)x->f.output.data + 5; }
static void lse_in_output(fixture *x) { x->f.lse = (float *)x->f.output.data + 7; }
static void lse_in_value(fixture *x) { x->f.lse = x->f.value.data; }

static const spoilt forward_table[] = {
    {no_size, FM_ERROR_ARGUMENT, "size: is 0, needs"},
    {later_size, FM_ERROR_ARGUMENT, "size"},
    {query_rank, FM_ERROR_SHAPE, "query: rank is 3"},
    {query_null, FM_ERROR_ARGUMENT, "query: data is NULL"},
    {query_crooked, FM_ERROR_ARGUMENT, "query: data is not aligned"},
    {query_unknown_dtype, FM_ERROR_DTYPE, "query: unknown dtype 4"},
    {query_f16, FM_ERROR_DTYPE, "key: dtype is f32, needs f16"},
    {value_bf16, FM_ERROR_DTYPE, "value: dtype is bf16, needs f32"},
    {query_no_head_dim, FM_ERROR_SHAPE, "query: head_dim is 0"},
    {query_wide, FM_ERROR_SHAPE, "query: head_dim is 257"},
    {value_wide, FM_ERROR_SHAPE, "value: head_dim is 257"},
    {value_no_head_dim, FM_ERROR_SHAPE, "value: head_dim is 0"},
    {key_batch, FM_ERROR_SHAPE, "key: shape is [1, 5, 2, 8], query needs [2, 5, 2, 8]"},
    {key_head_dim, FM_ERROR_SHAPE, "key: shape is [2, 5, 2, 7]"},
    {value_keys, FM_ERROR_SHAPE, "value: shape is [2, 4, 2, 6], query and key need [2, 5, 2, 6]"},
    {value_heads, FM_ERROR_SHAPE, "value: shape"},
    {value_batch, FM_ERROR_SHAPE, "value: shape"},
    {query_heads, FM_ERROR_SHAPE, "key: has 2 heads, of which query's 3"},
    {key_no_heads, FM_ERROR_SHAPE, "key: has 0 heads"},
    {query_negative_stride, FM_ERROR_SHAPE, "query: stride[1] is -1"},
    {query_overflow, FM_ERROR_SHAPE, "query: shape and strides reach past"},
    {query_negative_rows, FM_ERROR_SHAPE, "query: shape[1] is -3"},
    {output_null, FM_ERROR_ARGUMENT, "output: data is NULL"},
    {output_unset, FM_ERROR_SHAPE, "output: rank is 0"},
    {output_rows, FM_ERROR_SHAPE, "output: shape is [2, 2, 4, 6], query and value need [2, 3, 4, 6]"},
    {output_head_dim, FM_ERROR_SHAPE, "output: shape"},
    {output_bf16, FM_ERROR_DTYPE, "output: dtype is bf16"},
    {output_expanded, FM_ERROR_SHAPE, "output: strides"},
    {query_on_gpu, FM_ERROR_DEVICE, "query: is on device CUDA:0"},
    {key_on_gpu, FM_ERROR_DEVICE, "key: is on device CUDA:0"},
    {output_on_gpu, FM_ERROR_DEVICE, "output: is on device CUDA:0"},
    {query_nowhere, FM_ERROR_DEVICE, "query: is on device unknown"},
    {value_cpu_1, FM_ERROR_DEVICE, "value: device index is 1"},
    {left_minus_2, FM_ERROR_ARGUMENT, "window_left: is -2"},
    {right_minus_3, FM_ERROR_ARGUMENT, "window_right: is -3"},
    {scale_infinite, FM_ERROR_ARGUMENT, "softmax_scale"},
    {softcap_negative, FM_ERROR_ARGUMENT, "softcap: is -1"},
    {softcap_nan, FM_ERROR_ARGUMENT, "softcap: is nan"},
    {softcap_infinite, FM_ERROR_ARGUMENT, "softcap: is inf"},
    {sinks_crooked, FM_ERROR_ARGUMENT, "sinks: is not aligned"},
    {lse_crooked, FM_ERROR_ARGUMENT, "lse: is not aligned"},
    {threads_negative, FM_ERROR_ARGUMENT, "num_threads: is -1"},
    {threads_many, FM_ERROR_ARGUMENT, "num_threads: is 2147483647"},
    {backend_9, FM_ERROR_ARGUMENT, "backend: is 9"},
    {stream_set, FM_ERROR_ARGUMENT, "stream"},
    {mask_rows, FM_ERROR_SHAPE, "mask: has 4 rows, query has 3"},
    {mask_columns, FM_ERROR_SHAPE, "mask: has 256 columns, key has 5"},
    {mask_transposed, FM_ERROR_SHAPE, "mask: has 5 rows, query has 3"},
    {mask_batch, FM_ERROR_SHAPE, "mask: has 3 batch items, needs 1 or query's 2"},
    {mask_heads, FM_ERROR_SHAPE, "mask: has 3 heads, needs 1, key's 2 or query's 4"},
    {plan_of_another_mask, FM_ERROR_ARGUMENT, "plan: was built from another mask"},
    {plan_of_another_shape, FM_ERROR_SHAPE, "plan: its mask has 10 columns, key has 5"},
    {plan_without_causal, FM_ERROR_ARGUMENT,
     "plan: was built with window (-1, -1), the call asks for (-1, 0); causal is right 0, -1 unlimited; "
     "set them in fm_plan_options when the plan is made, or leave the call's flags alone"},
    {plan_with_another_window, FM_ERROR_ARGUMENT, "plan: was built with window (2, 0), the call asks for (-1, 0)"},
    {output_is_query, FM_ERROR_ARGUMENT, "output: shares memory with query"},
    {output_meets_key, FM_ERROR_ARGUMENT, "output: shares memory with key"},
    {output_in_sinks, FM_ERROR_ARGUMENT, "output: shares memory with sinks"},
    {lse_in_output, FM_ERROR_ARGUMENT, "output: shares memory with lse"},
    {lse_in_value, FM_ERROR_ARGUMENT, "lse: shares memory with value"},
};

/* -- what spoils a backward call -- */
static void backward_size(fixture *x) { x->b.size = 1; }
static void no_forward(fixture *x) { x->b.forward = NULL; }
static void no_lse(fixture *x) { x->f.lse = NULL; }
static void backward_stream(fixture *x) { x->b.stream = x; }
static void grad_output_unset(fixture *x) { x->b.grad_output = (fm_tensor){0}; }
static void grad_output_null(fixture *x) { x->b.grad_output.data = NULL; }
static void grad_output_rows(fixture *x) { x->b.grad_output.shape[1] = Sq - 1; }
static void grad_output_f16(fixture *x) { x->b.grad_output.dtype = FM_F16; }
static void grad_output_on_gpu(fixture *x) { x->b.grad_output.device.kind = FM_CUDA; }
static void grad_query_rows(fixture *x) { x->b.grad_query.shape[1] = Sq - 1; }
static void grad_query_f16(fixture *x) { x->b.grad_query.dtype = FM_F16; }
static void grad_key_heads(fixture *x) { x->b.grad_key.shape[2] = 1; }
static void grad_key_expanded(fixture *x) { x->b.grad_key.stride[0] = 0; }
static void grad_value_head_dim(fixture *x) { x->b.grad_value.shape[3] = Dv - 1; }
static void grad_value_on_gpu(fixture *x) { x->b.grad_value.device.kind = FM_CUDA; }
static void grad_lse_crooked(fixture *x) { x->b.grad_lse = (const float *)(const void *)((const char *)x->b.grad_lse + 1); }
static void grad_sinks_crooked(fixture *x) { x->b.grad_sinks = (float *)(void *)((char *)x->b.grad_sinks + 1); }
static void grad_sinks_alone(fixture *x) { x->f.sinks = NULL; }
static void grad_query_is_query(fixture *x) { x->b.grad_query = x->f.query; }
static void grad_value_meets_output(fixture *x) { x->b.grad_value.data = x->f.output.data; }
static void grad_key_meets_grad_value(fixture *x) { x->b.grad_key.data = (float *)x->b.grad_value.data + 3; }
static void grad_value_holds_lse(fixture *x) { x->f.lse = (float *)x->b.grad_value.data + 1; }
static void grad_sinks_in_grad_lse(fixture *x) { x->b.grad_sinks = (float *)x->b.grad_lse; }
static void grad_sinks_are_sinks(fixture *x) { x->b.grad_sinks = (float *)x->f.sinks; }
static void grad_key_meets_grad_output(fixture *x) { x->b.grad_key.data = x->b.grad_output.data; }

static const spoilt backward_table[] = {
    {no_size, FM_ERROR_ARGUMENT, "forward->size: is 0"},
    {key_batch, FM_ERROR_SHAPE, "key: shape"},
    {mask_rows, FM_ERROR_SHAPE, "mask: has 4 rows"},
    {plan_without_causal, FM_ERROR_ARGUMENT, "plan: was built with window"},
    {stream_set, FM_ERROR_ARGUMENT, "stream"},
    {backward_size, FM_ERROR_ARGUMENT, "args->size: is 1"},
    {no_forward, FM_ERROR_ARGUMENT, "forward: is NULL"},
    {no_lse, FM_ERROR_ARGUMENT, "lse: is NULL"},
    {backward_stream, FM_ERROR_ARGUMENT, "stream"},
    {grad_output_unset, FM_ERROR_SHAPE, "grad_output: rank is 0"},
    {grad_output_null, FM_ERROR_ARGUMENT, "grad_output: data is NULL"},
    {grad_output_rows, FM_ERROR_SHAPE, "grad_output: shape"},
    {grad_output_f16, FM_ERROR_DTYPE, "grad_output: dtype is f16, needs f32"},
    {grad_output_on_gpu, FM_ERROR_DEVICE, "grad_output"},
    {grad_query_rows, FM_ERROR_SHAPE, "grad_query: shape is [2, 2, 4, 8]"},
    {grad_query_f16, FM_ERROR_DTYPE, "grad_query: dtype is f16"},
    {grad_key_heads, FM_ERROR_SHAPE, "grad_key: shape"},
    {grad_key_expanded, FM_ERROR_SHAPE, "grad_key: strides"},
    {grad_value_head_dim, FM_ERROR_SHAPE, "grad_value: shape"},
    {grad_value_on_gpu, FM_ERROR_DEVICE, "grad_value: is on device CUDA:0"},
    {grad_lse_crooked, FM_ERROR_ARGUMENT, "grad_lse: is not aligned"},
    {grad_sinks_crooked, FM_ERROR_ARGUMENT, "grad_sinks: is not aligned"},
    {grad_sinks_alone, FM_ERROR_ARGUMENT, "grad_sinks: is wanted, but forward->sinks is NULL"},
    {grad_query_is_query, FM_ERROR_ARGUMENT, "grad_query: shares memory with query"},
    {grad_value_meets_output, FM_ERROR_ARGUMENT, "grad_value: shares memory with output"},
    {grad_key_meets_grad_value, FM_ERROR_ARGUMENT, "grad_key: shares memory with grad_value"},
    {grad_value_holds_lse, FM_ERROR_ARGUMENT, "grad_value: shares memory with lse"},
    {grad_sinks_in_grad_lse, FM_ERROR_ARGUMENT, "grad_sinks: shares memory with grad_lse"},
    {grad_sinks_are_sinks, FM_ERROR_ARGUMENT, "grad_sinks: shares memory with sinks"},
    {grad_key_meets_grad_output, FM_ERROR_ARGUMENT, "grad_key: shares memory with grad_output"},
};

/* -- what only a backend with tiles and without f64 refuses -- */
static void f64(fixture *x) { x->f.query.dtype = x->f.key.dtype = x->f.value.dtype = FM_F64; }
static void plan_with_other_tiles(fixture *x) { make_plan(x, x->mask, false, -1, 48); }
static const spoilt cpu_table[] = {
    {f64, FM_ERROR_DTYPE, "query: dtype is f64"},
    {plan_with_other_tiles, FM_ERROR_ARGUMENT, "plan: has tiles of 48 x 64"},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static void bad_forward_arguments_are_refused_and_nothing_is_written(void **state) {
    (void)state;
    for (int i = 0; i < BACKENDS; i++) {
        assert_all_refused(forward_table, COUNT(forward_table), backends[i], false);
    }
}

static void bad_backward_arguments_are_refused_and_nothing_is_written(void **state) {
    (void)state;
    for (int i = 0; i < BACKENDS; i++) {
        assert_all_refused(backward_table, COUNT(backward_table), backends[i], true);
    }
}

static void what_the_cpu_backend_cannot_take_is_refused(void **state) {
    (void)state;
    assert_all_refused(cpu_table, COUNT(cpu_table), FM_BACKEND_CPU, false);
    assert_all_refused(cpu_table, COUNT(cpu_table), FM_BACKEND_CPU, true);
}

/* The workspace of a call is checked the same way whatever its backend needs; the CPU ones need none. */
static void a_workspace_that_is_missing_small_or_shared_is_refused(void **state) {
    (void)state;
    float memory[64];
    fm_problem problem = {.query = fm_tensor_contiguous(memory + 32, FM_F32, 1, 1, 1, 32)};
    assert_int_equal(fm_workspace_argument(NULL, 128, 128, &problem), FM_ERROR_WORKSPACE);
    assert_string_equal(fm_error_message(), "workspace: is NULL, needs 128 bytes");
    assert_int_equal(fm_workspace_argument(memory, 127, 128, &problem), FM_ERROR_WORKSPACE);
    assert_string_equal(fm_error_message(), "workspace: workspace_bytes is 127, needs 128");
    assert_null(problem.workspace);
    assert_int_equal(fm_workspace_argument(NULL, 0, 0, &problem), FM_OK);
    assert_int_equal(fm_workspace_argument(memory, 256, 128, &problem), FM_OK);
    assert_int_equal(fm_forward_overlaps(&problem), FM_OK);
    assert_int_equal(fm_workspace_argument(memory, 256, 132, &problem), FM_OK);
    assert_int_equal(fm_forward_overlaps(&problem), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(fm_error_message(), "workspace: shares memory with query"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_forward_arguments_are_refused_and_nothing_is_written),
        cmocka_unit_test(bad_backward_arguments_are_refused_and_nothing_is_written),
        cmocka_unit_test(what_the_cpu_backend_cannot_take_is_refused),
        cmocka_unit_test(a_workspace_that_is_missing_small_or_shared_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

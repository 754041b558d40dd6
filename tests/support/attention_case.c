#include "support/attention_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/cmocka_all.h"
#include "support/expect.h"

const char *const result_names[RESULT_COUNT] = {"output", "lse", "grad_query", "grad_key", "grad_value", "grad_sinks"};

const test_tensor *result_at(const attention_results *r, int i) {
    const test_tensor *const all[RESULT_COUNT] = {&r->output,   &r->lse,        &r->grad_query,
                                                  &r->grad_key, &r->grad_value, &r->grad_sinks};
    return all[i];
}

static float *random_floats(int64_t count, test_random *random) {
    float *values = malloc((size_t)count * sizeof *values + 1);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = random_normal(random);
    }
    return values;
}

attention_inputs attention_inputs_make(const attention_case *c, test_random *random) {
    attention_inputs in = {
        .query = test_tensor_make(c->layout, c->dtype, c->batch, c->rows, c->heads, c->head_dim),
        .key = test_tensor_make(c->layout, c->dtype, c->batch, c->columns, c->heads_kv, c->head_dim),
        .value = test_tensor_make(LAYOUT_CONTIGUOUS, c->dtype, c->batch, c->columns, c->heads_kv, c->head_dim_v),
        .grad_output =
            test_tensor_make(c->layout, c->f32_results ? FM_F32 : c->dtype, c->batch, c->rows, c->heads, c->head_dim_v)};
    test_tensor_fill(&in.query, random, 1.0);
    test_tensor_fill(&in.key, random, 1.0);
    test_tensor_fill(&in.value, random, 1.0);
    test_tensor_fill(&in.grad_output, random, 1.0);
    in.sinks = c->with_sinks ? random_floats(c->heads, random) : NULL;
    in.grad_lse = c->with_grad_lse ? random_floats(c->batch * c->heads * c->rows, random) : NULL;
    return in;
}

static test_tensor widen(const test_tensor *t) {
    const int64_t *n = t->view.shape;
    test_tensor wide = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F64, n[0], n[1], n[2], n[3]);
    test_tensor_copy(&wide, t);
    return wide;
}

static float *copy_floats(const float *source, int64_t count) {
    if (source == NULL) {
        return NULL;
    }
    float *copy = malloc((size_t)count * sizeof *copy + 1);
    assert_non_null(copy);
    for (int64_t i = 0; i < count; i++) {
        copy[i] = source[i];
    }
    return copy;
}

attention_inputs attention_inputs_widen(const attention_case *c, const attention_inputs *in) {
    return (attention_inputs){.query = widen(&in->query),
                              .key = widen(&in->key),
                              .value = widen(&in->value),
                              .grad_output = widen(&in->grad_output),
                              .sinks = copy_floats(in->sinks, c->heads),
                              .grad_lse = copy_floats(in->grad_lse, c->batch * c->heads * c->rows)};
}

void attention_inputs_free(attention_inputs *in) {
    test_tensor_free(&in->query);
    test_tensor_free(&in->key);
    test_tensor_free(&in->value);
    test_tensor_free(&in->grad_output);
    free(in->sinks);
    free(in->grad_lse);
    *in = (attention_inputs){0};
}

static attention_results make_results(const attention_case *c, fm_dtype dtype, test_layout layout) {
    return (attention_results){
        .output = test_tensor_make(layout, dtype, c->batch, c->rows, c->heads, c->head_dim_v),
        .lse = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, c->batch, c->heads, c->rows),
        .grad_query = test_tensor_make(layout, dtype, c->batch, c->rows, c->heads, c->head_dim),
        .grad_key = test_tensor_make(layout, dtype, c->batch, c->columns, c->heads_kv, c->head_dim),
        .grad_value = test_tensor_make(layout, dtype, c->batch, c->columns, c->heads_kv, c->head_dim_v),
        .grad_sinks = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, 1, 1, c->with_sinks ? c->heads : 0),
    };
}

attention_results attention_results_make(const attention_case *c) {
    return make_results(c, c->f32_results ? FM_F32 : c->dtype, c->layout);
}

fm_attention_forward_args attention_forward_arguments(const attention_case *c, const attention_inputs *in,
                                                      const attention_results *r) {
    fm_attention_forward_args args = FM_ATTENTION_FORWARD_ARGS_INIT;
    args.query = in->query.view;
    args.key = in->key.view;
    args.value = in->value.view;
    args.mask = c->mask;
    args.causal = c->causal;
    args.window_left = c->window_left;
    args.window_right = c->window_right;
    args.softmax_scale = c->scale;
    args.softcap = c->softcap;
    args.sinks = in->sinks;
    args.output = r->output.view;
    args.lse = r->lse.buffer;
    return args;
}

fm_attention_backward_args attention_backward_arguments(const attention_inputs *in, const attention_results *r) {
    fm_attention_backward_args args = FM_ATTENTION_BACKWARD_ARGS_INIT;
    args.grad_output = in->grad_output.view;
    args.grad_lse = in->grad_lse;
    args.grad_query = r->grad_query.view;
    args.grad_key = r->grad_key.view;
    args.grad_value = r->grad_value.view;
    args.grad_sinks = in->sinks != NULL ? r->grad_sinks.buffer : NULL;
    return args;
}

static void run_forward(fm_attention_forward_args args) {
    succeed(fm_attention_forward_workspace(&args, &args.workspace_bytes));
    args.workspace = malloc(args.workspace_bytes + 1);
    succeed(fm_attention_forward(&args));
    free(args.workspace);
}

static void run_backward(fm_attention_backward_args args) {
    succeed(fm_attention_backward_workspace(&args, &args.workspace_bytes));
    args.workspace = malloc(args.workspace_bytes + 1);
    succeed(fm_attention_backward(&args));
    free(args.workspace);
}

attention_results attention_run(const attention_case *c, const attention_inputs *in, attention_run_options options) {
    const bool oracle = in->query.view.dtype == FM_F64;
    const attention_results r = oracle ? make_results(c, FM_F64, LAYOUT_CONTIGUOUS) : attention_results_make(c);
    fm_attention_forward_args forward = attention_forward_arguments(c, in, &r);
    forward.backend = options.backend;
    forward.plan = options.plan;
    forward.no_skip = options.no_skip;
    forward.num_threads = options.num_threads;
    run_forward(forward);
    forward.lse = oracle ? NULL : forward.lse; /* the oracle recomputes it in f64 */
    fm_attention_backward_args backward = attention_backward_arguments(in, &r);
    backward.forward = &forward;
    run_backward(backward);
    return r;
}

void attention_results_free(attention_results *r) {
    for (int i = 0; i < RESULT_COUNT; i++) {
        free(result_at(r, i)->buffer);
    }
    *r = (attention_results){0};
}

static double unit_of(fm_dtype dtype) { return dtype == FM_BF16 ? 0x1p-8 : dtype == FM_F16 ? 0x1p-11 : 0x1p-24; }

/* Sums in f32 of as many terms as the longest sum of the case has: rounding errors of partial sums add up like a random walk.
 * Without this a case of a few elements, in which plain happens to be exact, would demand the same of ours. */
static double walk_of(const attention_case *c) {
    const int64_t group = c->heads / c->heads_kv, rows = c->rows * group;
    const int64_t longest = rows > c->columns ? rows : c->columns;
    return 2.0 * sqrt((double)(longest + c->head_dim + c->head_dim_v)) * 0x1p-24;
}

/* Plain rounds P and dS to the inputs' dtype, whatever the results', and over a few rows it may do so by luck almost exactly: the
 * forward kernels of a GPU round exp(S - m) where plain rounds exp(S - m) / l. And with f32 results its products take dO, which is
 * then f32 too, rounded to the inputs' dtype; plain does not. */
static double result_unit_of(const attention_case *c, fm_dtype result) {
    const bool rounds_more = c->is_gpu && (c->rows <= 64 || c->f32_results);
    return rounds_more ? fmax(unit_of(result), unit_of(c->dtype)) : unit_of(result);
}

/* Where O is rounded to a half dtype, delta = dO . O is off by about u sqrt(Dv) (inputs are standard normal), and so is each
 * dS = P (dP - delta), however small dP - delta is. Over a few rows plain may escape that by luck and ours not. Where a row sees one
 * key, dP and delta are the same sum of Dv terms: plain adds both up in one order, a GPU in two. Partial sums of k terms are about
 * sqrt(k), so each of the two is off by 2^-24 sqrt(sum of k) / sqrt(3) = 0.4 Dv 2^-24, and four such deviations of both are 2 Dv 2^-24. */
static double delta_error_of(const attention_case *c, fm_dtype output, int result) {
    const double two_orders = c->is_gpu ? 2.0 * (double)c->head_dim_v * 0x1p-24 : 0.0;
    const bool may_be_lucky = c->rows <= 64 || result == 5 || (c->is_gpu && c->f32_results);
    const double rounding = may_be_lucky ? 2.0 * result_unit_of(c, output) * sqrt((double)c->head_dim_v) : 0.0;
    const double delta = rounding + two_orders;
    const double largest_input = 3.5, scale = isnan(c->scale) ? 1.0 / sqrt((double)c->head_dim) : fabs((double)c->scale);
    const int64_t rows = c->rows * (c->heads / c->heads_kv);
    switch (result) {
    case 2: return delta * scale * largest_input;                      /* grad_query: sum of dS K */
    case 3: return delta * scale * largest_input * sqrt((double)rows); /* grad_key: sum of dS Q */
    case 5: return delta * sqrt((double)(c->batch * c->rows)); /* grad_sinks: one sum of delta for each head, few values */
    default: return 0.0;
    }
}

static double floor_of(const attention_case *c, const attention_results *ours, const test_tensor *oracle, int result) {
    const double largest = test_tensor_largest(oracle), delta_error = delta_error_of(c, ours->output.view.dtype, result);
    switch (result) {
    case 1: return (8.0 * unit_of(FM_F32) + walk_of(c)) * fmax(largest, 1.0) + 1e-7; /* lse */
    case 5: return walk_of(c) * largest + delta_error + 1e-7;
    default: return (2.0 * result_unit_of(c, result_at(ours, result)->view.dtype) + walk_of(c)) * largest + delta_error + 1e-7;
    }
}

void attention_assert_result_close(const attention_case *c, const attention_results *ours, const attention_results *plain,
                                   const attention_results *oracle, int i) {
    const test_tensor *truth = result_at(oracle, i);
    const double error = test_tensor_distance(result_at(ours, i), truth);
    const double plain_error = test_tensor_distance(result_at(plain, i), truth);
    const double tolerance = 2.0 * plain_error + floor_of(c, ours, truth, i);
    if (!(error <= tolerance)) {
        fail_msg("%s: %s: error %.3g, tolerance %.3g (plain %.3g, largest %.3g): B %lld Sq %lld Sk %lld Hq %lld Hkv %lld D %lld "
                 "Dv %lld dtype %s",
                 c->name != NULL ? c->name : "case", result_names[i], error, tolerance, plain_error, test_tensor_largest(truth),
                 (long long)c->batch, (long long)c->rows, (long long)c->columns, (long long)c->heads, (long long)c->heads_kv,
                 (long long)c->head_dim, (long long)c->head_dim_v, fm_dtype_name(c->dtype));
    }
}

void attention_assert_close(const attention_case *c, const attention_results *ours, const attention_results *plain,
                            const attention_results *oracle) {
    for (int i = 0; i < RESULT_COUNT; i++) {
        attention_assert_result_close(c, ours, plain, oracle, i);
    }
}

void attention_assert_same_bits(const attention_results *a, const attention_results *b) {
    for (int i = 0; i < RESULT_COUNT; i++) {
        if (!test_tensor_same(result_at(a, i), result_at(b, i))) {
            fail_msg("%s differs", result_names[i]);
        }
    }
}

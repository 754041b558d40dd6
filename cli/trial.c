#include "trial.h"

#include "call.h"
#include "half.h"
#include "random.h"

#include <stdlib.h>

const char *const fm_trial_result_names[FM_TRIAL_RESULTS] = {"O", "LSE", "dQ", "dK", "dV"};

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

static int64_t element_count(const fm_tensor *t) { return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]; }

static int64_t offset_of(const fm_tensor *t, int64_t flat) {
    int64_t offset = 0;
    for (int d = 3; d >= 0; d--) {
        offset += flat % t->shape[d] * t->stride[d];
        flat /= t->shape[d];
    }
    return offset;
}

/* Element `flat` in C order. */
static double load(const fm_tensor *t, int64_t flat) {
    const int64_t at = offset_of(t, flat);
    switch (t->dtype) {
    case FM_F32: return ((const float *)t->data)[at];
    case FM_F16: return half_from_f16(((const uint16_t *)t->data)[at]);
    case FM_BF16: return half_from_bf16(((const uint16_t *)t->data)[at]);
    case FM_F64: return ((const double *)t->data)[at];
    }
    return NAN;
}

static void fill_normal(const fm_tensor *t, fm_random *random) {
    for (int64_t i = 0; i < element_count(t); i++) {
        const float value = (float)fm_random_normal(random);
        switch (t->dtype) {
        case FM_F32: ((float *)t->data)[i] = value; break;
        case FM_F16: ((uint16_t *)t->data)[i] = half_to_f16(value); break;
        case FM_BF16: ((uint16_t *)t->data)[i] = half_to_bf16(value); break;
        case FM_F64: ((double *)t->data)[i] = value; break;
        }
    }
}

fm_tensor fm_tensor_range(const fm_tensor *tensor, int dimension, int64_t start, int64_t end) {
    fm_tensor t = *tensor;
    t.data = (char *)t.data + start * t.stride[dimension] * (int64_t)fm_dtype_size(t.dtype);
    t.shape[dimension] = end - start;
    return t;
}

/* ---- inputs -------------------------------------------------------------------------------------------------------- */

enum { INPUTS = 4 };

static fm_tensor *input_at(fm_trial_inputs *inputs, int i) {
    fm_tensor *all[INPUTS] = {&inputs->query, &inputs->key, &inputs->value, &inputs->grad_output};
    return all[i];
}

void fm_trial_inputs_free(fm_trial_inputs *inputs) {
    for (int i = 0; i < INPUTS; i++) {
        free(input_at(inputs, i)->data);
    }
    *inputs = (fm_trial_inputs){0};
}

bool fm_trial_inputs_make(const fm_trial_shape *s, uint64_t seed, fm_trial_inputs *out) {
    const int64_t shapes[INPUTS][4] = {
        {s->batch, s->rows, s->heads, s->head_dim},
        {s->batch, s->columns, s->heads_kv, s->head_dim},
        {s->batch, s->columns, s->heads_kv, s->head_dim_v},
        {s->batch, s->rows, s->heads, s->head_dim_v},
    };
    fm_trial_inputs inputs = {0};
    fm_random random = {.state = seed};
    for (int i = 0; i < INPUTS; i++) {
        if (!fm_tensor_allocate(input_at(&inputs, i), s->dtype, shapes[i])) {
            fm_trial_inputs_free(&inputs);
            return false;
        }
        fill_normal(input_at(&inputs, i), &random);
    }
    *out = inputs;
    return true;
}

bool fm_tensor_widen(const fm_tensor *tensor, fm_tensor *out) {
    if (!fm_tensor_allocate(out, FM_F64, tensor->shape)) {
        return false;
    }
    for (int64_t e = 0; e < element_count(tensor); e++) {
        ((double *)out->data)[e] = load(tensor, e);
    }
    return true;
}

bool fm_trial_inputs_widen(const fm_trial_inputs *inputs, fm_trial_inputs *out) {
    fm_trial_inputs narrow = *inputs, wide = {0};
    for (int i = 0; i < INPUTS; i++) {
        if (!fm_tensor_widen(input_at(&narrow, i), input_at(&wide, i))) {
            fm_trial_inputs_free(&wide);
            return false;
        }
    }
    *out = wide;
    return true;
}

fm_trial_inputs fm_trial_inputs_slice(const fm_trial_inputs *inputs, fm_trial_range r) {
    return (fm_trial_inputs){
        .query = fm_tensor_range(&inputs->query, 1, r.row0, r.row1),
        .key = fm_tensor_range(&inputs->key, 1, r.column0, r.column1),
        .value = fm_tensor_range(&inputs->value, 1, r.column0, r.column1),
        .grad_output = fm_tensor_range(&inputs->grad_output, 1, r.row0, r.row1),
    };
}

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

void fm_trial_results_free(fm_trial_results *results) {
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        free(results->result[i].data);
    }
    *results = (fm_trial_results){0};
}

bool fm_trial_results_make(const fm_trial_inputs *in, fm_trial_results *out) {
    const int64_t *q = in->query.shape, *k = in->key.shape, *v = in->value.shape;
    const int64_t shapes[FM_TRIAL_RESULTS][4] = {
        [FM_TRIAL_OUTPUT] = {q[0], q[1], q[2], v[3]},     [FM_TRIAL_LSE] = {1, q[0], q[2], q[1]},
        [FM_TRIAL_GRAD_QUERY] = {q[0], q[1], q[2], q[3]}, [FM_TRIAL_GRAD_KEY] = {k[0], k[1], k[2], k[3]},
        [FM_TRIAL_GRAD_VALUE] = {v[0], v[1], v[2], v[3]},
    };
    fm_trial_results results = {0};
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        if (!fm_tensor_allocate(&results.result[i], i == FM_TRIAL_LSE ? FM_F32 : in->query.dtype, shapes[i])) {
            fm_trial_results_free(&results);
            return false;
        }
    }
    *out = results;
    return true;
}

bool fm_trial_run(const fm_trial_inputs *in, const fm_trial_call *call, fm_trial_results *out) {
    fm_trial_results results = {0};
    fm_attention_forward_args forward = FM_ATTENTION_FORWARD_ARGS_INIT;
    fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
    bool ok = fm_trial_results_make(in, &results);
    if (ok) {
        forward.query = in->query;
        forward.key = in->key;
        forward.value = in->value;
        forward.mask = call->mask;
        forward.plan = call->plan;
        forward.output = results.result[FM_TRIAL_OUTPUT];
        forward.lse = results.result[FM_TRIAL_LSE].data;
        forward.no_skip = call->no_skip;
        forward.backend = call->backend;
        forward.num_threads = call->threads;
        ok = fm_call_forward(&forward, &results.forward_seconds);
    }
    if (ok) {
        forward.lse = in->query.dtype == FM_F64 ? NULL : forward.lse; /* the oracle recomputes it in f64 */
        backward.forward = &forward;
        backward.grad_output = in->grad_output;
        backward.grad_query = results.result[FM_TRIAL_GRAD_QUERY];
        backward.grad_key = results.result[FM_TRIAL_GRAD_KEY];
        backward.grad_value = results.result[FM_TRIAL_GRAD_VALUE];
        ok = fm_call_backward(&backward, &results.backward_seconds);
    }
    free(forward.workspace);
    free(backward.workspace);
    if (ok) {
        *out = results;
    } else {
        fm_trial_results_free(&results);
    }
    return ok;
}

bool fm_trial_references(const fm_trial_inputs *inputs, const fm_mask *mask, int32_t threads, fm_trial_results *oracle,
                         fm_trial_results *plain) {
    const fm_trial_call call = {.mask = mask, .backend = FM_BACKEND_REFERENCE, .threads = threads};
    fm_trial_inputs wide = {0};
    const bool ok = fm_trial_inputs_widen(inputs, &wide) && fm_trial_run(&wide, &call, oracle);
    fm_trial_inputs_free(&wide);
    if (ok && !fm_trial_run(inputs, &call, plain)) {
        fm_trial_results_free(oracle);
        return false;
    }
    return ok;
}

/* ---- comparison ---------------------------------------------------------------------------------------------------- */

static double difference(double a, double b) {
    if (isnan(a) || isnan(b)) {
        return INFINITY;
    }
    return a == b ? 0 : fabs(a - b); /* equal infinities too */
}

static double largest_difference(const fm_tensor *a, const fm_tensor *b) {
    double largest = 0;
    for (int64_t i = 0; i < element_count(a); i++) {
        largest = fmax(largest, difference(load(a, i), load(b, i)));
    }
    return largest;
}

static double largest_finite(const fm_tensor *t) {
    double largest = 0;
    for (int64_t i = 0; i < element_count(t); i++) {
        const double value = fabs(load(t, i));
        largest = isfinite(value) && value > largest ? value : largest;
    }
    return largest;
}

static double unit_of(fm_dtype dtype) { return dtype == FM_BF16 ? 0x1p-8 : dtype == FM_F16 ? 0x1p-11 : 0x1p-24; }

int64_t fm_trial_terms(const fm_trial_inputs *in) {
    const int64_t rows = in->query.shape[1] * (in->query.shape[2] / in->key.shape[2]), keys = in->key.shape[1];
    return (rows > keys ? rows : keys) + in->key.shape[3] + in->value.shape[3];
}

void fm_trial_measure(fm_trial_error *e, int64_t terms, const fm_tensor *ours, const fm_tensor *plain, const fm_tensor *oracle) {
    e->error = fmax(e->error, largest_difference(ours, oracle));
    e->plain = fmax(e->plain, largest_difference(plain, oracle));
    e->largest = fmax(e->largest, largest_finite(oracle));
    e->terms = terms > e->terms ? terms : e->terms;
}

void fm_trial_judge(fm_trial_error *e, int result, fm_dtype dtype) {
    const double walk = 2 * sqrt((double)e->terms) * unit_of(FM_F32);
    e->floor = 1e-7 + (result == FM_TRIAL_LSE ? (8 * unit_of(FM_F32) + walk) * fmax(e->largest, 1)
                                              : (2 * unit_of(dtype) + walk) * e->largest);
    e->tolerance = 2 * e->plain + e->floor;
    e->agrees = isfinite(e->error) && e->error <= e->tolerance;
}

bool fm_trial_results_equal(const fm_trial_results *a, const fm_trial_results *b) {
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        if (largest_difference(&a->result[i], &b->result[i]) != 0) {
            return false;
        }
    }
    return true;
}

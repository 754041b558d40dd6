#include "bench_check.h"

#include "call.h"
#include "random.h"

#include <stdlib.h>

enum { GROUPS = 3, GROUP = 16 };

typedef struct range {
    int64_t start, end;
} range;

static range group_of(int group, int64_t extent, fm_random *random) {
    const int64_t size = extent < GROUP ? extent : GROUP;
    const int64_t start = group == 0 ? 0 : group == 1 ? extent - size : fm_random_below(random, extent - size + 1);
    return (range){start, start + size};
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

static bool check_rows(const fm_bench_checked *c, range rows, fm_bench_result *out) {
    const fm_trial_shape *s = &c->settings->shape;
    const fm_trial_inputs inputs = fm_trial_inputs_slice(c->inputs, (fm_trial_range){rows.start, rows.end, 0, s->columns});
    fm_trial_results oracle = {0}, plain = {0};
    fm_mask *mask = NULL;
    const bool ok = fm_cli_ok(fm_mask_slice(c->mask, rows.start, rows.end, 0, s->columns, NULL, &mask), "check") &&
                    fm_trial_references(&inputs, mask, c->settings->threads, &oracle, &plain);
    for (int i = FM_TRIAL_OUTPUT; ok && i <= FM_TRIAL_GRAD_QUERY; i++) {
        const fm_tensor ours = fm_tensor_range(&c->results->result[i], i == FM_TRIAL_LSE ? 3 : 1, rows.start, rows.end);
        fm_trial_measure(&out->errors[i], fm_trial_terms(&inputs), &ours, &plain.result[i], &oracle.result[i]);
    }
    out->checked_rows += rows.end - rows.start;
    fm_trial_results_free(&oracle);
    fm_trial_results_free(&plain);
    fm_mask_free(mask);
    return ok;
}

/* ---- keys ---------------------------------------------------------------------------------------------------------- */

typedef struct key_gradients {
    fm_tensor key, value;
} key_gradients;

static void free_gradients(key_gradients *g) {
    free(g->key.data);
    free(g->value.data);
}

/* dK and dV of a slice of keys by the reference backend in the dtype of the inputs, given the whole O and LSE. */
static bool reference_gradients(const fm_trial_inputs *inputs, const fm_tensor *output, float *lse, const fm_mask *mask,
                                key_gradients *out) {
    fm_attention_forward_args forward = FM_ATTENTION_FORWARD_ARGS_INIT;
    fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
    if (!fm_tensor_allocate(&out->key, inputs->key.dtype, inputs->key.shape) ||
        !fm_tensor_allocate(&out->value, inputs->value.dtype, inputs->value.shape)) {
        return false;
    }
    forward.query = inputs->query;
    forward.key = inputs->key;
    forward.value = inputs->value;
    forward.mask = mask;
    forward.output = *output;
    forward.lse = lse;
    forward.backend = FM_BACKEND_REFERENCE;
    backward.forward = &forward;
    backward.grad_output = inputs->grad_output;
    backward.grad_key = out->key;
    backward.grad_value = out->value;
    const bool ok = fm_call_backward(&backward, NULL);
    free(backward.workspace);
    return ok;
}

/* All rows in f64, for every group of keys. */
typedef struct wide_rows {
    fm_tensor query, output, grad_output;
} wide_rows;

static bool oracle_gradients(const fm_trial_inputs *inputs, const wide_rows *wide, float *lse, const fm_mask *mask,
                             key_gradients *out) {
    fm_trial_inputs in = {.query = wide->query, .grad_output = wide->grad_output};
    const bool ok = fm_tensor_widen(&inputs->key, &in.key) && fm_tensor_widen(&inputs->value, &in.value) &&
                    reference_gradients(&in, &wide->output, lse, mask, out);
    free(in.key.data);
    free(in.value.data);
    return ok;
}

static bool check_keys(const fm_bench_checked *c, const wide_rows *wide, range keys, fm_bench_result *out) {
    const fm_trial_shape *s = &c->settings->shape;
    const fm_trial_inputs inputs = fm_trial_inputs_slice(c->inputs, (fm_trial_range){0, s->rows, keys.start, keys.end});
    float *lse = c->results->result[FM_TRIAL_LSE].data;
    key_gradients plain = {0}, oracle = {0};
    fm_mask *mask = NULL;
    const bool ok = fm_cli_ok(fm_mask_slice(c->mask, 0, s->rows, keys.start, keys.end, NULL, &mask), "check") &&
                    reference_gradients(&inputs, &c->results->result[FM_TRIAL_OUTPUT], lse, mask, &plain) &&
                    oracle_gradients(&inputs, wide, lse, mask, &oracle);
    if (ok) {
        const fm_tensor key = fm_tensor_range(&c->results->result[FM_TRIAL_GRAD_KEY], 1, keys.start, keys.end);
        const fm_tensor value = fm_tensor_range(&c->results->result[FM_TRIAL_GRAD_VALUE], 1, keys.start, keys.end);
        const int64_t terms = fm_trial_terms(&inputs);
        fm_trial_measure(&out->errors[FM_TRIAL_GRAD_KEY], terms, &key, &plain.key, &oracle.key);
        fm_trial_measure(&out->errors[FM_TRIAL_GRAD_VALUE], terms, &value, &plain.value, &oracle.value);
    }
    out->checked_keys += keys.end - keys.start;
    free_gradients(&plain);
    free_gradients(&oracle);
    fm_mask_free(mask);
    return ok;
}

bool fm_bench_check(const fm_bench_checked *c, fm_bench_result *out) {
    const fm_trial_shape *s = &c->settings->shape;
    fm_random random = {.state = c->settings->seed};
    wide_rows wide = {0};
    bool ok = fm_tensor_widen(&c->inputs->query, &wide.query) &&
              fm_tensor_widen(&c->results->result[FM_TRIAL_OUTPUT], &wide.output) &&
              fm_tensor_widen(&c->inputs->grad_output, &wide.grad_output);
    for (int group = 0; ok && group < GROUPS; group++) {
        ok = check_rows(c, group_of(group, s->rows, &random), out) &&
             check_keys(c, &wide, group_of(group, s->columns, &random), out);
    }
    free(wide.query.data);
    free(wide.output.data);
    free(wide.grad_output.data);
    out->agrees = ok;
    for (int i = 0; ok && i < FM_TRIAL_RESULTS; i++) {
        fm_trial_judge(&out->errors[i], i, s->dtype);
        out->agrees = out->agrees && out->errors[i].agrees;
    }
    return ok;
}

/* flashmask run: attention on arrays from files. */
#include "call.h"
#include "commands.h"
#include "json_out.h"
#include "run_arrays.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct run {
    const fm_options *options;
    fm_npy arrays[FM_RUN_ARRAYS];
    fm_mask *mask; /* NULL: everything is visible, or everything causal */
    fm_attention_forward_args forward;
    fm_attention_backward_args backward;
    double forward_seconds, backward_seconds;
} run;

/* ---- inputs -------------------------------------------------------------------------------------------------------- */

static const struct {
    fm_npy_type type;
    fm_dtype dtype;
} float_types[] = {{FM_NPY_F32, FM_F32}, {FM_NPY_F16, FM_F16}, {FM_NPY_BF16, FM_BF16}, {FM_NPY_F64, FM_F64}};
enum { FLOAT_TYPES = sizeof float_types / sizeof float_types[0] };

static bool as_tensor(const run *r, fm_run_array array, fm_tensor *out) {
    char text[256];
    const fm_npy *a = &r->arrays[array];
    if (a->rank != 4) {
        return fm_cli_fail("%s: has %" PRId32 " dimensions; [batch, sequence, heads, head dim] is needed",
                           fm_run_array_text(r->options, array, text), a->rank);
    }
    if (a->type == FM_NPY_F64 && r->options->backend != FM_BACKEND_REFERENCE) { /* what NumPy makes if nothing is said */
        return fm_cli_fail("%s: elements are float64; float32, float16 or bfloat16 is needed, or --backend reference",
                           fm_run_array_text(r->options, array, text));
    }
    for (int i = 0; i < FLOAT_TYPES; i++) {
        if (a->type == float_types[i].type) {
            *out = fm_tensor_contiguous(a->data, float_types[i].dtype, a->shape[0], a->shape[1], a->shape[2], a->shape[3]);
            return true;
        }
    }
    return fm_cli_fail("%s: elements are %s; a floating-point type is needed", fm_run_array_text(r->options, array, text),
                       fm_npy_type_name(a->type));
}

/* The elements of an optional float32 array with these extents, or NULL without it. */
static bool as_floats(const run *r, fm_run_array array, int32_t rank, const int64_t *shape, const float **out) {
    char text[256];
    const fm_npy *a = &r->arrays[array];
    bool fits = a->type == FM_NPY_F32 && a->rank == rank;
    for (int32_t d = 0; fits && d < rank; d++) {
        fits = a->shape[d] == shape[d];
    }
    *out = a->data;
    return a->data == NULL || fits ||
           fm_cli_fail("%s: is not float32 %s of the query's extents", fm_run_array_text(r->options, array, text),
                       rank == 1 ? "[heads]" : "[batch, heads, sequence]");
}

/* The mask gets its extents from query and key. Without one --causal stands alone. */
static bool make_mask(run *r) {
    fm_options options = *r->options;
    options.rows = r->forward.query.shape[1];
    options.seq = r->forward.key.shape[1];
    options.heads_kv = r->forward.key.shape[2];
    if (options.vectors == NULL) {
        r->forward.causal = options.causal == 1;
        options.causal = -1;
    }
    if (options.vectors == NULL && options.mask == NULL) {
        return true;
    }
    if (options.rows < 1 || options.seq < 1 || options.heads_kv < 1) {
        return fm_cli_fail("--%s: query or key is empty", options.mask != NULL ? "mask" : "vectors");
    }
    return fm_options_mask(&options, &r->mask);
}

static bool prepare_forward(run *r) {
    fm_attention_forward_args *f = &r->forward;
    if (!as_tensor(r, FM_RUN_QUERY, &f->query) || !as_tensor(r, FM_RUN_KEY, &f->key) || !as_tensor(r, FM_RUN_VALUE, &f->value) ||
        !as_floats(r, FM_RUN_SINKS, 1, &f->query.shape[2], &f->sinks) || !make_mask(r)) {
        return false;
    }
    f->mask = r->mask;
    f->softmax_scale = (float)r->options->scale;
    f->softcap = (float)r->options->softcap;
    f->backend = r->options->backend;
    f->num_threads = (int32_t)r->options->threads;
    return true;
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

/* Zeroed, with the type and shape of `like`. */
static bool allocate_result(run *r, fm_run_array array, const fm_npy *like) {
    fm_npy *a = &r->arrays[array];
    *a = *like;
    a->data = NULL;
    a->count = 1;
    for (int32_t d = 0; d < a->rank; d++) {
        if (__builtin_mul_overflow(a->count, a->shape[d], &a->count)) {
            return fm_cli_fail("%s: is past 2^63 elements", fm_run_array_names[array]);
        }
    }
    a->data = fm_cli_allocate(a->count, fm_npy_type_size(a->type));
    return a->data != NULL;
}

/* Output and lse are computed whether they are wanted or not: backward needs them. */
static bool allocate_results(run *r) {
    const fm_npy *q = &r->arrays[FM_RUN_QUERY];
    const fm_npy lse = {.type = FM_NPY_F32, .rank = 3, .shape = {q->shape[0], q->shape[2], q->shape[1]}};
    fm_npy output = *q;
    output.shape[3] = r->arrays[FM_RUN_VALUE].shape[3];
    return allocate_result(r, FM_RUN_OUTPUT, &output) && allocate_result(r, FM_RUN_LSE, &lse);
}

static bool run_forward(run *r) {
    if (!prepare_forward(r) || !allocate_results(r) || !as_tensor(r, FM_RUN_OUTPUT, &r->forward.output)) {
        return false;
    }
    r->forward.lse = r->arrays[FM_RUN_LSE].data;
    return fm_call_forward(&r->forward, &r->forward_seconds);
}

static bool prepare_gradient(run *r, fm_run_array result, fm_run_array input, fm_tensor *out) {
    return !fm_run_array_wanted(r->options, r->arrays, result) ||
           (allocate_result(r, result, &r->arrays[input]) && as_tensor(r, result, out));
}

static bool run_backward(run *r) {
    fm_attention_backward_args *b = &r->backward;
    if (r->arrays[FM_RUN_GRAD_OUTPUT].data == NULL) {
        return true;
    }
    const int64_t *q = r->forward.query.shape, lse_shape[3] = {q[0], q[2], q[1]};
    if (!as_tensor(r, FM_RUN_GRAD_OUTPUT, &b->grad_output) || !as_floats(r, FM_RUN_GRAD_LSE, 3, lse_shape, &b->grad_lse) ||
        !prepare_gradient(r, FM_RUN_GRAD_QUERY, FM_RUN_QUERY, &b->grad_query) ||
        !prepare_gradient(r, FM_RUN_GRAD_KEY, FM_RUN_KEY, &b->grad_key) ||
        !prepare_gradient(r, FM_RUN_GRAD_VALUE, FM_RUN_VALUE, &b->grad_value)) {
        return false;
    }
    if (fm_run_array_wanted(r->options, r->arrays, FM_RUN_GRAD_SINKS)) {
        if (!allocate_result(r, FM_RUN_GRAD_SINKS, &r->arrays[FM_RUN_SINKS])) {
            return false;
        }
        b->grad_sinks = r->arrays[FM_RUN_GRAD_SINKS].data;
    }
    b->forward = &r->forward;
    return fm_call_backward(b, &r->backward_seconds);
}

static void drop_unwanted(run *r) {
    for (fm_run_array i = FM_RUN_INPUTS; i < FM_RUN_ARRAYS; i++) {
        if (!fm_run_array_wanted(r->options, r->arrays, i)) {
            fm_npy_free(&r->arrays[i]);
        }
    }
}

static const char *file_of(const run *r, int result) {
    return r->options->array[r->options->tensors != NULL ? FM_RUN_OUTPUT : result];
}

/* ---- report -------------------------------------------------------------------------------------------------------- */

static void print_text(const run *r) {
    const int64_t *q = r->forward.query.shape, *k = r->forward.key.shape, *v = r->forward.value.shape;
    printf("shape     batch %" PRId64 ", rows %" PRId64 ", keys %" PRId64 ", heads %" PRId64 ":%" PRId64 ", head dim %" PRId64
           ":%" PRId64 ", %s\n",
           q[0], q[1], k[1], q[2], k[2], q[3], v[3], fm_dtype_text(r->forward.query.dtype));
    printf("forward   %.3f ms\n", 1e3 * r->forward_seconds);
    if (r->backward.forward != NULL) {
        printf("backward  %.3f ms\n", 1e3 * r->backward_seconds);
    }
    for (int i = FM_RUN_INPUTS; i < FM_RUN_ARRAYS; i++) {
        const fm_npy *a = &r->arrays[i];
        if (a->data == NULL) {
            continue;
        }
        printf("%-10s %s [", fm_run_array_names[i], fm_npy_type_name(a->type));
        for (int32_t d = 0; d < a->rank; d++) {
            printf("%s%" PRId64, d > 0 ? ", " : "", a->shape[d]);
        }
        printf("] in %s\n", file_of(r, i));
    }
}

/* NULL if a name is not UTF-8. */
static json_t *make_json(const run *r) {
    json_t *results = json_object();
    for (int i = FM_RUN_INPUTS; i < FM_RUN_ARRAYS; i++) {
        const fm_npy *a = &r->arrays[i];
        if (a->data == NULL) {
            continue;
        }
        json_t *shape = json_array();
        for (int32_t d = 0; d < a->rank; d++) {
            json_array_append_new(shape, json_integer(a->shape[d]));
        }
        json_t *entry = json_pack("{ss so ss}", "dtype", fm_npy_type_name(a->type), "shape", shape, "file", file_of(r, i));
        if (json_object_set_new(results, fm_run_array_names[i], entry) != 0) {
            json_decref(results);
            return NULL;
        }
    }
    json_t *backward = r->backward.forward != NULL ? json_real(1e3 * r->backward_seconds) : json_null();
    return json_pack("{ss? sf so so}", "mask", fm_options_mask_name(r->options), "forward_ms", 1e3 * r->forward_seconds,
                     "backward_ms", backward, "results", results);
}

/* The report is made before files are written: if it cannot be made, nothing is left behind. */
static bool report_and_save(run *r) {
    json_t *json = NULL;
    drop_unwanted(r);
    if (r->options->json && (json = make_json(r)) == NULL) {
        return fm_cli_fail("--json: the name of the mask or of a file is not valid UTF-8");
    }
    if (!fm_run_arrays_save(r->options, r->arrays)) {
        json_decref(json);
        return false;
    }
    if (json != NULL) {
        return fm_json_print(json);
    }
    print_text(r);
    return true;
}

fm_exit fm_command_run(const fm_options *options) {
    run r = {.options = options, .forward = FM_ATTENTION_FORWARD_ARGS_INIT, .backward = FM_ATTENTION_BACKWARD_ARGS_INIT};
    const bool ok = fm_run_arrays_load(options, r.arrays) && run_forward(&r) && run_backward(&r) && report_and_save(&r);
    free(r.forward.workspace);
    free(r.backward.workspace);
    fm_run_arrays_free(r.arrays);
    fm_mask_free(r.mask);
    return ok ? FM_EXIT_OK : FM_EXIT_BAD;
}

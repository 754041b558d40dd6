#include "attention/arguments.h"

#include "core/tensor.h"

#include <math.h>

const char *fm_device_name(fm_device_kind kind) { return kind == FM_CPU ? "CPU" : kind == FM_CUDA ? "CUDA" : "unknown"; }

static fm_status check_device(const char *name, const fm_tensor *t, const fm_backend *backend) {
    FM_CHECK(t->device.kind == backend->device, FM_ERROR_DEVICE, "%s: is on device %s:%d, the %s backend needs %s memory", name,
             fm_device_name(t->device.kind), t->device.index, backend->name, fm_device_name(backend->device));
    FM_CHECK(t->device.kind == FM_CUDA || t->device.index == 0, FM_ERROR_DEVICE, "%s: device index is %d, needs 0 for the CPU",
             name, t->device.index);
    return FM_OK;
}

static fm_status check_input(const char *name, const fm_tensor *t, const fm_backend *backend) {
    FM_TRY(fm_tensor_check(name, t, false));
    return check_device(name, t, backend);
}

static fm_status check_same_device(const char *name, const fm_tensor *t, const fm_tensor *query) {
    FM_CHECK(t->device.index == query->device.index, FM_ERROR_DEVICE, "%s: is on device %s:%d, query is on %s:%d", name,
             fm_device_name(t->device.kind), t->device.index, fm_device_name(query->device.kind), query->device.index);
    return FM_OK;
}

/* of: whose shapes say so, with its verb. */
static fm_status check_shape(const char *name, const fm_tensor *t, const char *of, const int64_t needed[4]) {
    const int64_t *n = t->shape;
    FM_CHECK(n[0] == needed[0] && n[1] == needed[1] && n[2] == needed[2] && n[3] == needed[3], FM_ERROR_SHAPE,
             "%s: shape is [%lld, %lld, %lld, %lld], %s [%lld, %lld, %lld, %lld]", name, (long long)n[0], (long long)n[1],
             (long long)n[2], (long long)n[3], of, (long long)needed[0], (long long)needed[1], (long long)needed[2],
             (long long)needed[3]);
    return FM_OK;
}

static fm_status check_head_dim(const char *name, const fm_tensor *t, const fm_backend *backend) {
    FM_CHECK(t->shape[3] >= 1 && t->shape[3] <= FM_MOST_HEAD_DIM, FM_ERROR_SHAPE, "%s: head_dim is %lld, needs 1 .. %d", name,
             (long long)t->shape[3], FM_MOST_HEAD_DIM);
    FM_CHECK(backend->device == FM_CPU || t->shape[3] % 8 == 0, FM_ERROR_SHAPE,
             "%s: head_dim is %lld, the %s backend needs a multiple of 8", name, (long long)t->shape[3], backend->name);
    return FM_OK;
}

static fm_status check_dtype(const char *name, const fm_tensor *t, fm_dtype dtype) {
    FM_CHECK(t->dtype == dtype, FM_ERROR_DTYPE, "%s: dtype is %s, needs %s as the other tensors", name, fm_dtype_name(t->dtype),
             fm_dtype_name(dtype));
    return FM_OK;
}

static fm_status check_result(const char *name, const fm_tensor *t, const fm_tensor *like, const fm_backend *backend) {
    FM_TRY(fm_tensor_check(name, t, true));
    FM_TRY(check_device(name, t, backend));
    FM_TRY(check_same_device(name, t, like));
    FM_CHECK(t->dtype == like->dtype || t->dtype == FM_F32, FM_ERROR_DTYPE, "%s: dtype is %s, needs %s as query, or f32", name,
             fm_dtype_name(t->dtype), fm_dtype_name(like->dtype));
    return FM_OK;
}

/* NULL is fine. */
static fm_status check_floats(const char *name, const float *values) {
    FM_CHECK((uintptr_t)values % sizeof *values == 0, FM_ERROR_ARGUMENT, "%s: is not aligned to its %zu-byte elements", name,
             sizeof *values);
    return FM_OK;
}

static fm_status check_inputs(const fm_attention_forward_args *a, const fm_backend *backend) {
    const fm_tensor *q = &a->query, *k = &a->key, *v = &a->value;
    FM_TRY(check_input("query", q, backend));
    if (backend->check_device != NULL) {
        FM_TRY(backend->check_device(q->device));
    }
    FM_TRY(check_input("key", k, backend));
    FM_TRY(check_input("value", v, backend));
    FM_CHECK(q->dtype != FM_F64 || backend->takes_f64, FM_ERROR_DTYPE,
             "query: dtype is f64, which FM_BACKEND_REFERENCE alone accepts, not the %s backend", backend->name);
    FM_TRY(check_same_device("key", k, q));
    FM_TRY(check_same_device("value", v, q));
    FM_TRY(check_dtype("key", k, q->dtype));
    FM_TRY(check_dtype("value", v, q->dtype));
    FM_TRY(check_head_dim("query", q, backend));
    FM_TRY(check_head_dim("value", v, backend));
    const int64_t key[] = {q->shape[0], k->shape[1], k->shape[2], q->shape[3]};
    const int64_t value[] = {q->shape[0], k->shape[1], k->shape[2], v->shape[3]};
    FM_TRY(check_shape("key", k, "query needs", key));
    FM_TRY(check_shape("value", v, "query and key need", value));
    const int64_t heads = q->shape[2], heads_kv = k->shape[2];
    FM_CHECK(heads_kv > 0 ? heads % heads_kv == 0 : heads == 0, FM_ERROR_SHAPE,
             "key: has %lld heads, of which query's %lld is no multiple", (long long)heads_kv, (long long)heads);
    return FM_OK;
}

static fm_status check_numbers(const fm_attention_forward_args *a) {
    FM_CHECK(!isinf(a->softmax_scale), FM_ERROR_ARGUMENT, "softmax_scale: is infinite, needs a finite value, or NaN (1/sqrt(D))");
    FM_CHECK(isfinite(a->softcap) && a->softcap >= 0, FM_ERROR_ARGUMENT, "softcap: is %g, needs a finite value >= 0",
             (double)a->softcap);
    FM_CHECK(a->num_threads >= 0 && a->num_threads <= FM_MOST_THREADS, FM_ERROR_ARGUMENT, "num_threads: is %d, needs 0 .. %d",
             a->num_threads, FM_MOST_THREADS);
    FM_TRY(check_floats("sinks", a->sinks));
    return check_floats("lse", a->lse);
}

fm_status fm_forward_arguments(const fm_attention_forward_args *a, const fm_backend *backend, fm_problem *out) {
    const fm_tensor *q = &a->query;
    FM_TRY(check_inputs(a, backend));
    FM_TRY(check_result("output", &a->output, q, backend));
    const int64_t output[] = {q->shape[0], q->shape[1], q->shape[2], a->value.shape[3]};
    FM_TRY(check_shape("output", &a->output, "query and value need", output));
    FM_TRY(check_numbers(a));
    *out = (fm_problem){.batch = q->shape[0],
                        .rows = q->shape[1],
                        .columns = a->key.shape[1],
                        .heads = q->shape[2],
                        .heads_kv = a->key.shape[2],
                        .head_dim = q->shape[3],
                        .head_dim_v = a->value.shape[3],
                        .query = *q,
                        .key = a->key,
                        .value = a->value,
                        .output = a->output,
                        .lse = a->lse,
                        .scale = isnan(a->softmax_scale) ? (float)(1.0 / sqrt((double)q->shape[3])) : a->softmax_scale,
                        .softcap = a->softcap,
                        .sinks = a->sinks,
                        .no_skip = a->no_skip,
                        .asked = a->backend,
                        .num_threads = a->num_threads};
    return FM_OK;
}

/* A gradient tensor that is wanted has the shape and dtype of its input. */
static fm_status check_gradient(const char *name, const fm_tensor *gradient, const fm_tensor *of, const fm_backend *backend) {
    if (gradient->data == NULL) {
        return FM_OK;
    }
    FM_TRY(check_result(name, gradient, of, backend));
    return check_shape(name, gradient, "its tensor has", of->shape);
}

fm_status fm_backward_arguments(const fm_attention_backward_args *a, const fm_backend *backend, fm_backward_problem *out) {
    const fm_problem *p = &out->forward;
    FM_CHECK(p->lse != NULL || p->query.dtype == FM_F64, FM_ERROR_ARGUMENT,
             "forward->lse: is NULL, backward needs the lse of the forward call (only f64 tensors go without)");
    FM_TRY(check_input("grad_output", &a->grad_output, backend));
    FM_TRY(check_same_device("grad_output", &a->grad_output, &p->query));
    FM_TRY(check_dtype("grad_output", &a->grad_output, p->output.dtype));
    FM_TRY(check_shape("grad_output", &a->grad_output, "output has", p->output.shape));
    FM_TRY(check_gradient("grad_query", &a->grad_query, &p->query, backend));
    FM_TRY(check_gradient("grad_key", &a->grad_key, &p->key, backend));
    FM_TRY(check_gradient("grad_value", &a->grad_value, &p->value, backend));
    FM_TRY(check_floats("grad_lse", a->grad_lse));
    FM_TRY(check_floats("grad_sinks", a->grad_sinks));
    FM_CHECK(a->grad_sinks == NULL || p->sinks != NULL, FM_ERROR_ARGUMENT, "grad_sinks: is wanted, but forward->sinks is NULL");
    out->grad_output = a->grad_output;
    out->grad_lse = a->grad_lse;
    out->grad_query = a->grad_query;
    out->grad_key = a->grad_key;
    out->grad_value = a->grad_value;
    out->grad_sinks = a->grad_sinks;
    out->deterministic = a->deterministic;
    return FM_OK;
}

fm_status fm_mask_argument(const char *name, fm_mask_shape shape, const fm_problem *p) {
    FM_CHECK(shape.rows == p->rows, FM_ERROR_SHAPE, "%s has %lld rows, query has %lld", name, (long long)shape.rows,
             (long long)p->rows);
    FM_CHECK(shape.columns == p->columns, FM_ERROR_SHAPE, "%s has %lld columns, key has %lld", name, (long long)shape.columns,
             (long long)p->columns);
    FM_CHECK(shape.batch == 1 || shape.batch == p->batch, FM_ERROR_SHAPE, "%s has %lld batch items, needs 1 or query's %lld",
             name, (long long)shape.batch, (long long)p->batch);
    FM_CHECK(shape.heads == 1 || shape.heads == p->heads_kv || shape.heads == p->heads, FM_ERROR_SHAPE,
             "%s has %lld heads, needs 1, key's %lld or query's %lld", name, (long long)shape.heads, (long long)p->heads_kv,
             (long long)p->heads);
    return FM_OK;
}

fm_status fm_workspace_argument(void *workspace, size_t given, size_t needed, fm_problem *out) {
    FM_CHECK(needed == 0 || workspace != NULL, FM_ERROR_WORKSPACE, "workspace: is NULL, needs %zu bytes", needed);
    FM_CHECK(given >= needed, FM_ERROR_WORKSPACE, "workspace: workspace_bytes is %zu, needs %zu", given, needed);
    FM_CHECK(out->query.device.kind == FM_CPU || (uintptr_t)workspace % FM_DEVICE_ALIGNMENT == 0, FM_ERROR_ARGUMENT,
             "workspace: is not aligned to %d bytes", FM_DEVICE_ALIGNMENT);
    out->workspace = needed > 0 ? workspace : NULL;
    out->workspace_bytes = needed;
    return FM_OK;
}

/* Memory of one call; what has no data is left out. */
enum { MOST_REGIONS = 13 };
typedef struct region {
    const char *name;
    fm_tensor tensor;
    bool is_written;
} region;
typedef struct region_list {
    region items[MOST_REGIONS];
    int count;
} region_list;

static void add_tensor(region_list *list, const char *name, const fm_tensor *tensor, bool is_written) {
    if (tensor->data != NULL) {
        list->items[list->count++] = (region){name, *tensor, is_written};
    }
}

static void add_floats(region_list *list, const char *name, const float *values, int64_t count, bool is_written) {
    const fm_tensor tensor = fm_tensor_contiguous((void *)values, FM_F32, 1, 1, 1, count);
    add_tensor(list, name, &tensor, is_written);
}

static void add_forward(region_list *list, const fm_problem *p, bool is_written) {
    add_tensor(list, "query", &p->query, false);
    add_tensor(list, "key", &p->key, false);
    add_tensor(list, "value", &p->value, false);
    add_floats(list, "sinks", p->sinks, p->heads, false);
    add_tensor(list, "output", &p->output, is_written);
    add_floats(list, "lse", p->lse, p->batch * p->heads * p->rows, is_written);
    add_floats(list, "workspace", p->workspace, (int64_t)(p->workspace_bytes / sizeof(float)), true);
}

static fm_status check_apart(const region_list *list) {
    for (int i = 0; i < list->count; i++) {
        for (int k = 0; k < list->count; k++) {
            const region *a = &list->items[i], *b = &list->items[k];
            FM_CHECK(i == k || !a->is_written || !fm_tensor_overlap(&a->tensor, &b->tensor), FM_ERROR_ARGUMENT,
                     "%s: shares memory with %s; what a call writes must lie apart from all else", a->name, b->name);
        }
    }
    return FM_OK;
}

/* That a GPU may use every region; other memory is trusted. */
static fm_status check_memory(const region_list *list, const fm_backend *backend, fm_device device) {
    for (int i = 0; backend->check_memory != NULL && i < list->count; i++) {
        const region *r = &list->items[i];
        if (!fm_tensor_is_empty(&r->tensor)) {
            FM_TRY(backend->check_memory(r->name, r->tensor.data, device));
        }
    }
    return FM_OK;
}

fm_status fm_forward_overlaps(const fm_problem *p) {
    region_list list = {.count = 0};
    add_forward(&list, p, true);
    return check_apart(&list);
}

static void add_backward(region_list *list, const fm_backward_problem *bp) {
    const fm_problem *p = &bp->forward;
    add_forward(list, p, false);
    add_tensor(list, "grad_output", &bp->grad_output, false);
    add_floats(list, "grad_lse", bp->grad_lse, p->batch * p->heads * p->rows, false);
    add_tensor(list, "grad_query", &bp->grad_query, true);
    add_tensor(list, "grad_key", &bp->grad_key, true);
    add_tensor(list, "grad_value", &bp->grad_value, true);
    add_floats(list, "grad_sinks", bp->grad_sinks, p->heads, true);
}

fm_status fm_backward_overlaps(const fm_backward_problem *bp) {
    region_list list = {.count = 0};
    add_backward(&list, bp);
    return check_apart(&list);
}

fm_status fm_forward_memory(const fm_problem *p, const fm_backend *backend) {
    region_list list = {.count = 0};
    add_forward(&list, p, true);
    return check_memory(&list, backend, p->query.device);
}

fm_status fm_backward_memory(const fm_backward_problem *bp, const fm_backend *backend) {
    region_list list = {.count = 0};
    add_backward(&list, bp);
    return check_memory(&list, backend, bp->forward.query.device);
}

/* The dispatcher: checks a call, chooses its backend, makes what the caller left out, hands over one problem. */
#include "attention/arguments.h"
#include "attention/device_plan.h"

#include "core/tensor.h"

#include <flashmask/masks.h>

/* A call being set up. mask and plan of the problem come from the caller or from the two that the call owns. */
typedef struct call {
    const fm_attention_forward_args *args;
    const fm_backend *backend;
    const fm_mask *mask; /* the caller's or its plan's; NULL: none given */
    fm_mask *own_mask;
    fm_plan *own_plan;
} call;

static void release(call *c) {
    fm_plan_free(c->own_plan);
    fm_mask_free(c->own_mask);
}

static fm_status choose_backend(const fm_attention_forward_args *a, const fm_backend **out) {
    enum { BACKENDS = 3 };
    const fm_backend *const all[BACKENDS] = {&fm_backend_cpu, &fm_backend_cuda_sm80, &fm_backend_reference};
    for (int i = 0; i < BACKENDS; i++) { /* AUTO: the first of the device */
        if (a->backend == all[i]->id || (a->backend == FM_BACKEND_AUTO && a->query.device.kind == all[i]->device)) {
            *out = all[i];
            return FM_OK;
        }
    }
    FM_CHECK(a->backend == FM_BACKEND_AUTO, FM_ERROR_ARGUMENT,
             "backend: is %d, needs FM_BACKEND_AUTO, _REFERENCE, _CPU or _CUDA_SM80", (int)a->backend);
    fm_fail(FM_ERROR_DEVICE, "query: device kind is %d, needs FM_CPU or FM_CUDA", (int)a->query.device.kind);
    return FM_ERROR_DEVICE;
}

static bool is_on_gpu(const call *c) { return c->backend->device == FM_CUDA; }

static long long window_side(int64_t keys) { return keys >= FM_UNLIMITED ? -1 : (long long)keys; }

/* A plan must be on the call's device, with its backend's tiles. */
static fm_status check_plan_place(const call *c, const fm_plan *plan) {
    const fm_device device = is_on_gpu(c) ? c->args->query.device : (fm_device){FM_CPU, 0};
    FM_CHECK(plan->device.kind == device.kind && plan->device.index == device.index, FM_ERROR_DEVICE,
             "plan: is on %s:%d, the tensors are on %s:%d; %s", fm_device_name(plan->device.kind), plan->device.index,
             fm_device_name(device.kind), device.index,
             is_on_gpu(c) ? "make it by fm_plan_create_device or fm_plan_create_from_vectors" : "make it by fm_plan_create");
    FM_CHECK(!c->backend->uses_plan || (plan->block_m == FM_CPU_BLOCK_M && plan->block_n == FM_CPU_BLOCK_N), FM_ERROR_ARGUMENT,
             "plan: has tiles of %d x %d, the %s backend needs %d x %d", plan->block_m, plan->block_n, c->backend->name,
             FM_CPU_BLOCK_M, FM_CPU_BLOCK_N);
    return FM_OK;
}

/* A plan must be of the call's mask and flags; flags that the call leaves at their defaults are the plan's. */
static fm_status check_plan(const call *c, const fm_window *asked) {
    const fm_plan *plan = c->args->plan;
    FM_TRY(check_plan_place(c, plan));
    FM_CHECK(c->args->mask == NULL || plan->mask != NULL, FM_ERROR_ARGUMENT,
             "mask: is given beside a plan that keeps none (made from vectors, or attached); leave it NULL");
    FM_CHECK(c->args->mask == NULL || c->args->mask == plan->mask || fm_mask_equal(c->args->mask, plan->mask), FM_ERROR_ARGUMENT,
             "plan: was built from another mask than the call's");
    FM_CHECK(fm_window_is_unlimited(asked) || (asked->left == plan->window.left && asked->right == plan->window.right),
             FM_ERROR_ARGUMENT,
             "plan: was built with window (%lld, %lld), the call asks for (%lld, %lld); causal is right 0, -1 unlimited; "
             "set them in fm_plan_options when the plan is made, or leave the call's flags alone",
             window_side(plan->window.left), window_side(plan->window.right), window_side(asked->left),
             window_side(asked->right));
    return FM_OK;
}

static fm_status check_mask(call *c, fm_problem *p) {
    const fm_attention_forward_args *a = c->args;
    const fm_mask_shape shape = {.batch = 1, .heads = 1, .rows = p->rows, .columns = p->columns};
    FM_TRY(fm_window_make(a->causal, a->window_left, a->window_right, shape, &p->window));
    if (a->mask != NULL) {
        FM_TRY(fm_mask_argument("mask:", a->mask->view.shape, p));
    }
    if (a->plan != NULL) {
        FM_TRY(fm_mask_argument("plan: its mask", a->plan->shape, p));
        FM_TRY(check_plan(c, &p->window));
        p->window = a->plan->window;
    }
    c->mask = a->mask != NULL ? a->mask : a->plan != NULL ? a->plan->mask : NULL;
    return FM_OK;
}

/* All checks of a forward call but those of its workspace. */
static fm_status check_forward(const fm_attention_forward_args *a, const char *name, call *c, fm_problem *p) {
    FM_CHECK(a->size == sizeof *a, FM_ERROR_ARGUMENT, "%s->size: is %zu, needs %zu (start from FM_ATTENTION_FORWARD_ARGS_INIT)",
             name, a->size, sizeof *a);
    c->args = a;
    FM_TRY(choose_backend(a, &c->backend));
    FM_TRY(fm_forward_arguments(a, c->backend, p));
    FM_CHECK(a->stream == NULL || is_on_gpu(c), FM_ERROR_ARGUMENT, "stream: needs NULL on the CPU");
    p->stream = a->stream;
    return check_mask(c, p);
}

static fm_status check_backward(const fm_attention_backward_args *a, call *c, fm_backward_problem *bp) {
    FM_CHECK(a->size == sizeof *a, FM_ERROR_ARGUMENT,
             "args->size: is %zu, needs %zu (start from FM_ATTENTION_BACKWARD_ARGS_INIT)", a->size, sizeof *a);
    FM_CHECK(a->forward != NULL, FM_ERROR_ARGUMENT, "forward: is NULL, needs the arguments of the forward call");
    FM_TRY(check_forward(a->forward, "forward", c, &bp->forward));
    FM_CHECK(a->stream == NULL || is_on_gpu(c), FM_ERROR_ARGUMENT, "stream: needs NULL on the CPU");
    bp->forward.stream = a->stream;
    return fm_backward_arguments(a, c->backend, bp);
}

/* The options of a plan with the call's flags. */
static fm_plan_options plan_options(const call *c) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.backend = c->backend->id;
    options.causal = c->args->causal;
    options.window_left = c->args->window_left;
    options.window_right = c->args->window_right;
    options.fallback_blocks = is_on_gpu(c) && c->mask != NULL ? fm_device_plan_blocks(&c->mask->view) : 0;
    return options;
}

/* A device plan that the call makes has room for masks of the same shape with any intervals. */
static fm_mask_shape own_plan_shape(const call *c, const fm_problem *p) {
    return c->mask != NULL ? c->mask->view.shape : (fm_mask_shape){1, 1, p->rows, p->columns};
}

/* Bytes at the end of the workspace for the plan that the caller left out; 0 where there is none to make. */
static fm_status own_plan_bytes(const call *c, const fm_problem *p, size_t *bytes) {
    *bytes = 0;
    if (!is_on_gpu(c) || c->args->plan != NULL) {
        return FM_OK;
    }
    return fm_device_plan_bytes(own_plan_shape(c, p), FM_MAX_INTERVALS, plan_options(c).fallback_blocks, bytes);
}

static fm_status make_device_plan(call *c, const fm_problem *p) {
    const fm_plan_options options = plan_options(c);
    const int32_t intervals = c->mask != NULL ? c->mask->view.intervals : 1;
    void *buffer = (char *)p->workspace + p->workspace_bytes;
    FM_TRY(fm_device_plan_make(own_plan_shape(c, p), intervals, &options, c->args->query.device, c->mask, buffer, &c->own_plan));
    const fm_plan_source source = {.mask = c->mask != NULL ? &c->mask->view : NULL};
    return c->backend->build_plan(c->own_plan, &source, p->stream);
}

static fm_status make_host_plan(call *c, fm_problem *p) {
    if (c->mask == NULL) {
        FM_TRY(fm_mask_full(p->rows, p->columns, &c->own_mask));
        c->mask = c->own_mask;
    }
    p->mask = &c->mask->view;
    if (!c->backend->uses_plan || c->args->plan != NULL) {
        return FM_OK;
    }
    const fm_plan_options options = plan_options(c);
    return fm_plan_create(c->mask, &options, &c->own_plan);
}

/* Sets the problem's mask and plan, making those that the caller left out. */
static fm_status complete(call *c, fm_problem *p) {
    if (!is_on_gpu(c)) {
        FM_TRY(make_host_plan(c, p));
    } else if (c->args->plan == NULL) {
        FM_TRY(make_device_plan(c, p));
    }
    if (c->backend->uses_plan) {
        p->plan = c->args->plan != NULL ? c->args->plan : c->own_plan;
    }
    return FM_OK;
}

/* Bytes of the workspace: the backend's own, and with those of a plan behind them. */
static fm_status forward_bytes(const call *c, const fm_problem *p, size_t *own, size_t *all) {
    size_t plan;
    FM_TRY(own_plan_bytes(c, p, &plan));
    FM_TRY(c->backend->forward_workspace(p, own));
    *all = *own + plan;
    return FM_OK;
}

static fm_status backward_bytes(const call *c, const fm_backward_problem *bp, size_t *own, size_t *all) {
    size_t plan;
    FM_TRY(own_plan_bytes(c, &bp->forward, &plan));
    FM_TRY(c->backend->backward_workspace(bp, own));
    *all = *own + plan;
    return FM_OK;
}

fm_status fm_attention_forward_workspace(const fm_attention_forward_args *args, size_t *bytes) {
    call c = {0};
    fm_problem problem = {0};
    fm_clear_error();
    FM_REQUIRE(args);
    FM_REQUIRE(bytes);
    FM_TRY(check_forward(args, "args", &c, &problem));
    return forward_bytes(&c, &problem, &(size_t){0}, bytes);
}

fm_status fm_attention_backward_workspace(const fm_attention_backward_args *args, size_t *bytes) {
    call c = {0};
    fm_backward_problem problem = {0};
    fm_clear_error();
    FM_REQUIRE(args);
    FM_REQUIRE(bytes);
    FM_TRY(check_backward(args, &c, &problem));
    return backward_bytes(&c, &problem, &(size_t){0}, bytes);
}

fm_status fm_attention_forward(const fm_attention_forward_args *args) {
    call c = {0};
    fm_problem problem = {0};
    size_t own, all;
    fm_clear_error();
    FM_REQUIRE(args);
    FM_TRY(check_forward(args, "args", &c, &problem));
    FM_TRY(forward_bytes(&c, &problem, &own, &all));
    FM_TRY(fm_workspace_argument(args->workspace, args->workspace_bytes, all, &problem));
    FM_TRY(fm_forward_overlaps(&problem));
    FM_TRY(fm_forward_memory(&problem, c.backend));
    problem.workspace_bytes = own;
    if (fm_tensor_is_empty(&problem.output)) {
        return FM_OK;
    }
    fm_status status = complete(&c, &problem);
    if (status == FM_OK) {
        status = c.backend->forward(&problem);
    }
    release(&c);
    return status;
}

static void zero(const fm_tensor *t) {
    if (t->data == NULL || fm_tensor_is_empty(t)) {
        return;
    }
    for (int64_t b = 0; b < t->shape[0]; b++) {
        for (int64_t i = 0; i < t->shape[1]; i++) {
            for (int64_t hd = 0; hd < t->shape[2] * t->shape[3]; hd++) {
                fm_tensor_store(t, fm_tensor_offset(t, b, i, hd / t->shape[3], hd % t->shape[3]), 0.0);
            }
        }
    }
}

/* Without a row of output, no gradient has a term. */
static fm_status zero_gradients(const fm_backward_problem *bp, const fm_backend *backend) {
    if (backend->zero_gradients != NULL) {
        return backend->zero_gradients(bp);
    }
    zero(&bp->grad_query);
    zero(&bp->grad_key);
    zero(&bp->grad_value);
    for (int64_t h = 0; bp->grad_sinks != NULL && h < bp->forward.heads; h++) {
        bp->grad_sinks[h] = 0.0f;
    }
    return FM_OK;
}

fm_status fm_attention_backward(const fm_attention_backward_args *args) {
    call c = {0};
    fm_backward_problem problem = {0};
    size_t own, all;
    fm_clear_error();
    FM_REQUIRE(args);
    FM_TRY(check_backward(args, &c, &problem));
    FM_TRY(backward_bytes(&c, &problem, &own, &all));
    FM_TRY(fm_workspace_argument(args->workspace, args->workspace_bytes, all, &problem.forward));
    FM_TRY(fm_backward_overlaps(&problem));
    FM_TRY(fm_backward_memory(&problem, c.backend));
    problem.forward.workspace_bytes = own;
    if (problem.grad_query.data == NULL && problem.grad_key.data == NULL && problem.grad_value.data == NULL &&
        problem.grad_sinks == NULL) {
        return FM_OK;
    }
    if (fm_tensor_is_empty(&problem.forward.output)) {
        return zero_gradients(&problem, c.backend);
    }
    fm_status status = complete(&c, &problem.forward);
    if (status == FM_OK) {
        status = c.backend->backward(&problem);
    }
    release(&c);
    return status;
}

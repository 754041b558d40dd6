/* The dispatcher: checks a call, chooses its backend, makes what the caller left out, hands over one problem. */
#include "attention/arguments.h"

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
    *out = a->backend == FM_BACKEND_REFERENCE ? &fm_backend_reference : &fm_backend_cpu;
    FM_CHECK(a->query.device.kind != FM_CUDA, FM_ERROR_UNSUPPORTED, "query: is on CUDA device %d, this build has no CUDA backend",
             a->query.device.index);
    FM_CHECK(a->backend == FM_BACKEND_AUTO || a->backend == (*out)->id, FM_ERROR_ARGUMENT,
             "backend: is %d, needs FM_BACKEND_AUTO, _REFERENCE or _CPU", (int)a->backend);
    return FM_OK;
}

static long long window_side(int64_t keys) { return keys >= FM_UNLIMITED ? -1 : (long long)keys; }

/* A plan must be of the call's mask and flags; flags that the call leaves at their defaults are the plan's. */
static fm_status check_plan(const call *c, const fm_window *asked) {
    const fm_plan *plan = c->args->plan;
    FM_CHECK(c->args->mask == NULL || c->args->mask == plan->mask || fm_mask_equal(c->args->mask, plan->mask), FM_ERROR_ARGUMENT,
             "plan: was built from another mask than the call's");
    FM_CHECK(fm_window_is_unlimited(asked) || (asked->left == plan->window.left && asked->right == plan->window.right),
             FM_ERROR_ARGUMENT,
             "plan: was built with window (%lld, %lld), the call asks for (%lld, %lld); causal is right 0, -1 unlimited",
             window_side(plan->window.left), window_side(plan->window.right), window_side(asked->left),
             window_side(asked->right));
    FM_CHECK(!c->backend->uses_plan || (plan->block_m == FM_CPU_BLOCK_M && plan->block_n == FM_CPU_BLOCK_N), FM_ERROR_ARGUMENT,
             "plan: has tiles of %d x %d, the %s backend needs %d x %d", plan->block_m, plan->block_n, c->backend->name,
             FM_CPU_BLOCK_M, FM_CPU_BLOCK_N);
    return FM_OK;
}

static fm_status check_mask(call *c, fm_problem *p) {
    const fm_attention_forward_args *a = c->args;
    const fm_mask_shape shape = {.batch = 1, .heads = 1, .rows = p->rows, .columns = p->columns};
    FM_TRY(fm_window_make(a->causal, a->window_left, a->window_right, shape, &p->window));
    if (a->mask != NULL) {
        FM_TRY(fm_mask_argument("mask:", a->mask, p));
    }
    if (a->plan != NULL) {
        FM_TRY(fm_mask_argument("plan: its mask", a->plan->mask, p));
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
    FM_CHECK(a->stream == NULL, FM_ERROR_ARGUMENT, "stream: needs NULL on the CPU");
    return check_mask(c, p);
}

static fm_status check_backward(const fm_attention_backward_args *a, call *c, fm_backward_problem *bp) {
    FM_CHECK(a->size == sizeof *a, FM_ERROR_ARGUMENT,
             "args->size: is %zu, needs %zu (start from FM_ATTENTION_BACKWARD_ARGS_INIT)", a->size, sizeof *a);
    FM_CHECK(a->forward != NULL, FM_ERROR_ARGUMENT, "forward: is NULL, needs the arguments of the forward call");
    FM_TRY(check_forward(a->forward, "forward", c, &bp->forward));
    FM_CHECK(a->stream == NULL, FM_ERROR_ARGUMENT, "stream: needs NULL on the CPU");
    return fm_backward_arguments(a, c->backend, bp);
}

/* Sets the problem's mask and plan, making those that the caller left out. */
static fm_status complete(call *c, fm_problem *p) {
    const fm_attention_forward_args *a = c->args;
    if (c->mask == NULL) {
        FM_TRY(fm_mask_full(p->rows, p->columns, &c->own_mask));
        c->mask = c->own_mask;
    }
    p->mask = &c->mask->view;
    if (!c->backend->uses_plan) {
        return FM_OK;
    }
    if (a->plan == NULL) {
        fm_plan_options options = FM_PLAN_OPTIONS_INIT;
        options.backend = c->backend->id;
        options.causal = a->causal;
        options.window_left = a->window_left;
        options.window_right = a->window_right;
        FM_TRY(fm_plan_create(c->mask, &options, &c->own_plan));
    }
    p->plan = a->plan != NULL ? a->plan : c->own_plan;
    return FM_OK;
}

fm_status fm_attention_forward_workspace(const fm_attention_forward_args *args, size_t *bytes) {
    call c = {0};
    fm_problem problem = {0};
    fm_clear_error();
    FM_REQUIRE(args);
    FM_REQUIRE(bytes);
    FM_TRY(check_forward(args, "args", &c, &problem));
    return c.backend->forward_workspace(&problem, bytes);
}

fm_status fm_attention_backward_workspace(const fm_attention_backward_args *args, size_t *bytes) {
    call c = {0};
    fm_backward_problem problem = {0};
    fm_clear_error();
    FM_REQUIRE(args);
    FM_REQUIRE(bytes);
    FM_TRY(check_backward(args, &c, &problem));
    return c.backend->backward_workspace(&problem, bytes);
}

fm_status fm_attention_forward(const fm_attention_forward_args *args) {
    call c = {0};
    fm_problem problem = {0};
    size_t needed;
    fm_clear_error();
    FM_REQUIRE(args);
    FM_TRY(check_forward(args, "args", &c, &problem));
    FM_TRY(c.backend->forward_workspace(&problem, &needed));
    FM_TRY(fm_workspace_argument(args->workspace, args->workspace_bytes, needed, &problem));
    FM_TRY(fm_forward_overlaps(&problem));
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
static void zero_gradients(const fm_backward_problem *bp) {
    zero(&bp->grad_query);
    zero(&bp->grad_key);
    zero(&bp->grad_value);
    for (int64_t h = 0; bp->grad_sinks != NULL && h < bp->forward.heads; h++) {
        bp->grad_sinks[h] = 0.0f;
    }
}

fm_status fm_attention_backward(const fm_attention_backward_args *args) {
    call c = {0};
    fm_backward_problem problem = {0};
    size_t needed;
    fm_clear_error();
    FM_REQUIRE(args);
    FM_TRY(check_backward(args, &c, &problem));
    FM_TRY(c.backend->backward_workspace(&problem, &needed));
    FM_TRY(fm_workspace_argument(args->workspace, args->workspace_bytes, needed, &problem.forward));
    FM_TRY(fm_backward_overlaps(&problem));
    if (problem.grad_query.data == NULL && problem.grad_key.data == NULL && problem.grad_value.data == NULL &&
        problem.grad_sinks == NULL) {
        return FM_OK;
    }
    if (fm_tensor_is_empty(&problem.forward.output)) {
        zero_gradients(&problem);
        return FM_OK;
    }
    fm_status status = complete(&c, &problem.forward);
    if (status == FM_OK) {
        status = c.backend->backward(&problem);
    }
    release(&c);
    return status;
}

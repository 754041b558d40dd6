/* The CUDA backend for GPUs of compute capability 8.0 and later: workspace layout, choice of kernel, launches. */
#include "cuda/device.h"
#include "cuda/launch.h"
#include "cuda/sm90/launch.h"
#include "cuda/variants.h"

#include <stdlib.h>

enum {
    /* K and V of the heads that run side by side stay in L2 beside all else. */
    BYTES_TOGETHER = 8 << 20,
    /* Shared memory of a block that the backward kernels for head dims above 64 may take (163 KB: compute capability 8.0, 9.0 and
     * 10.0 have it); GPUs with less (8.6, 8.9, 12.0: 99 KB) run the compact ones. */
    LARGE_SHARED_BYTES = 163 << 10
};

typedef struct variant {
    int32_t head_dim;
    int (*forward[2])(const fm_cuda_problem *, void *); /* f16, bf16 */
    int (*backward[2])(const fm_cuda_backward_problem *, void *);
    int (*backward_compact[2])(const fm_cuda_backward_problem *, void *);
    int (*grad_query[2])(const fm_cuda_backward_problem *, void *);
} variant;

#define FM_VARIANT_PAIR(name, dim) \
    { name##_f16_##dim, name##_bf16_##dim }
#define FM_VARIANT_ROW(dim, compact)                                                                                    \
    {dim, FM_VARIANT_PAIR(fm_sm80_forward, dim), FM_VARIANT_PAIR(fm_sm80_backward, dim), FM_VARIANT_PAIR(compact, dim), \
     FM_VARIANT_PAIR(fm_sm80_grad_query, dim)},
static const variant variants[] = {FM_HEAD_DIM_LIST(FM_VARIANT_ROW)};

enum { VARIANTS = sizeof variants / sizeof *variants };

static fm_status find_variant(const fm_problem *p, const variant **out) {
    const int64_t needed = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    for (int i = 0; i < VARIANTS; i++) {
        if (variants[i].head_dim >= needed) {
            *out = &variants[i];
            return FM_OK;
        }
    }
    fm_fail(FM_ERROR_UNSUPPORTED, "query: head_dim (of query or value) is %lld, this build has kernels up to %d (FM_HEAD_DIMS)",
            (long long)needed, variants[VARIANTS - 1].head_dim);
    return FM_ERROR_UNSUPPORTED;
}

static int half_of(const fm_problem *p) { return p->query.dtype == FM_BF16; }

static bool in_chunks(const fm_tensor *t) {
    const int64_t elements = 16 / (int64_t)fm_dtype_size(t->dtype);
    bool whole = (uintptr_t)t->data % 16 == 0 && (t->stride[3] == 1 || t->shape[3] == 1);
    for (int i = 0; i < 3; i++) {
        whole = whole && (t->shape[i] <= 1 || t->stride[i] % elements == 0);
    }
    return whole;
}

/* Strides of single elements may be anything and count as 0: kernels also form, without reading there, addresses past the end, which
 * must keep their alignment. */
static fm_cuda_tensor tensor_of(const fm_tensor *t) {
    fm_cuda_tensor tensor = {.data = t->data, .in_chunks = t->data != NULL && in_chunks(t)};
    for (int i = 0; i < 4; i++) {
        tensor.stride[i] = t->shape[i] > 1 ? t->stride[i] : 0;
    }
    return tensor;
}

static int32_t heads_together(const fm_problem *p) {
    const int64_t bytes = p->columns * (p->head_dim + p->head_dim_v) * (int64_t)fm_dtype_size(p->query.dtype);
    const int64_t heads = fm_clamp(BYTES_TOGETHER / (bytes > 0 ? bytes : 1), 1, p->heads_kv);
    return (int32_t)(heads * (p->heads / p->heads_kv));
}

/* Blocks of every launch: none has more than the larger of two for a group of rows or keys and one for 16 rows. So it is for row terms,
 * which take two for a tile of 64 rows, whole or not. */
static fm_status check_extents(const fm_problem *p) {
    const int64_t groups = fm_ceil_divide(p->rows > p->columns ? p->rows : p->columns, FM_PLAN_GROUP);
    const int64_t row_blocks = fm_ceil_divide(p->rows, FM_CUDA_ROW_BLOCK);
    const int64_t blocks = row_blocks > 2 * groups ? row_blocks : 2 * groups;
    FM_CHECK(p->batch * p->heads <= INT32_MAX / (blocks > 0 ? blocks : 1), FM_ERROR_LIMIT,
             "query: %lld batch items x %lld heads x %lld blocks of rows or keys pass 2^31 - 1", (long long)p->batch,
             (long long)p->heads, (long long)blocks);
    return FM_OK;
}

static fm_cuda_problem cuda_problem(const fm_problem *p) {
    return (fm_cuda_problem){.plan = p->plan->on_device,
                             .query = tensor_of(&p->query),
                             .key = tensor_of(&p->key),
                             .value = tensor_of(&p->value),
                             .output = tensor_of(&p->output),
                             .lse = p->lse,
                             .sinks = p->sinks,
                             .batch = (int32_t)p->batch,
                             .rows = (int32_t)p->rows,
                             .columns = (int32_t)p->columns,
                             .heads = (int32_t)p->heads,
                             .heads_kv = (int32_t)p->heads_kv,
                             .head_dim = (int32_t)p->head_dim,
                             .head_dim_v = (int32_t)p->head_dim_v,
                             .heads_together = heads_together(p),
                             .scale = p->scale,
                             .softcap = p->softcap,
                             .no_skip = p->no_skip,
                             .output_is_f32 = p->output.dtype == FM_F32};
}

/* FLASHMASK_CUDA_COMPACT=1 in the environment: for tests of the compact kernels on GPUs that do not need them. */
static bool is_compact_asked(void) {
    const char *compact = getenv("FLASHMASK_CUDA_COMPACT");
    return compact != NULL && compact[0] == '1';
}

/* Calls that name FM_BACKEND_CUDA_SM80 get its kernels. */
static bool may_take_sm90(const fm_problem *p) {
    return p->asked == FM_BACKEND_AUTO && p->query.dtype != FM_F32 && !is_compact_asked();
}

static fm_status forward_workspace(const fm_problem *p, size_t *bytes) {
    FM_TRY(check_extents(p));
    const fm_sm90_extents extents = {p->batch, p->rows, p->columns, p->heads, p->head_dim_v};
    *bytes = may_take_sm90(p) ? fm_sm90_forward_workspace(&extents) : 0;
    return FM_OK;
}

static int launch_forward(const fm_problem *p, const variant *v) {
    const fm_cuda_problem problem = cuda_problem(p);
    const fm_sm90_place place = {p->query.device.index, p->workspace, p->stream};
    int error;
    if (may_take_sm90(p) && fm_sm90_forward(&problem, p->query.dtype, &place, &error)) {
        return error;
    }
    return v == NULL ? fm_sm80_forward_f32(&problem, p->stream) : v->forward[half_of(p)](&problem, p->stream);
}

static fm_status forward(const fm_problem *p) {
    const variant *v = NULL;
    int previous, error;
    if (p->query.dtype != FM_F32) {
        FM_TRY(find_variant(p, &v));
    }
    FM_TRY(fm_cuda_enter_device(p->query.device.index, &previous));
    error = launch_forward(p, v);
    fm_cuda_leave_device(p->query.device.index, previous);
    CUDA_TRY("forward", error);
    return FM_OK;
}

/* The arrays of backward's workspace, one after another. f32 queries sum dQ in registers, and so do deterministic calls where the build
 * has no kernel with turns. */
typedef struct backward_layout {
    size_t row_terms, grad_query_sum, counter, total; /* counter: where it lies, and the turns behind it */
} backward_layout;

static size_t aligned(int64_t floats) {
    const size_t bytes = (size_t)floats * sizeof(float);
    return (bytes + FM_DEVICE_ALIGNMENT - 1) / FM_DEVICE_ALIGNMENT * FM_DEVICE_ALIGNMENT;
}

static backward_layout layout_of(const fm_backward_problem *bp) {
    const fm_problem *p = &bp->forward;
    /* whole tiles, as the Hopper kernel wants them */
    const int64_t rows = p->batch * p->heads * fm_ceil_divide(p->rows, FM_PLAN_BLOCK) * FM_PLAN_BLOCK;
    backward_layout layout = {.row_terms = aligned(rows)};
    const bool has_turns = may_take_sm90(p) && fm_sm90_has_backward(p->head_dim, p->head_dim_v);
    layout.grad_query_sum = p->query.dtype == FM_F32 || (bp->deterministic && !has_turns) ? 0 : aligned(rows * p->head_dim);
    layout.counter = 2 * layout.row_terms + layout.grad_query_sum;
    layout.total = layout.counter + (has_turns ? FM_SM90_COUNTER_BYTES + aligned(rows / FM_PLAN_BLOCK) : 0);
    return layout;
}

static fm_status backward_workspace(const fm_backward_problem *bp, size_t *bytes) {
    FM_TRY(check_extents(&bp->forward));
    *bytes = layout_of(bp).total;
    return FM_OK;
}

static fm_cuda_backward_problem cuda_backward_problem(const fm_backward_problem *bp) {
    const backward_layout layout = layout_of(bp);
    char *workspace = bp->forward.workspace;
    const bool sums = layout.grad_query_sum > 0 && bp->grad_query.data != NULL;
    return (fm_cuda_backward_problem){.forward = cuda_problem(&bp->forward),
                                      .grad_output = tensor_of(&bp->grad_output),
                                      .grad_lse = bp->grad_lse,
                                      .grad_query = tensor_of(&bp->grad_query),
                                      .grad_key = tensor_of(&bp->grad_key),
                                      .grad_value = tensor_of(&bp->grad_value),
                                      .grad_query_is_f32 = bp->grad_query.dtype == FM_F32,
                                      .grad_key_is_f32 = bp->grad_key.dtype == FM_F32,
                                      .grad_value_is_f32 = bp->grad_value.dtype == FM_F32,
                                      .grad_sinks = bp->grad_sinks,
                                      .deterministic = bp->deterministic,
                                      .terms_stride = bp->forward.rows,
                                      .lse2 = (float *)workspace,
                                      .delta = (float *)(workspace + layout.row_terms),
                                      .grad_query_sum = sums ? (float *)(workspace + 2 * layout.row_terms) : NULL,
                                      .sum_head = bp->forward.rows * bp->forward.head_dim,
                                      .sum_slab = (int64_t)FM_CUDA_ROW_BLOCK * 8,
                                      .sum_chunk = bp->forward.rows * 8};
}

/* True where blocks may take LARGE_SHARED_BYTES. */
static bool has_large_shared(int32_t index) {
    int bytes = 0;
    (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
    return bytes >= LARGE_SHARED_BYTES && !is_compact_asked();
}

static bool wants_key_value(const fm_backward_problem *bp) { return bp->grad_key.data != NULL || bp->grad_value.data != NULL; }

/* call NULL: by the kernels for every GPU. */
static fm_status launch_half(const fm_backward_problem *bp, const fm_cuda_backward_problem *problem,
                             const fm_sm90_backward_call *call) {
    const fm_problem *p = &bp->forward;
    const variant *v;
    FM_TRY(find_variant(p, &v));
    const int half = half_of(p);
    if (call != NULL) {
        CUDA_TRY("backward", fm_sm90_backward(call));
    } else if (wants_key_value(bp) || problem->grad_query_sum != NULL) {
        CUDA_TRY("backward", has_large_shared(p->query.device.index) ? v->backward[half](problem, p->stream)
                                                                     : v->backward_compact[half](problem, p->stream));
    }
    if (problem->grad_query_sum != NULL) {
        CUDA_TRY("backward, dQ", fm_cuda_finish_grad_query(problem, p->query.dtype, p->stream));
    } else if (bp->grad_query.data != NULL) {
        CUDA_TRY("backward, dQ", v->grad_query[half](problem, p->stream));
    }
    return FM_OK;
}

static fm_status launch_backward(const fm_backward_problem *bp) {
    const fm_problem *p = &bp->forward;
    fm_cuda_backward_problem problem = cuda_backward_problem(bp);
    fm_sm90_backward_call call;
    bool takes_sm90 = false;
    if (!wants_key_value(bp) && (bp->grad_query.data == NULL || !bp->deterministic)) {
        problem.grad_query_sum = NULL; /* dQ alone is cheaper along rows, but its sums have another order */
    } else if (may_take_sm90(p)) {
        const fm_sm90_place place = {p->query.device.index, (char *)p->workspace + layout_of(bp).counter, p->stream};
        takes_sm90 = fm_sm90_prepare_backward(&problem, p->query.dtype, &place, &call);
    }
    if (bp->deterministic && !takes_sm90) {
        problem.grad_query_sum = NULL; /* by a kernel that walks along rows */
    }
    CUDA_TRY("backward, row terms", fm_cuda_row_terms(&problem, p->query.dtype, p->stream));
    if (p->query.dtype == FM_F32) {
        CUDA_TRY("backward", fm_sm80_backward_f32(&problem, p->stream));
    } else {
        FM_TRY(launch_half(bp, &problem, takes_sm90 ? &call : NULL));
    }
    if (bp->grad_sinks != NULL) {
        CUDA_TRY("backward, sinks", fm_cuda_grad_sinks(&problem, p->stream));
    }
    return FM_OK;
}

/* With the problem's device current. */
static fm_status run_on_device(const fm_backward_problem *bp, fm_status (*run)(const fm_backward_problem *)) {
    const int32_t index = bp->forward.query.device.index;
    int previous;
    FM_TRY(fm_cuda_enter_device(index, &previous));
    const fm_status status = run(bp);
    fm_cuda_leave_device(index, previous);
    return status;
}

static fm_status backward(const fm_backward_problem *bp) { return run_on_device(bp, launch_backward); }

static fm_status zero_all(const fm_backward_problem *bp) {
    const fm_tensor *const all[] = {&bp->grad_query, &bp->grad_key, &bp->grad_value};
    void *stream = bp->forward.stream;
    for (int i = 0; i < 3; i++) {
        const fm_cuda_tensor t = tensor_of(all[i]);
        if (t.data != NULL) {
            CUDA_TRY("zeroing", fm_cuda_zero(&t, all[i]->shape, all[i]->dtype, stream));
        }
    }
    if (bp->grad_sinks != NULL && bp->forward.heads > 0) {
        CUDA_TRY("zeroing", cudaMemsetAsync(bp->grad_sinks, 0, (size_t)bp->forward.heads * sizeof(float), (cudaStream_t)stream));
    }
    return FM_OK;
}

static fm_status zero_gradients(const fm_backward_problem *bp) { return run_on_device(bp, zero_all); }

const fm_backend fm_backend_cuda_sm80 = {.id = FM_BACKEND_CUDA_SM80,
                                         .name = "CUDA",
                                         .device = FM_CUDA,
                                         .uses_plan = true,
                                         .forward_workspace = forward_workspace,
                                         .backward_workspace = backward_workspace,
                                         .forward = forward,
                                         .backward = backward,
                                         .zero_gradients = zero_gradients,
                                         .check_device = fm_cuda_check_device,
                                         .check_memory = fm_cuda_check_memory,
                                         .build_plan = fm_cuda_build_plan};

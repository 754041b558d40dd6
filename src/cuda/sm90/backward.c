/* Host side of the backward kernel of sm_90a: which calls it takes, its tensor maps, its workspace and its launch. */
#include "cuda/sm90/launch.h"
#include "cuda/variants.h"

#include <cuda_runtime_api.h>

typedef int (*kernel)(const fm_sm90_backward_call *call);

/* NULL: none in this build, or head dims that fill the bucket at most by half, which are left to the kernels for every GPU. */
static kernel find_kernel(int64_t head_dim, int64_t head_dim_v, fm_dtype dtype) {
    const int64_t needed = head_dim > head_dim_v ? head_dim : head_dim_v;
    (void)needed;
#define FIND(dim)                                                                           \
    if (needed > (dim) / 2 && needed <= (dim)) {                                            \
        return dtype == FM_BF16 ? fm_sm90_backward_bf16_##dim : fm_sm90_backward_f16_##dim; \
    }
    FM_SM90_BACKWARD_HEAD_DIM_LIST(FIND)
#undef FIND
    (void)dtype;
    return NULL;
}

bool fm_sm90_has_backward(int64_t head_dim, int64_t head_dim_v) { return find_kernel(head_dim, head_dim_v, FM_BF16) != NULL; }

bool fm_sm90_prepare_backward(fm_cuda_backward_problem *problem, fm_dtype dtype, const fm_sm90_place *place,
                              fm_sm90_backward_call *call) {
    const fm_cuda_problem *p = &problem->forward;
    *call = (fm_sm90_backward_call){
        .problem = problem, .kernel = find_kernel(p->head_dim, p->head_dim_v, dtype), .stream = place->stream};
    if (call->kernel == NULL || !fm_sm90_runs_on(place->device) || p->output_is_f32 ||
        !fm_sm90_make_backward_maps(problem, dtype, &call->maps)) {
        return false;
    }
    if (cudaDeviceGetAttribute(&call->processors, cudaDevAttrMultiProcessorCount, place->device) != cudaSuccess) {
        (void)cudaGetLastError();
        return false; /* a launch of no blocks would write nothing */
    }
    problem->terms_stride = (int64_t)p->plan.row_lines.lines * FM_PLAN_BLOCK;
    problem->sum_head = problem->terms_stride * p->head_dim;
    problem->sum_slab = (int64_t)FM_CUDA_ROW_BLOCK * p->head_dim;
    problem->sum_chunk = (int64_t)FM_CUDA_ROW_BLOCK * 8;
    problem->counter = place->workspace;
    if (problem->deterministic || p->heads == p->heads_kv) {
        problem->turns = (uint32_t *)((char *)place->workspace + FM_SM90_COUNTER_BYTES);
    }
    return true;
}

int fm_sm90_backward(const fm_sm90_backward_call *call) { return call->kernel(call); }

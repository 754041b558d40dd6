/* Host side of the forward kernel of sm_90a: which calls it takes, its tensor maps and its launch. */
#include "cuda/sm90/launch.h"
#include "cuda/variants.h"

#include <cuda_runtime_api.h>

/* Steps are numbered in 24 bits. */
static const int64_t MOST_COLUMNS = INT64_C(1) << 30;

typedef int (*kernel)(const fm_sm90_call *call);

/* Of the smallest bucket that holds both head dims; NULL: none in this build. */
static kernel find_kernel(const fm_cuda_problem *p, fm_dtype dtype) {
    const int32_t needed = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
#define FIND(dim)                                                                         \
    if (needed <= (dim)) {                                                                \
        return dtype == FM_BF16 ? fm_sm90_forward_bf16_##dim : fm_sm90_forward_f16_##dim; \
    }
    FM_SM90_HEAD_DIM_LIST(FIND)
#undef FIND
    (void)dtype;
    return NULL;
}

bool fm_sm90_runs_on(int32_t device) {
    int major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return major == 9 && minor == 0; /* code for sm_90a runs nowhere else */
}

bool fm_sm90_forward(const fm_cuda_problem *problem, fm_dtype dtype, const fm_sm90_place *place, int *error) {
    fm_sm90_maps maps;
    const kernel launch = find_kernel(problem, dtype);
    if (launch == NULL || !fm_sm90_runs_on(place->device) || problem->columns >= MOST_COLUMNS || !problem->output.in_chunks ||
        !fm_sm90_make_maps(problem, dtype, &maps)) {
        return false;
    }
    fm_sm90_call call = {problem, &maps, place->workspace, 0, place->stream};
    *error = (int)cudaDeviceGetAttribute(&call.processors, cudaDevAttrMultiProcessorCount, place->device);
    if (*error == cudaSuccess) {
        *error = launch(&call);
    }
    return true;
}

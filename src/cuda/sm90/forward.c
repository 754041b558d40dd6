/* Host side of the forward kernel of sm_90a: which calls it takes, its tensor maps and its launch. */
#include "core/integers.h"
#include "cuda/sm90/launch.h"
#include "cuda/variants.h"

#include <cuda_runtime_api.h>

/* Steps are numbered in 24 bits. */
static const int64_t MOST_COLUMNS = INT64_C(1) << 30;

enum {
    /* What fills a GPU of compute capability 9.0. Not a question to the device, so that results do not depend on it. */
    FULL_BLOCKS = 132,
    /* The second launch and the f32 sums cost about as much as ten steps of 128 keys. */
    LEAST_SPLIT_COLUMNS = 2048,
    LEAST_COLUMNS = 512
};

/* Items among which the keys of a group of rows are split. Batch items do not count, so that none depends on how many there are. */
static int64_t count_splits(const fm_sm90_extents *x) {
    const int64_t items = x->heads * fm_ceil_divide(x->rows, FM_PLAN_GROUP);
    if (x->columns < LEAST_SPLIT_COLUMNS || items == 0 || x->batch > INT32_MAX / FULL_BLOCKS) {
        return 1;
    }
    const int64_t most = x->columns / LEAST_COLUMNS;
    return fm_clamp(FULL_BLOCKS / items, 1, most < FM_SM90_MOST_SPLITS ? most : FM_SM90_MOST_SPLITS);
}

/* The workspace: the counter, then the splits' arrays, each of them aligned. Returns its bytes; workspace NULL: no more than that. */
static size_t lay_out(const fm_sm90_extents *x, char *workspace, fm_sm90_splits *splits) {
    const int64_t count = count_splits(x), rows = count > 1 ? count * x->batch * x->heads * x->rows : 0;
    const size_t row_bytes = (size_t)fm_ceil_divide(rows * 4, FM_DEVICE_ALIGNMENT) * FM_DEVICE_ALIGNMENT;
    *splits = (fm_sm90_splits){.count = (int32_t)count};
    if (workspace != NULL && count > 1) {
        splits->base = (float *)(workspace + FM_DEVICE_ALIGNMENT);
        splits->l = (float *)(workspace + FM_DEVICE_ALIGNMENT + row_bytes);
        splits->output = (float *)(workspace + FM_DEVICE_ALIGNMENT + 2 * row_bytes);
    }
    return FM_DEVICE_ALIGNMENT + 2 * row_bytes + (size_t)(rows * x->head_dim_v) * sizeof(float);
}

size_t fm_sm90_forward_workspace(const fm_sm90_extents *extents) {
    fm_sm90_splits splits;
    return lay_out(extents, NULL, &splits);
}

typedef int (*kernel)(const fm_sm90_call *call);

/* Of the smallest bucket that holds both head dims; NULL: none in this build. */
static kernel find_kernel(const fm_cuda_problem *p, fm_dtype dtype) {
    const int32_t needed = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    (void)needed; /* a build without code for sm_90a lists none */
#define FIND(dim)                                                                         \
    if (needed <= (dim)) {                                                                \
        return dtype == FM_BF16 ? fm_sm90_forward_bf16_##dim : fm_sm90_forward_f16_##dim; \
    }
#define FIND_V128(dim)                                                                              \
    if (p->head_dim > 128 && p->head_dim <= (dim) && p->head_dim_v <= 128) {                        \
        return dtype == FM_BF16 ? fm_sm90_forward_v128_bf16_##dim : fm_sm90_forward_v128_f16_##dim; \
    }
    FM_SM90_V128_HEAD_DIM_LIST(FIND_V128)
    FM_SM90_HEAD_DIM_LIST(FIND)
#undef FIND
#undef FIND_V128
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
    fm_sm90_call call = {.problem = problem, .maps = &maps, .counter = place->workspace, .stream = place->stream};
    const fm_sm90_extents extents = {problem->batch, problem->rows, problem->columns, problem->heads, problem->head_dim_v};
    (void)lay_out(&extents, place->workspace, &call.splits);
    *error = (int)cudaDeviceGetAttribute(&call.processors, cudaDevAttrMultiProcessorCount, place->device);
    if (*error == cudaSuccess) {
        *error = launch(&call);
    }
    return true;
}

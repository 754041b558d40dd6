/* What the host side of sm90/ hands to its kernels. */
#ifndef FM_CUDA_SM90_LAUNCH_H
#define FM_CUDA_SM90_LAUNCH_H

#include "cuda/launch.h"

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of 64 dims of query, key and value; kernels get them by value. */
typedef struct fm_sm90_maps {
    CUtensorMap query, key, value;
} fm_sm90_maps;

/* Rows (keys) and dims of the box of each map. */
enum { FM_SM90_BOX = 64 };

/* Of calls with few rows beside long keys: these are split among `count` items, which leave sums relative to a base of their own
 * (tile/softmax.cuh). count 1: not split. */
enum { FM_SM90_MOST_SPLITS = 128 };
typedef struct fm_sm90_splits {
    int32_t count;
    float *output;   /* [count, B, Hq, Sq, Dv] */
    float *base, *l; /* [count, B, Hq, Sq] */
} fm_sm90_splits;

typedef struct fm_sm90_call {
    const fm_cuda_problem *problem;
    const fm_sm90_maps *maps;
    fm_sm90_splits splits;
    uint32_t *counter;  /* workspace, 4 bytes */
    int32_t processors; /* multiprocessors of the device */
    void *stream;
} fm_sm90_call;

typedef struct fm_sm90_backward_maps {
    fm_sm90_maps forward;
    CUtensorMap grad_output;
} fm_sm90_backward_maps;

/* Kernel of a bucket; problem and maps by value to the kernel. */
typedef struct fm_sm90_backward_call {
    fm_sm90_backward_maps maps;
    const fm_cuda_backward_problem *problem;
    int (*kernel)(const struct fm_sm90_backward_call *);
    void *stream;
    int32_t processors; /* multiprocessors of the device */
} fm_sm90_backward_call;

/* tensor_map.c: false where a tensor's memory cannot be described. */
bool fm_sm90_make_maps(const fm_cuda_problem *problem, fm_dtype dtype, fm_sm90_maps *maps);
bool fm_sm90_make_backward_maps(const fm_cuda_backward_problem *problem, fm_dtype dtype, fm_sm90_backward_maps *maps);

/* forward.c: whether code for sm_90a runs on a device. */
bool fm_sm90_runs_on(int32_t device);

/* backward.c. Whether the build has a kernel for these head dims. */
bool fm_sm90_has_backward(int64_t head_dim, int64_t head_dim_v);
/* The first tells whether the device, the build and the tensors allow the Hopper kernel, and if so lays out *problem's
 * workspace as it wants it and fills *call, which keeps `problem`; place->workspace: FM_SM90_COUNTER_BYTES, and 4 bytes for each tile of
 * 64 rows of each query head. The second launches, behind row_terms. */
enum { FM_SM90_COUNTER_BYTES = 256 };
bool fm_sm90_prepare_backward(fm_cuda_backward_problem *problem, fm_dtype dtype, const fm_sm90_place *place,
                              fm_sm90_backward_call *call);
int fm_sm90_backward(const fm_sm90_backward_call *call);

/* forward.cu, and backward.cu or backward_wide.cu, one object for each dtype and head dim bucket. */
#define FM_SM90_DECLARE_BACKWARD(dim)                                  \
    int fm_sm90_backward_f16_##dim(const fm_sm90_backward_call *call); \
    int fm_sm90_backward_bf16_##dim(const fm_sm90_backward_call *call);
FM_SM90_DECLARE_BACKWARD(64)
FM_SM90_DECLARE_BACKWARD(128)
FM_SM90_DECLARE_BACKWARD(192)
FM_SM90_DECLARE_BACKWARD(256)
#define FM_SM90_DECLARE(dim)                                 \
    int fm_sm90_forward_f16_##dim(const fm_sm90_call *call); \
    int fm_sm90_forward_bf16_##dim(const fm_sm90_call *call);
FM_SM90_DECLARE(64)
FM_SM90_DECLARE(96)
FM_SM90_DECLARE(128)
FM_SM90_DECLARE(192)
FM_SM90_DECLARE(256)
/* Wider Q and K than V and O, which are 128 at most. */
int fm_sm90_forward_v128_f16_192(const fm_sm90_call *call);
int fm_sm90_forward_v128_bf16_192(const fm_sm90_call *call);

#ifdef __cplusplus
}
#endif
#endif

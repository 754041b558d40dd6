/* Few rows beside long keys: an item of the forward kernel then has a split of the keys alone, and this second kernel puts the splits
 * of a row together, always in the same order. A split that sees nothing has l 0. */
#ifndef FM_CUDA_SM90_FORWARD_COMBINE_CUH
#define FM_CUDA_SM90_FORWARD_COMBINE_CUH

#include "cuda/sm90/forward_shared.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/variant.cuh"

enum { COMBINE_WARPS = 8, COMBINE_THREADS = 32 * COMBINE_WARPS, MOST_DIMS = FM_HEAD_DIM_V };
static_assert((int)COMBINE_THREADS >= (int)FM_SM90_MOST_SPLITS && (int)COMBINE_THREADS >= (int)MOST_DIMS,
              "a thread for each split, and for each dim");

/* Of a row: what its splits weigh beside each other, and all of them. */
typedef struct combine_shared {
    float base[FM_SM90_MOST_SPLITS], l[FM_SM90_MOST_SPLITS]; /* then weights in the place of bases */
    float sums[COMBINE_WARPS][MOST_DIMS];
} combine_shared;

static __device__ __forceinline__ float combine_highest(const combine_shared *s, int splits) {
    float highest = SOFTMAX_LOWEST;
    for (int i = (int)threadIdx.x % 32; i < splits; i += 32) {
        highest = s->l[i] == 0.0f ? highest : fmaxf(highest, s->base[i]);
    }
    for (int d = 16; d > 0; d /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, d));
    }
    return highest;
}

/* Sum of the row's weights. */
static __device__ __forceinline__ float combine_weights(const combine_shared *s, int splits) {
    float l = 0.0f;
    for (int i = (int)threadIdx.x % 32; i < splits; i += 32) {
        l = fmaf(s->base[i], s->l[i], l);
    }
    for (int d = 16; d > 0; d /= 2) {
        l += __shfl_xor_sync(0xffffffffu, l, d);
    }
    return l;
}

/* Each warp adds up every eighth split. row: of all B x Hq x Sq. */
static __device__ __forceinline__ void combine_splits(combine_shared *s, const fm_cuda_problem *p, const fm_sm90_splits *splits,
                                                      int64_t rows, int64_t row) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float sums[MOST_DIMS / 32] = {0};
    for (int i = warp; i < splits->count; i += COMBINE_WARPS) {
        const float weight = s->base[i], *from = splits->output + (i * rows + row) * p->head_dim_v;
#pragma unroll
        for (int k = 0; k < MOST_DIMS / 32; k++) {
            if (s->l[i] != 0.0f && 32 * k + lane < p->head_dim_v) {
                sums[k] = fmaf(weight, from[32 * k + lane], sums[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < MOST_DIMS / 32; k++) {
        s->sums[warp][32 * k + lane] = sums[k];
    }
}

static __device__ __forceinline__ void combine_store(const combine_shared *s, const fm_cuda_problem *p, int64_t row,
                                                     float factor) {
    const int32_t dim = (int32_t)threadIdx.x, head = (int32_t)(row / p->rows % p->heads);
    if (dim >= p->head_dim_v) {
        return;
    }
    float x = 0.0f;
#pragma unroll
    for (int warp = 0; warp < COMBINE_WARPS; warp++) {
        x += s->sums[warp][dim];
    }
    x *= factor;
    const int64_t *stride = p->output.stride;
    const int64_t at = row / p->rows / p->heads * stride[0] + row % p->rows * stride[1] + head * stride[2] + dim * stride[3];
    if (p->output_is_f32) {
        static_cast<float *>(p->output.data)[at] = x;
    } else {
        static_cast<fm_half *>(p->output.data)[at] = fm_half_from(x);
    }
}

/* A block a row. */
static __global__ void __launch_bounds__(COMBINE_THREADS)
    combine_kernel(const __grid_constant__ fm_cuda_problem p, const __grid_constant__ fm_sm90_splits splits) {
    __shared__ combine_shared s;
    const int64_t rows = (int64_t)p.batch * p.heads * p.rows, row = blockIdx.x;
    const int i = (int)threadIdx.x;
    if (i < splits.count) {
        s.base[i] = splits.base[i * rows + row];
        s.l[i] = splits.l[i * rows + row];
    }
    __syncthreads();
    const float base = combine_highest(&s, splits.count);
    __syncthreads();
    if (i < splits.count) {
        s.base[i] = s.l[i] == 0.0f ? 0.0f : ptx_exp2(s.base[i] - base);
    }
    __syncthreads();
    const float l = combine_weights(&s, splits.count);
    const bool is_empty = l == 0.0f;
    const float sink = p.sinks != NULL ? p.sinks[row / p.rows % p.heads] * SOFTMAX_LOG2E : -INFINITY;
    combine_splits(&s, &p, &splits, rows, row);
    __syncthreads();
    combine_store(&s, &p, row, is_empty ? 0.0f : __fdividef(1.0f, l + ptx_exp2(sink - base)));
    if (p.lse != NULL && i == 0) {
        p.lse[row] = is_empty ? -INFINITY : base * SOFTMAX_LN2 + logf(l);
    }
}

#endif

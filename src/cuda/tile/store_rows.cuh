/* A warp's accumulators to global memory: 16-row fragments of ptx_mma's c, rows 16 f .., dims 8 d ... */
#ifndef FM_CUDA_TILE_STORE_ROWS_CUH
#define FM_CUDA_TILE_STORE_ROWS_CUH

#include "cuda/launch.h"
#include "cuda/tile/shared_tile.cuh"
#include "cuda/tile/softmax.cuh"
#include "cuda/variant.cuh"

/* Of the lane's rows, row, row + 8, ..: l becomes the output's factor, and the lse is written. */
template <int ROWS>
static __device__ __forceinline__ void store_lse(const fm_cuda_problem *p, int32_t batch, int32_t head, const float (&base)[ROWS],
                                                 float (&l)[ROWS], int32_t row) {
    const float sink = p->sinks != NULL ? p->sinks[head] * SOFTMAX_LOG2E : -INFINITY;
    const int64_t lse = ((int64_t)batch * p->heads + head) * p->rows;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float sum = softmax_row_sum(l[r]);
        const bool is_empty = sum == 0.0f;
        l[r] = is_empty ? 0.0f : __fdividef(1.0f, sum + ptx_exp2(sink - base[r]));
        if (p->lse != NULL && threadIdx.x % 4 == 0 && row + 8 * r < p->rows) {
            p->lse[lse + row + 8 * r] = is_empty ? -INFINITY : base[r] * SOFTMAX_LN2 + logf(sum);
        }
    }
}

/* Where a warp's rows go. */
typedef struct store_target {
    const fm_cuda_tensor *tensor;
    int64_t head; /* offset of (batch item, head) */
    int32_t row0; /* of the warp */
    int32_t rows; /* of the tensor: others are not written */
    int32_t dim;  /* likewise; a multiple of 8 */
    bool is_f32;
} store_target;

/* Four lanes hold one row of four 8 x 8 blocks, lane t columns 2 t and 2 t + 1 of every block; afterwards lane t holds all of
 * block t: the 4 x 4 registers are transposed. */
static __device__ __forceinline__ void store_gather(uint32_t (&v)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = (threadIdx.x & (unsigned)bit) != 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int a = bit == 1 ? 2 * i : i, b = a + bit;
            const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? v[a] : v[b], bit);
            v[a] = upper ? other : v[a];
            v[b] = upper ? v[b] : other;
        }
    }
}

/* Halves, in whole chunks. Row r of the lane's (rows g, g + 8, ..) is multiplied by factor[r]. */
template <int FRAGMENTS, int DIM_BLOCKS>
static __device__ __forceinline__ void store_chunks(const store_target *target, const float (&c)[FRAGMENTS][DIM_BLOCKS][4],
                                                    const float (&factor)[2 * FRAGMENTS]) {
    const int t = (int)threadIdx.x % 4, row = target->row0 + (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
        fm_half *to = static_cast<fm_half *>(target->tensor->data) + target->head +
                      (int64_t)(row + 8 * r) * target->tensor->stride[1] + CHUNK * t;
#pragma unroll
        for (int d = 0; d < DIM_BLOCKS; d += 4) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = c[r / 2][d + i] + r % 2 * 2;
                v[i] = fm_half2_from(pair[0] * factor[r], pair[1] * factor[r]);
            }
            store_gather(v);
            if (row + 8 * r < target->rows && CHUNK * (d + t) < target->dim) {
                *reinterpret_cast<uint4 *>(to + CHUNK * d) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
    }
}

/* f32 rows of contiguous dims: pairs, four lanes write 32 bytes. */
template <int FRAGMENTS, int DIM_BLOCKS>
static __device__ __forceinline__ void store_pairs(const store_target *target, const float (&c)[FRAGMENTS][DIM_BLOCKS][4],
                                                   const float (&factor)[2 * FRAGMENTS]) {
    const int t = (int)threadIdx.x % 4, row = target->row0 + (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
        float *to = static_cast<float *>(target->tensor->data) + target->head +
                    (int64_t)(row + 8 * r) * target->tensor->stride[1] + 2 * t;
#pragma unroll
        for (int d = 0; d < DIM_BLOCKS; d++) {
            const float *pair = c[r / 2][d] + r % 2 * 2;
            if (row + 8 * r < target->rows && 8 * d < target->dim) {
                *reinterpret_cast<float2 *>(to + 8 * d) = make_float2(pair[0] * factor[r], pair[1] * factor[r]);
            }
        }
    }
}

/* Place of an element while the warp's rows lie in shared memory as f32: the eight rows of one store in different banks. */
template <int DIM> static __device__ __forceinline__ int store_staged_at(int row, int dim) {
    return row * DIM + (dim ^ row % 8 * 4);
}

/* f32, or any strides: through shared memory of the warp, 16 * FRAGMENTS * DIM floats, to keep the code short. lane: the caller's, who may
 * have read it anew, so that nothing that follows from it takes registers before. */
template <int FRAGMENTS, int DIM_BLOCKS>
static __device__ __forceinline__ void store_elements_of(int lane, const store_target *target,
                                                         const float (&c)[FRAGMENTS][DIM_BLOCKS][4],
                                                         const float (&factor)[2 * FRAGMENTS], float *staged) {
    constexpr int DIM = 8 * DIM_BLOCKS;
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
#pragma unroll
        for (int d = 0; d < DIM_BLOCKS; d++) {
            const float *pair = c[r / 2][d] + r % 2 * 2;
            *reinterpret_cast<float2 *>(staged + store_staged_at<DIM>(lane / 4 + 8 * r, 8 * d + lane % 4 * 2)) =
                make_float2(pair[0] * factor[r], pair[1] * factor[r]);
        }
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < 16 * FRAGMENTS * DIM; i += 32) {
        const int row = i / DIM, dim = i % DIM;
        if (target->row0 + row >= target->rows || dim >= target->dim) {
            continue;
        }
        const float x = staged[store_staged_at<DIM>(row, dim)];
        const int64_t to =
            target->head + (int64_t)(target->row0 + row) * target->tensor->stride[1] + dim * target->tensor->stride[3];
        if (target->is_f32) {
            static_cast<float *>(target->tensor->data)[to] = x;
        } else {
            static_cast<fm_half *>(target->tensor->data)[to] = fm_half_from(x);
        }
    }
}

template <int FRAGMENTS, int DIM_BLOCKS>
static __device__ __forceinline__ void store_elements(const store_target *target, const float (&c)[FRAGMENTS][DIM_BLOCKS][4],
                                                      const float (&factor)[2 * FRAGMENTS], float *staged) {
    store_elements_of<FRAGMENTS, DIM_BLOCKS>((int)threadIdx.x % 32, target, c, factor, staged);
}

#endif

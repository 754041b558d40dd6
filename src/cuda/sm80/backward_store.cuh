/* dK and dV to global memory, through shared memory: the sums' own layout would write 8 bytes here and there, and code for every
 * stride and dtype unrolled over 128 registers does not stay in the instruction cache (a block paid 28000 cycles for it). */
#ifndef FM_CUDA_SM80_BACKWARD_STORE_CUH
#define FM_CUDA_SM80_BACKWARD_STORE_CUH

#include "cuda/sm80/backward_tile.cuh"

/* Eight neighbouring dims of a gradient. */
static __device__ __forceinline__ void store_eight(const fm_cuda_tensor *t, int64_t offset, bool is_f32,
                                                   const float (&x)[CHUNK]) {
    if (t->in_chunks && !is_f32) {
        *reinterpret_cast<uint4 *>(static_cast<fm_half *>(t->data) + offset) = make_uint4(
            fm_half2_from(x[0], x[1]), fm_half2_from(x[2], x[3]), fm_half2_from(x[4], x[5]), fm_half2_from(x[6], x[7]));
        return;
    }
#pragma unroll
    for (int e = 0; e < CHUNK; e++) {
        if (is_f32) {
            static_cast<float *>(t->data)[offset + e * t->stride[3]] = x[e];
        } else {
            static_cast<fm_half *>(t->data)[offset + e * t->stride[3]] = fm_half_from(x[e]);
        }
    }
}

/* Where dims d .. d + 3 of a row lie in the staging of store_sums: 16-byte pieces turned within eight rows. */
static __device__ __forceinline__ float *staged(float *stage, int row, int d) {
    return stage + row * DIM + 4 * ((d / 4) ^ (row & 7)) + d % 4;
}

/* dK (team 0) or dV (1) from the warps' sums through shared memory, whose tiles nobody needs any more, to global memory. */
static __device__ __forceinline__ void store_sums(const float (&sum)[SUM_M][SUM_N][4], backward_shared *s,
                                                  const fm_cuda_backward_problem *bp, int team) {
    const fm_cuda_problem *p = &bp->forward;
    const fm_cuda_tensor *t = team == TEAM_P ? &bp->grad_value : &bp->grad_key;
    const bool is_f32 = team == TEAM_P ? bp->grad_value_is_f32 : bp->grad_key_is_f32;
    const int32_t dim = team == TEAM_P ? p->head_dim_v : p->head_dim;
    const float factor = team == TEAM_P ? 1.0f : p->scale;
    float *stage = reinterpret_cast<float *>(s);
    __syncthreads();
    if (team_of() == team) {
        const int lane = lane_here(), row0 = sum_key0() + lane / 4, dim0 = sum_dim0() + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < SUM_M * SUM_N * 2; i++) {
            const int m = i / (SUM_N * 2), n = i / 2 % SUM_N, half = i % 2;
            *reinterpret_cast<float2 *>(staged(stage, row0 + 16 * m + 8 * half, dim0 + 8 * n)) =
                make_float2(factor * sum[m][n][2 * half], factor * sum[m][n][2 * half + 1]);
        }
    }
    __syncthreads();
    const int64_t head = s->work.batch * t->stride[0] + s->work.key_head * t->stride[2];
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < KEYS * DIM / CHUNK; i += THREADS) {
        const int row = i / (DIM / CHUNK), d = i % (DIM / CHUNK) * CHUNK;
        if (s->work.key0 + row < p->columns && d < dim) {
            const float4 low = *reinterpret_cast<const float4 *>(staged(stage, row, d));
            const float4 high = *reinterpret_cast<const float4 *>(staged(stage, row, d + 4));
            const float x[CHUNK] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            store_eight(t, head + (s->work.key0 + row) * t->stride[1] + d * t->stride[3], is_f32, x);
        }
    }
}

#endif

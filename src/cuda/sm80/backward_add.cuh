/* A warp's part of dQ of a tile, added to the sum in global memory, whose layout is launch.h's: [B, Hq, D / 8, Sq, 8]. */
#ifndef FM_CUDA_SM80_BACKWARD_ADD_CUH
#define FM_CUDA_SM80_BACKWARD_ADD_CUH

#include "cuda/ptx/red.cuh"
#include "cuda/sm80/backward_tile.cuh"

/* Adds the warp's part of dQ to the sum of one head, [D / 8][Sq][8]. Without additions of four floats lanes l and l + 16 exchange a
 * value so that an instruction adds four whole rows of eight, 128 bytes in a row of memory:
 *
 *   lane 4 g + t has  (g, 2t) (g, 2t+1)         adds  g < 4: (g, 2t) and (g + 4, 2t)    else (g - 4, 2t + 1) and (g, 2t + 1) */
template <int CUT> /* 1: the tile is cut by the last row */
static __device__ __forceinline__ void add_one_by_one(const float (&sum)[QUERY_M][QUERY_N][4], float *head,
                                                      const fm_cuda_problem *p, int32_t row0, int dim0) {
    const int lane = lane_here();
    const bool upper = lane >= 16;
    const int32_t row = row0 + lane / 4 % 4;
    float *at = head + ((int64_t)(dim0 / 8) * p->rows + row) * 8 + lane % 4 * 2 + (upper ? 1 : 0);
#pragma unroll
    for (int n = 0; n < QUERY_N; n++) {
        if (dim0 + 8 * n >= p->head_dim) {
            return;
        }
#pragma unroll
        for (int i = 0; i < 2 * QUERY_M; i++) {
            const float x = sum[i / 2][n][i % 2 * 2], y = sum[i / 2][n][i % 2 * 2 + 1];
            const float other = __shfl_xor_sync(0xffffffffu, upper ? x : y, 16);
            if (!CUT || row + 8 * i < p->rows) {
                atomicAdd(at + 64 * i, upper ? other : x);
            }
            if (!CUT || row + 8 * i + 4 < p->rows) {
                atomicAdd(at + 64 * i + 32, upper ? y : other);
            }
        }
        at += (int64_t)p->rows * 8;
    }
}

/* With them lanes 2 l and 2 l + 1 exchange two, and an instruction adds sixteen whole rows of eight:
 *
 *   lane 4 g + t has  (g, 2t..) (g + 8, 2t..)   adds  t even: (g, 2t .. 2t + 3)         else (g + 8, 2t - 2 .. 2t + 1)
 *
 * All exchanges come first, so that nothing waits for one of them. */
static __device__ __forceinline__ void exchange_pairs(float (&sum)[QUERY_M][QUERY_N][4]) {
    const bool odd = lane_here() % 2 != 0;
#pragma unroll
    for (int i = 0; i < QUERY_M * QUERY_N; i++) {
        float *c = sum[i / QUERY_N][i % QUERY_N];
        const float x = __shfl_xor_sync(0xffffffffu, odd ? c[0] : c[2], 1);
        const float y = __shfl_xor_sync(0xffffffffu, odd ? c[1] : c[3], 1);
        c[0] = odd ? x : c[0];
        c[1] = odd ? y : c[1];
        c[2] = odd ? c[2] : x;
        c[3] = odd ? c[3] : y;
    }
}

template <int CUT>
static __device__ __forceinline__ void add_by_four(float (&sum)[QUERY_M][QUERY_N][4], float *head, const fm_cuda_problem *p,
                                                   int32_t row0, int dim0) {
    const int lane = lane_here();
    const int32_t row = row0 + lane / 4 + lane % 2 * 8;
    float *at = head + ((int64_t)(dim0 / 8) * p->rows + row) * 8 + lane % 4 / 2 * 4;
    exchange_pairs(sum);
#pragma unroll
    for (int n = 0; n < QUERY_N; n++) {
#pragma unroll
        for (int m = 0; m < QUERY_M; m++) {
            if (dim0 + 8 * n < p->head_dim && (!CUT || row + 16 * m < p->rows)) {
                const float *c = sum[m][n];
                ptx_red_add_4(at + 128 * m, c[0], c[1], c[2], c[3]);
            }
        }
        at += (int64_t)p->rows * 8;
    }
}

template <int CUT>
static __device__ __forceinline__ void add_grad_query(float (&sum)[QUERY_M][QUERY_N][4], float *head, const fm_cuda_problem *p,
                                                      int32_t row0, int dim0) {
    if (PTX_HAS_RED_4) {
        add_by_four<CUT>(sum, head, p, row0, dim0);
    } else {
        add_one_by_one<CUT>(sum, head, p, row0, dim0);
    }
}

#endif

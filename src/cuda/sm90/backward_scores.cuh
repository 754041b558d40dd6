/* Between the products of a step: from S and dP to P and dS, and dQ's way out. S, P, dP and dS lie transposed: a thread has keys
 * g and g + 8 of its warp's 16 (lane 4 g + t) and rows 8 j + 2 t + {0, 1} of the step:
 *
 *   x[4 j + e]: key g, row 8 j + 2 t + e       x[4 j + 2 + e]: key g + 8 */
#ifndef FM_CUDA_SM90_BACKWARD_SCORES_CUH
#define FM_CUDA_SM90_BACKWARD_SCORES_CUH

#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/backward_memory.cuh"
#include "cuda/tile/mask_rows.cuh"
#include "cuda/tile/softmax.cuh"

enum {
    SCORES = ROWS / 2,           /* accumulators of S and dP of a thread */
    PAIRS = SCORES / 2,          /* the same as pairs of halves */
    QUERY_SUMS = QUERY_DIMS / 2, /* of dQ */
    ROW_BLOCKS = ROWS / 8
};

/* Rows that see the thread's two keys: bit 8 j + e of [0] for key g, of [1] for key g + 8. */
typedef struct visible_rows {
    uint64_t of[2];
} visible_rows;

static __device__ __forceinline__ uint64_t rows_between(int32_t start, int32_t end) {
    return mask_rows_between(start, end) | (uint64_t)mask_rows_between(start - 32, end - 32) << 32;
}

/* key: the thread's first; row: its first. */
static __device__ __forceinline__ visible_rows find_visible(const fm_cuda_problem *p, int64_t plane, int32_t row, int32_t key) {
    const tile_mask mask = tile_mask_at(&p->plan, plane, row, key);
    visible_rows visible = {{0, 0}};
    if (mask.is_hidden) {
        return visible;
    }
#pragma unroll 1
    for (int m = 0; m < mask.intervals; m++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int2 b = __ldg(reinterpret_cast<const int2 *>(mask.bounds + (int64_t)m * mask.stride + key + 8 * k));
            visible.of[k] |= rows_between(b.x - row, b.y - row);
        }
    }
    if (mask.bits != NULL) {
        uint64_t bits[2] = {0, 0};
#pragma unroll 1
        for (int i = 0; i < 2 * ROW_BLOCKS; i++) {
            const int at = 8 * (i / 2) + i % 2;
            const uint64_t keys = __ldg(reinterpret_cast<const unsigned long long *>(mask.bits) +
                                        2 * ((row + at) % FM_PLAN_GROUP) + key % FM_PLAN_GROUP / 64) >>
                                  (key % 64);
            bits[0] |= (keys & 1) << at;
            bits[1] |= (keys >> 8 & 1) << at;
        }
        visible.of[0] &= bits[0];
        visible.of[1] &= bits[1];
    }
    return visible;
}

static __device__ __forceinline__ bool is_visible(visible_rows visible, int j, int k, int e) {
    return static_cast<uint32_t>(visible.of[k] >> (j / 4 * 32)) >> (j % 4 * 8 + e) & 1;
}

/* 2^x, at most 1: rounding must not let a P grow past it. NaN stays. */
static __device__ __forceinline__ float weight_of(float x) {
    asm("min.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));
    return ptx_exp2(x);
}

/* S becomes P, or with softcap P (1 - tanh^2); pairs of P itself go to `weights`. lse2: of the thread's rows, in shared memory. */
static __device__ __forceinline__ void weigh_plain(float (&S)[SCORES], const float *lse2, float factor) {
#pragma unroll
    for (int j = 0; j < ROW_BLOCKS; j++) {
        const float2 l = *reinterpret_cast<const float2 *>(lse2 + 8 * j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            S[4 * j + i] = weight_of(fmaf(S[4 * j + i], factor, i % 2 == 0 ? -l.x : -l.y));
        }
    }
}

/* P or dP of hidden pairs becomes 0. */
static __device__ __forceinline__ void hide_scores(float (&x)[SCORES], visible_rows visible) {
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        x[i] = is_visible(visible, i / 4, i / 2 % 2, i % 2) ? x[i] : 0.0f;
    }
}

static __device__ __forceinline__ void hide_pairs(uint32_t (&pairs)[PAIRS], visible_rows visible) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        pairs[i] &=
            (is_visible(visible, i / 2, i % 2, 0) ? 0xffffu : 0) | (is_visible(visible, i / 2, i % 2, 1) ? 0xffff0000u : 0);
    }
}

static __device__ __forceinline__ void pack_weights(const float (&S)[SCORES], uint32_t (&weights)[PAIRS]) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        weights[i] = fm_half2_from(S[2 * i], S[2 * i + 1]);
    }
}

/* Pairs of P, and of P (1 - tanh^2), which dS needs in the place of P: as halves, since f32 would not fit the registers. */
static __device__ __forceinline__ void weigh_capped(const float (&S)[SCORES], uint32_t (&weights)[PAIRS],
                                                    uint32_t (&slopes)[PAIRS], const float *lse2, float scale, float cap) {
    const softmax_capping capping = {2.0f * SOFTMAX_LOG2E * __fdividef(scale, cap), cap * SOFTMAX_LOG2E};
#pragma unroll
    for (int j = 0; j < ROW_BLOCKS; j++) {
        const float2 l = *reinterpret_cast<const float2 *>(lse2 + 8 * j);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float *pair = S + 4 * j + 2 * k;
            const float t0 = softmax_tanh(pair[0] * capping.in);
            const float t1 = softmax_tanh(pair[1] * capping.in);
            const float x0 = weight_of(fmaf(t0, capping.out, -l.x)), x1 = weight_of(fmaf(t1, capping.out, -l.y));
            weights[2 * j + k] = fm_half2_from(x0, x1);
            slopes[2 * j + k] = fm_half2_from(x0 * (1.0f - t0 * t0), x1 * (1.0f - t1 * t1));
        }
    }
}

static __device__ __forceinline__ void unpack_weights(float (&S)[SCORES], const uint32_t (&pairs)[PAIRS]) {
#pragma unroll
    for (int i = 0; i < SCORES; i++) {
        S[i] = fm_half_to(reinterpret_cast<const fm_half *>(pairs + i / 2)[i % 2]);
    }
}

/* delta: of the thread's rows, in shared memory. */
static __device__ __forceinline__ void subtract_delta(float (&dP)[SCORES], const float *delta) {
#pragma unroll
    for (int j = 0; j < ROW_BLOCKS; j++) {
        const float2 d = *reinterpret_cast<const float2 *>(delta + 8 * j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            dP[4 * j + i] -= i % 2 == 0 ? d.x : d.y;
        }
    }
}

/* dS = P (dP - delta), as pairs. dP: less delta already. */
static __device__ __forceinline__ void grad_scores(const float (&P)[SCORES], const float (&dP)[SCORES],
                                                   uint32_t (&pairs)[PAIRS]) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        pairs[i] = fm_half2_from(P[2 * i] * dP[2 * i], P[2 * i + 1] * dP[2 * i + 1]);
    }
}

/* The thread's address in its line of a dS buffer: row lane / 16 * 8 + lane % 8, keys warp * 16 + lane / 8 % 2 * 8 .., swizzled. */
static __device__ __forceinline__ uint32_t grad_score_address(const uint8_t *line) {
    const uint32_t thread = thread_again() % 128, lane = thread % 32;
    const uint32_t row = lane / 16 * 8 + lane % 8, chunk = thread / 32 * 2 + lane / 8 % 2;
    return ptx_shared_address(line) + row * 128 + (chunk ^ lane % 8) * 16;
}

/* As [rows][keys]: 16 rows an instruction. */
static __device__ __forceinline__ void turn_pairs(uint32_t address, const uint32_t (&pairs)[PAIRS]) {
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS / 2; i++) {
        ptx_stmatrix_transposed(address + i * 16 * 128, pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]);
    }
}

static __device__ __forceinline__ void store_grad_scores(uint32_t address, const uint32_t (&pairs)[PAIRS]) {
    turn_pairs(address, pairs);
    ptx_fence_proxy_async();
    __syncwarp();
}

/* The thread's place in a warp's part of the staging area. */
static __device__ __forceinline__ float2 *staging_place_in(float *staged) {
    return reinterpret_cast<float2 *>(staged + 2 * (thread_again() % 32));
}

/* A warp's 16 rows of dQ as the sum has them: [dims / 8][16 rows][8]. to: the thread's place. */
template <int N> static __device__ __forceinline__ void stage_grad_query(float2 *to, const float (&dQ)[N]) {
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        to[64 * j] = make_float2(dQ[4 * j], dQ[4 * j + 1]);
        to[64 * j + 32] = make_float2(dQ[4 * j + 2], dQ[4 * j + 3]);
    }
    ptx_fence_proxy_async();
    __syncwarp();
}

#endif

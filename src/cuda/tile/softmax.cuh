/* Softmax over tiles that arrive one after another, in base 2: a score S weighs 2^(c S - base), c = |scale| log2(e): one FMA and
 * one exponential an element. Each lane keeps the rows g, g + 8 (and g + 16, g + 24) of its fragments; base is the same in the
 * four lanes of a row, l is this lane's share of the sum, added up at the end.
 *
 * base follows c times the row's maximum lazily: it moves, and O and l are rescaled, only when a tile beats it by more than 8.
 * Weights stay below 2^8 then, which f32 sums and halves hold as well as weights below 1. Rows that saw nothing have the lowest
 * base that is finite: any score moves it, and hidden ones, -inf, weigh 0. A row's decision depends on the scores that it sees
 * alone: a tile that is hidden from it has maximum -inf, weights 0 and moves nothing. */
#ifndef FM_CUDA_TILE_SOFTMAX_CUH
#define FM_CUDA_TILE_SOFTMAX_CUH

#include "cuda/ptx/mma.cuh"
#include "cuda/variant.cuh"

#define SOFTMAX_LOG2E 1.4426950408889634f
#define SOFTMAX_LN2 0.6931471805599453f
#define SOFTMAX_SLACK 8.0f
#define SOFTMAX_LOWEST (-0x1.fffffep127f)

/* c of a scale; scale 0 takes the smallest normal number, so that hidden scores, -inf, stay -inf and others weigh 1. */
static __host__ __device__ __forceinline__ float softmax_factor(float scale) {
    return fmaxf(fabsf(scale) * SOFTMAX_LOG2E, 0x1p-126f);
}

/* S = cap tanh(|scale| S / cap) = out tanh(in S), in units of log 2: c is 1 after it. tanh x = 1 - 2 / (e^2x + 1) is within 2^-22
 * of tanh. */
typedef struct softmax_capping {
    float in, out; /* in: times 2 log2(e), for e^2x */
} softmax_capping;

static __host__ __device__ __forceinline__ softmax_capping softmax_capping_of(float scale, float cap) {
    const softmax_capping capping = {2.0f * SOFTMAX_LOG2E * fabsf(scale) / cap, cap * SOFTMAX_LOG2E};
    return capping;
}
/* tanh of x / (2 log2 e). */
static __device__ __forceinline__ float softmax_tanh(float x) { return 1.0f - __fdividef(2.0f, ptx_exp2(x) + 1.0f); }

template <int FRAGMENTS, int KEY_BLOCKS>
static __device__ __forceinline__ void softmax_cap(float (&S)[FRAGMENTS][KEY_BLOCKS][4], softmax_capping capping) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4 * KEY_BLOCKS; i++) {
            S[f][i / 4][i % 4] = capping.out * softmax_tanh(S[f][i / 4][i % 4] * capping.in);
        }
    }
}

/* Largest score of this lane in each of its rows. */
template <int FRAGMENTS, int KEY_BLOCKS>
static __device__ __forceinline__ void softmax_highest(const float (&S)[FRAGMENTS][KEY_BLOCKS][4],
                                                       float (&highest)[2 * FRAGMENTS]) {
#pragma unroll
    for (int r = 0; r < 2 * FRAGMENTS; r++) {
        const int f = r / 2, e = r % 2 * 2;
        highest[r] = fmaxf(S[f][0][e], S[f][0][e + 1]);
#pragma unroll
        for (int n = 1; n < KEY_BLOCKS; n++) {
            highest[r] = fmaxf(highest[r], fmaxf(S[f][n][e], S[f][n][e + 1]));
        }
    }
}

/* Whether a score of the warp beats its row's base. Always false for NaN. */
template <int ROWS>
static __device__ __forceinline__ bool softmax_moves(const float (&base)[ROWS], const float (&highest)[ROWS], float c) {
    bool beats = false;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        beats |= fmaf(highest[r], c, -base[r]) > SOFTMAX_SLACK;
    }
    return __any_sync(0xffffffffu, beats);
}

/* Moves the bases that are beaten; rescale[r] is what the row's sums so far are multiplied by. */
template <int ROWS>
static __device__ __forceinline__ void softmax_move(float (&base)[ROWS], const float (&highest)[ROWS], float c,
                                                    float (&rescale)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float x = fmaxf(highest[r], __shfl_xor_sync(0xffffffffu, highest[r], 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        const float next = __fmul_rd(x, c);
        const bool beats = fmaf(x, c, -base[r]) > SOFTMAX_SLACK;
        rescale[r] = beats ? ptx_exp2(base[r] - next) : 1.0f;
        base[r] = beats ? next : base[r];
    }
}

/* Whether a row of the warp has so large a base that its rounding alone moves exponents by more than 1: |base| >= 2^23. */
template <int ROWS> static __device__ __forceinline__ bool softmax_is_coarse(const float (&base)[ROWS]) {
    bool is_coarse = false;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        is_coarse |= base[r] >= 0x1p23f || (base[r] <= -0x1p23f && base[r] > SOFTMAX_LOWEST);
    }
    return __any_sync(0xffffffffu, is_coarse);
}

/* Exponents of a tile in place of its scores, for coarse bases. A base is rounded down, so the largest score's exponent is at least
 * 0, and it is cut where the rounding would make it overflow. Other rows of the warp keep their bits. */
template <int FRAGMENTS, int KEY_BLOCKS>
static __device__ __forceinline__ void softmax_cut(float (&S)[FRAGMENTS][KEY_BLOCKS][4], const float (&base)[2 * FRAGMENTS],
                                                   float c) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
#pragma unroll
        for (int i = 0; i < 4 * KEY_BLOCKS; i++) {
            const float x = fmaf(S[f][i / 4][i % 4], c, -base[2 * f + i % 4 / 2]);
            S[f][i / 4][i % 4] = x > SOFTMAX_SLACK ? SOFTMAX_SLACK : x; /* NaN stays */
        }
    }
}

/* x, as a value of its own. */
static __device__ __forceinline__ float softmax_again(float x) {
    float y;
    asm volatile("mov.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Sum over the four lanes of a row. */
static __device__ __forceinline__ float softmax_row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#endif

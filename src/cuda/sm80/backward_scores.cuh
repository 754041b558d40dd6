/* From S to P and from dP to dS: the arithmetic between a tile's products, one warp's part of it.
 *
 * Both write the tile that later products read: pairs of keys, [ROWS][KEYS], swizzled. Eight rows of four lanes are 128 bytes in
 * different banks:
 *
 *   lane 4 g + t:  row 16 m + g (half 0) or 16 m + 8 + g (half 1), keys 8 n + 2 t and + 1, as m16n8k16 leaves its sums
 */
#ifndef FM_CUDA_SM80_BACKWARD_SCORES_CUH
#define FM_CUDA_SM80_BACKWARD_SCORES_CUH

#include "cuda/sm80/backward_tile.cuh"
#include "cuda/tile/mask_rows.cuh"
#include "cuda/tile/softmax.cuh"

/* Terms of this lane's rows of the warp's score tile: row 8 i + lane / 4 each. */
static __device__ __forceinline__ void read_row_terms(float (&terms)[2 * SCORE_M], const float *shared, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * SCORE_M; i++) {
        terms[i] = shared[8 * i + lane / 4];
    }
}

/* Where this lane's pair (row 16 m + 8 half + lane / 4, keys 8 n + lane % 4 * 2 and + 1) of the warp's score tile lies, `first` being
 * the offset of the pair 0, 0, 0. */
static_assert(is_power_of_2(SCORE_N), "columns of a warp are reached by an exclusive or");
static __device__ __forceinline__ int first_pair(int lane, int row0, int key0) {
    return shared_chunk<KEYS>(lane / 4, key0 / 8) + row0 * KEYS + lane % 4 * 2;
}
static __device__ __forceinline__ uint32_t *score_pair(fm_half *tile, int first, int m, int n, int half) {
    return reinterpret_cast<uint32_t *>(tile + (first ^ CHUNK * n) + (16 * m + 8 * half) * KEYS);
}

/* Visible pairs of the warp's score tile, found before the tile itself fills the registers: byte 2 n + e is key 8 n + lane % 4 * 2 + e,
 * its bit i row 8 i + lane / 4. */
static_assert(SCORE_N <= 4 && SCORE_M <= 4, "a bit a pair");

/* e: 2 half + key, as in the sums of a product. */
static __device__ __forceinline__ bool is_visible_pair(uint64_t visible, int m, int n, int e) {
    const int bit = 8 * (2 * n + e % 2) + 2 * m + e / 2;
    return static_cast<uint32_t>(visible >> (bit / 32 * 32)) >> (bit % 32) & 1;
}

/* Of the lane's rows those in [start, end), counted from the first. */
static __device__ __forceinline__ uint64_t rows_between(int32_t start, int32_t end) {
    const uint2 rows = {mask_rows_between(start, end), SCORE_ROWS > 32 ? mask_rows_between(start - 32, end - 32) : 0};
    return mask_rows_every_eighth(rows, 0);
}

static __device__ __forceinline__ uint64_t find_visible(const fm_cuda_problem *p, const block_work *work, int32_t row0,
                                                        int32_t key0) {
    const tile_mask mask = tile_mask_at(&p->plan, work->plane, row0, key0);
    const int32_t lane = lane_here(), row = row0 + lane / 4, key = key0 + lane % 4 * 2;
    uint64_t visible = 0;
    if (mask.is_hidden) {
        return 0;
    }
#pragma unroll 1
    for (int m = 0; m < mask.intervals; m++) {
        int4 bounds[SCORE_N]; /* all are asked for at once */
#pragma unroll
        for (int n = 0; n < SCORE_N; n++) {
            bounds[n] = __ldg(reinterpret_cast<const int4 *>(mask.bounds + (int64_t)m * mask.stride + key + 8 * n));
        }
#pragma unroll
        for (int n = 0; n < SCORE_N; n++) {
            visible |= rows_between(bounds[n].x - row, bounds[n].y - row) << (16 * n) |
                       rows_between(bounds[n].z - row, bounds[n].w - row) << (16 * n + 8);
        }
    }
    if (mask.bits != NULL) {
        uint64_t seen = 0;
#pragma unroll 1
        for (int i = 0; i < 2 * SCORE_M; i++) {
            const int32_t word = 2 * ((row + 8 * i) % FM_PLAN_GROUP) + key % FM_PLAN_GROUP / 64;
            const uint64_t keys = __ldg(reinterpret_cast<const unsigned long long *>(mask.bits) + word) >> (key % 64);
#pragma unroll
            for (int k = 0; k < 2 * SCORE_N; k++) {
                seen |= (keys >> (8 * (k / 2) + k % 2) & 1) << (8 * k + i);
            }
        }
        visible &= seen;
    }
    return visible;
}

/* With softcap. P (1 - tanh^2), which dS needs in the place of P, goes through dS's tile. */
static __device__ __forceinline__ void write_capped(const float (&score)[SCORE_M][SCORE_N][4], backward_shared *s,
                                                    const fm_cuda_problem *p, uint64_t visible, int row0, int key0) {
    const int lane = lane_here(), first = first_pair(lane, row0, key0);
    const float inner = __fdividef(p->scale, p->softcap), outer = p->softcap * SOFTMAX_LOG2E;
    float lse2[2 * SCORE_M];
    read_row_terms(lse2, s->row_terms[TEAM_P] + row0, lane);
#pragma unroll
    for (int i = 0; i < 2 * SCORE_M; i++) {
        const int m = i / 2, half = i % 2;
#pragma unroll
        for (int n = 0; n < SCORE_N; n++) {
            float x[2], slope[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float t = softmax_tanh(2.0f * SOFTMAX_LOG2E * (score[m][n][2 * half + e] * inner));
                x[e] = is_visible_pair(visible, m, n, 2 * half + e) ? ptx_at_most_1(ptx_exp2(fmaf(t, outer, -lse2[i]))) : 0.0f;
                slope[e] = x[e] == 0.0f ? 0.0f : x[e] * (1.0f - t * t);
            }
            *score_pair(s->probability, first, m, n, half) = fm_half2_from(x[0], x[1]);
            *score_pair(s->grad_score, first, m, n, half) = fm_half2_from(slope[0], slope[1]);
        }
    }
}

/* Without: MASKED 1 hides what `visible` says. */
template <int MASKED>
static __device__ __forceinline__ void write_plain(const float (&score)[SCORE_M][SCORE_N][4], backward_shared *s, float scale,
                                                   uint64_t visible, int row0, int key0) {
    const int lane = lane_here(), first = first_pair(lane, row0, key0);
    asm volatile("" : "+f"(scale)); /* the product is made here, not kept */
    const float scale2 = scale * SOFTMAX_LOG2E;
    float lse2[2 * SCORE_M];
    read_row_terms(lse2, s->row_terms[TEAM_P] + row0, lane);
#pragma unroll
    for (int i = 0; i < 2 * SCORE_M; i++) {
        const int m = i / 2, half = i % 2;
#pragma unroll
        for (int n = 0; n < SCORE_N; n++) {
            float x[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                x[e] = ptx_exp2(fmaf(score[m][n][2 * half + e], scale2, -lse2[i]));
                x[e] = !MASKED || is_visible_pair(visible, m, n, 2 * half + e) ? x[e] : 0.0f;
            }
            *score_pair(s->probability, first, m, n, half) = fm_half2_at_most_1(fm_half2_from(x[0], x[1]));
        }
    }
}

/* Team P: P of the warp from S, into shared memory. */
static __device__ __forceinline__ void write_probabilities(const float (&score)[SCORE_M][SCORE_N][4], backward_shared *s,
                                                           const fm_cuda_problem *p, uint64_t visible, bool is_full, int row0,
                                                           int key0) {
    if (p->softcap > 0.0f) {
        write_capped(score, s, p, visible, row0, key0);
    } else if (is_full) {
        write_plain<0>(score, s, p->scale, visible, row0, key0);
    } else {
        write_plain<1>(score, s, p->scale, visible, row0, key0);
    }
}

/* P of 16 rows of the warp's score tile, in the layout of its sums: register 2 (n % 2) + half of pairs[n / 2]. */
static __device__ __forceinline__ void read_pairs(uint32_t (&pairs)[SCORE_N / 2][4], uint32_t first) {
#pragma unroll
    for (int n = 0; n < SCORE_N / 2; n++) {
        ptx_ldmatrix(pairs[n], shared_move<KEYS>(first, 0, 2 * n));
    }
}

/* Team dS: dP of the warp to dS = P (dP - delta), in shared memory; P 0 gives 0 whatever dP is: hidden V, or dO of an empty row, may
 * be so large that dP is not finite. Reads run 16 rows ahead of writes, which with softcap go to the same place: what a lane
 * writes depends on what was read there, and __syncwarp says so to tools. */
static __device__ __forceinline__ void write_grad_scores(const float (&score)[SCORE_M][SCORE_N][4], backward_shared *s,
                                                         bool capped, int row0, int key0) {
    const int lane = lane_here(), first = first_pair(lane, row0, key0);
    const uint32_t tile = ptx_shared_address(capped ? s->grad_score : s->probability) + rows_bytes<KEYS>(row0);
    const uint32_t from = down<KEYS>(tile, lane, key0 / 8);
    uint32_t pairs[2][SCORE_N / 2][4];
    float delta[2 * SCORE_M];
    read_row_terms(delta, s->row_terms[TEAM_SCORE] + row0, lane);
    read_pairs(pairs[0], from);
#pragma unroll
    for (int m = 0; m < SCORE_M; m++) {
        if (m + 1 < SCORE_M) {
            read_pairs(pairs[(m + 1) % 2], from + rows_bytes<KEYS>(16 * (m + 1)));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2 * SCORE_N; i++) {
            const int n = i / 2, half = i % 2;
            const uint32_t pair = pairs[m % 2][n / 2][n % 2 * 2 + half];
            const fm_half *p = reinterpret_cast<const fm_half *>(&pair);
            *score_pair(s->grad_score, first, m, n, half) =
                fm_half2_from(fm_half_to(p[0]) * (score[m][n][2 * half] - delta[2 * m + half]),
                              fm_half_to(p[1]) * (score[m][n][2 * half + 1] - delta[2 * m + half])) &
                fm_half2_is_not_0(pair);
        }
    }
}

#endif

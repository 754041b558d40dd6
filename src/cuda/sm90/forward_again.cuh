/* A step weighed once more by one warp of the forward kernel, where weights left the range that a row's base allows (weigh). Rare, so
 * slow and small: the team's products are over and K's place may be refilled, so the warp computes its scores anew from global memory,
 * eight keys at a time, once to find the highest and once to weigh. A row's result still depends on nothing but what the warp's rows
 * see. */
#ifndef FM_CUDA_SM90_FORWARD_AGAIN_CUH
#define FM_CUDA_SM90_FORWARD_AGAIN_CUH

#include "cuda/sm90/forward_consumer.cuh"

/* What a lane reads: rows g and g + 8 of Q, and the first of the step's rows of K. dims: of a row, 0 past the last row. */
typedef struct again_source {
    const uint16_t *query[2], *key;
    int64_t key_stride;
    int32_t query_dims[2], keys; /* keys: from `key` to the last */
} again_source;

static __device__ __forceinline__ again_source again_source_of(const consumer *x, int32_t key) {
    const fm_cuda_problem *p = x->p;
    const forward_item item = *item_of(x);
    const int32_t row = row_of(x) + (int32_t)thread_again() % 32 / 4;
    const uint16_t *query = static_cast<const uint16_t *>(p->query.data) + item.batch * p->query.stride[0] +
                            item.head * p->query.stride[2] + row * p->query.stride[1];
    const uint16_t *keys = static_cast<const uint16_t *>(p->key.data) + item.batch * p->key.stride[0] +
                           item.head / (p->heads / p->heads_kv) * p->key.stride[2] + key * p->key.stride[1];
    return again_source{{query, query + 8 * p->query.stride[1]},
                        keys,
                        p->key.stride[1],
                        {row < p->rows ? p->head_dim : 0, row + 8 < p->rows ? p->head_dim : 0},
                        p->columns - key};
}

/* Dims dim and dim + 1 of a row; 0 past the last. */
static __device__ __forceinline__ uint32_t again_pair(const uint16_t *row, int32_t dim, int32_t dims) {
    const uint32_t low = dim < dims ? __ldg(row + dim) : 0, high = dim + 1 < dims ? __ldg(row + dim + 1) : 0;
    return low | high << 16;
}

/* Scores of keys 8 n .. 8 n + 7, as ptx_mma's c: softcapped, hidden ones -inf. */
template <bool CAPPED>
static __device__ __forceinline__ void again_scores(float (&S)[1][1][4], const consumer *x, const again_source *from,
                                                    const mask_rows *words, int32_t n) {
    const int32_t lane = (int32_t)thread_again() % 32, g = lane / 4, t = lane % 4, key = 8 * n + g;
    const uint16_t *keys = from->key + key * from->key_stride;
    const int32_t dims0 = from->query_dims[0], dims1 = from->query_dims[1], dims = key < from->keys ? x->p->head_dim : 0;
    float(&s)[4] = S[0][0];
    s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll 2
    for (int32_t i = 0; i < D; i += 16) {
        const int32_t d = i + 2 * t;
        const uint32_t a[4] = {again_pair(from->query[0], d, dims0), again_pair(from->query[1], d, dims1),
                               again_pair(from->query[0], d + 8, dims0), again_pair(from->query[1], d + 8, dims1)};
        ptx_mma(s, a, again_pair(keys, d, dims), again_pair(keys, d + 8, dims));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] = x->p->scale < 0.0f ? -s[i] : s[i];
    }
    if (CAPPED) {
        softmax_cap(S, x->launch->capping);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int bit = n / HALF_BLOCKS * 16 + i / 2 * 8 + n % HALF_BLOCKS;
        s[i] = (i % 2 ? words->odd : words->even) >> bit & 1 ? s[i] : -INFINITY;
    }
}

/* Bases rise to the highest score, or by what l has grown, and l, as it was before the step, follows. A row's first base was found in
 * the team's scores, which may be rounded otherwise: it is set anew. Coarse bases do not grow, since weights that were cut could not be
 * told from others afterwards; and what a step hides from a row does not move it, for no_skip comes here with more steps. */
static __device__ __forceinline__ void again_move(forward_rows *rows, const float (&highest)[2], float c) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = highest[r], l = rows->l_before[r];
#pragma unroll
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
            x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lanes));
            l = fmaxf(l, __shfl_xor_sync(ALL_LANES, l, lanes));
        }
        const float base = rows->base[r];
        const bool sees = x > -INFINITY, is_first = sees && l == 0.0f;
        const float grown = sees && !lazy_is_coarse(base) ? base + (float)((__float_as_int(l) >> 23) - 127) : base;
        const bool beats = fmaxf(fmaf(x, c, -base), grown - base) > SOFTMAX_SLACK;
        const float next = is_first ? __fmul_rd(x, c) : fmaxf(__fmul_rd(x, c), grown);
        rows->rescale[r] = beats && !is_first ? ptx_exp2(base - next) : 1.0f;
        rows->base[r] = beats || is_first ? next : base;
        rows->l[r] = rows->l_before[r] * rows->rescale[r];
    }
    rows->is_coarse = lazy_are_coarse(rows);
}

/* P and l of the step anew. words: of its visible halves, of full ones all ones. */
template <bool CAPPED>
static __device__ __forceinline__ void weigh_again(const consumer *x, forward_rows *rows, forward_weights &P, uint32_t what) {
    const uint32_t classes = step_classes(what, x->team);
    const bool is_narrow = HALVES == 2 && !is_wide(classes);
    const int32_t blocks = is_narrow ? HALF_BLOCKS : KEY_BLOCKS;
    const again_source from = again_source_of(x, key_of(what, is_narrow && sees_second(classes) ? 1 : 0));
    const float c = CAPPED ? 1.0f : x->launch->factor;
    float S[1][1][4], highest[2] = {-INFINITY, -INFINITY};
    const mask_rows words = has_partial(classes) ? rows->words : mask_rows{ALL_LANES, ALL_LANES};
#pragma unroll 1
    for (int32_t i = 0; i < 2 * blocks; i++) {
        const int32_t n = i % blocks;
        again_scores<CAPPED>(S, x, &from, &words, n);
        if (i < blocks) {
            highest[0] = fmaxf(highest[0], fmaxf(S[0][0][0], S[0][0][1]));
            highest[1] = fmaxf(highest[1], fmaxf(S[0][0][2], S[0][0][3]));
            continue;
        }
        if (i == blocks) {
            again_move(rows, highest, c);
        }
        softmax_cut(S, rows->base, c);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float w0 = ptx_exp2(S[0][0][2 * r]), w1 = ptx_exp2(S[0][0][2 * r + 1]);
            rows->l[r] += w0 + w1;
#pragma unroll
            for (int k = 0; k < KEY_BLOCKS; k++) {
                P[2 * k + r] = k == n ? fm_half2_from(w0, w1) : P[2 * k + r];
            }
        }
    }
}

#endif

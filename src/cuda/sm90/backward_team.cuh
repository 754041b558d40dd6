/* What a team of the backward kernel does in a step: its products, its turns, the derivative between them, and the way out of dQ, dK and
 * dV. backward.cu puts them in order. */
#ifndef FM_CUDA_SM90_BACKWARD_TEAM_CUH
#define FM_CUDA_SM90_BACKWARD_TEAM_CUH

#include "cuda/ptx/bar.cuh"
#include "cuda/sm90/backward_products.cuh"

enum {
    TURN_BARRIER = 1, /* + team */
    TEAM_BARRIER = 3  /* + team */
};

/* ---- products ---- */

/* A team's dims of dQ: [64 rows x QUERY_DIMS] = dS of both lines times K of both. */
static __device__ __forceinline__ void multiply_keys(float (&x)[QUERY_SUMS], uint64_t scores, uint64_t keys) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const int a = (k / 4 * BOX_BYTES + k % 4 * 32) / 16, b = (k / 4 * LINE_BYTES + k % 4 * 16 * 128) / 16;
        if (k == 0) {
            ptx_wgmma_ss<0, 0, 1>(x, scores, keys);
        } else {
            ptx_wgmma_ss<1, 0, 1>(x, scores + a, keys + b);
        }
    }
}

/* ---- a consumer ---- */

/* Intervals of the thread's two keys. */
typedef struct key_bounds {
    int2 of[2];
} key_bounds;

typedef struct consumer {
    const fm_cuda_backward_problem *bp;
    backward_shared *s;
    uint32_t origin;        /* of descriptors */
    uint32_t stage, parity; /* in use, and of its barriers' phase */
    uint32_t steps;         /* with work, so far: uses of dS */
    uint32_t items, loads;
    key_bounds bounds; /* where they are kept */
} consumer;

/* ---- barriers ---- */

/* By comparison: a remainder by 3 would be one more chain of operations in every turn. */
static __device__ __forceinline__ void next_stage(consumer *x) {
    const bool wraps = x->stage == STAGES - 1;
    x->stage = wraps ? 0 : x->stage + 1;
    x->parity ^= wraps;
}

/* Until Q, dO and their rows' terms have come. */
static __device__ __forceinline__ void wait_stage(const consumer *x) {
    wait(&x->s->query_full[x->stage], x->parity);
    wait(&x->s->grad_output_full[x->stage], x->parity);
}

template <int TEAM> static __device__ __forceinline__ void take_turn(void) { ptx_bar_sync(TURN_BARRIER + TEAM, CONSUMERS); }
template <int TEAM> static __device__ __forceinline__ void pass_turn(void) { ptx_bar_arrive(TURN_BARRIER + 1 - TEAM, CONSUMERS); }

/* Before dS of step n is written, dQ of step n - 2 must be done in both teams. Team 0 knows it from the other's dS of step n - 1, which
 * was written later; team 1, whose dQ is one step less late, is told. */
template <int TEAM> static __device__ __forceinline__ void wait_grad_score_free(const consumer *x) {
    if (TEAM == 0) {
        wait(&x->s->grad_score_full[(x->steps - 1) % 2], (x->steps - 1) / 2);
    } else {
        wait(&x->s->grad_score_empty[x->steps % 2], x->steps / 2 + 1);
    }
}

/* ---- the mask ---- */

/* The thread's first key in the item. */
template <int TEAM> static __device__ __forceinline__ int32_t first_key(const consumer *x) {
    const uint32_t thread = thread_again() % 128;
    return x->s->item[x->items % ITEM_PLACES].group * KEYS + (int32_t)(TEAM * BOX + thread / 32 * 16 + thread % 32 / 4);
}

/* One interval a key, the same for all query heads of an item, is kept in registers: where there are turns adders empty L1 with each
 * that they wait for (docs/kernels.md), so that a partial step would ask L2. */
static __device__ __forceinline__ bool bounds_are_kept(const fm_cuda_problem *p) {
    return p->plan.intervals == 1 && p->plan.stripe_slot == NULL && (p->plan.heads == 1 || p->plan.heads == p->heads_kv);
}
template <int TEAM> static __device__ __forceinline__ void keep_bounds(consumer *x) {
    const fm_device_plan *plan = &x->bp->forward.plan;
    if (bounds_are_kept(&x->bp->forward)) {
        const int64_t at = (int64_t)x->s->step[x->stage].plane * plan->bounds_stride + first_key<TEAM>(x);
        const int2 *from = reinterpret_cast<const int2 *>(plan->bounds + at);
        x->bounds = key_bounds{{__ldg(from), __ldg(from + 8)}};
    }
}
static __device__ __forceinline__ visible_rows find_visible_within(const key_bounds *bounds, int32_t row) {
    visible_rows visible;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        visible.of[k] = rows_between(bounds->of[k].x - row, bounds->of[k].y - row);
    }
    return visible;
}

/* Which pairs of the step in use the thread's keys see; of full steps it is not asked. */
template <int TEAM> static __device__ __forceinline__ visible_rows find_visible_in_step(const consumer *x, uint32_t what) {
    visible_rows visible = {{0, 0}};
    if (!step_half_is_full(what, TEAM)) {
        const fm_cuda_problem *p = &x->bp->forward;
        const int32_t row = step_tile(what) * ROWS + (int32_t)(thread_again() % 4 * 2);
        visible = bounds_are_kept(p) ? find_visible_within(&x->bounds, row)
                                     : find_visible(p, x->s->step[x->stage].plane, row, first_key<TEAM>(x));
    }
    return visible;
}

/* ---- a step ---- */

/* What a step leaves to the next: operands of dV and dK. */
typedef struct last_step {
    uint32_t weights[PAIRS], grads[PAIRS];
    bool exists;    /* of this item */
    bool has_query; /* dQ that goes with its products is of a step of this item */
} last_step;

/* From S and dP, both still being computed, to pairs of P and of dS, the latter in shared memory too. The branches between the
 * exponentials and the wait for dP keep ptxas from moving those below it. */
template <int TEAM, bool SUMS_QUERY, bool CAPPED>
static __device__ __forceinline__ void differentiate(const consumer *x, uint32_t what, visible_rows visible, float (&S)[SCORES],
                                                     float (&dP)[SCORES], last_step *last) {
    const fm_cuda_problem *p = &x->bp->forward;
    backward_shared *s = x->s;
    const uint32_t stage = x->stage, thread = thread_again() % 128;
    const float *lse2 = s->lse2[stage] + thread % 4 * 2, *delta = s->delta[stage] + thread % 4 * 2;
    const bool is_full = step_half_is_full(what, TEAM);
    uint32_t slopes[PAIRS]; /* with softcap */
    ptx_wgmma_wait<1>();
    ptx_wgmma_ready(S);
    if (CAPPED) {
        weigh_capped(S, last->weights, slopes, lse2, p->scale, p->softcap);
        if (!is_full) {
            hide_pairs(last->weights, visible);
        }
    } else {
        weigh_plain(S, lse2, p->scale * SOFTMAX_LOG2E);
        if (!is_full) {
            hide_scores(S, visible);
        }
        pack_weights(S, last->weights);
        ptx_wgmma_ready(S);
    }
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(dP);
    /* Here, not behind the wait below: from there dS would wait for it. */
    const uint32_t address = grad_score_address(s->grad_score[x->steps % 2] + TEAM * BOX_BYTES);
    if (CAPPED) {
        unpack_weights(S, slopes);
    }
    subtract_delta(dP, delta);
    if (!CAPPED && !is_full) { /* hidden V, or dO of an empty row, may be so large that dP is not finite */
        hide_scores(dP, visible);
    }
    grad_scores(S, dP, last->grads);
    if (CAPPED && !is_full) { /* as pairs: hiding dP as f32 takes too many registers (C7512) */
        hide_pairs(last->grads, visible);
    }
    if (SUMS_QUERY) {
        wait_grad_score_free<TEAM>(x);
        store_grad_scores(address, last->grads);
        arrive(&s->grad_score_full[x->steps % 2]);
    }
}

/* S and dP of the stage in use, as two groups in flight. Q and dO have come. */
template <int TEAM> static __device__ __forceinline__ void start_scores(const consumer *x, float (&S)[SCORES]) {
    ptx_wgmma_fence();
    multiply_dims(S, descriptor_at(x->origin, SHARED_AT(key, 0) + TEAM * LINE_BYTES),
                  descriptor_at(x->origin, SHARED_AT(query, x->stage)));
    ptx_wgmma_commit();
}
template <int TEAM> static __device__ __forceinline__ void start_grads(const consumer *x, float (&dP)[SCORES]) {
    ptx_wgmma_fence();
    multiply_dims(dP, descriptor_at(x->origin, SHARED_AT(value, 0) + TEAM * LINE_BYTES),
                  descriptor_at(x->origin, SHARED_AT(grad_output, x->stage)));
    ptx_wgmma_commit();
}

/* dQ of a team's dims from dS of step `step`. */
template <int TEAM>
static __device__ __forceinline__ void start_grad_query(const consumer *x, float (&dQ)[QUERY_SUMS], uint32_t step) {
    constexpr int DIMS_AT = D == 64 ? TEAM * QUERY_DIMS * 2 : TEAM * BOX_BYTES;
    multiply_keys(dQ, descriptor_at(x->origin, SHARED_AT(grad_score, step % 2)),
                  descriptor_at(x->origin, SHARED_AT(key, 0) + DIMS_AT));
    ptx_wgmma_commit();
}

/* Until the staging area may take dQ of step `step`. Asked ahead of the wait for dQ, the answer costs nothing. */
template <int TEAM> static __device__ __forceinline__ void wait_staged_free(const consumer *x, uint32_t step) {
    wait(&x->s->staged_empty[TEAM], step + 1);
}

template <int TEAM> static __device__ __forceinline__ float2 *staging_place(const consumer *x) {
    return staging_place_in(x->s->staged[TEAM][thread_again() % 128 / 32]);
}

/* dQ of step `step` to an adder, through the staging area, which is free. place: the thread's, found ahead of the wait for dQ. */
template <int TEAM>
static __device__ __forceinline__ void send_grad_query(const consumer *x, const float (&dQ)[QUERY_SUMS], uint32_t step,
                                                       float2 *place) {
    stage_grad_query(place, dQ);
    arrive(&x->s->staged_full[TEAM][step % STAGED_PHASES]);
}

/* dQ of step `step`, if it is of one: dS has been used, and the sum gets it. place: as in send_grad_query. */
template <int TEAM>
static __device__ __forceinline__ void pass_grad_query(const consumer *x, const float (&dQ)[QUERY_SUMS], uint32_t step,
                                                       const last_step *last, float2 *place) {
    if (last->has_query) {
        if (TEAM == 0) {
            arrive(&x->s->grad_score_empty[step % 2]);
        }
        send_grad_query<TEAM>(x, dQ, step, place);
    }
}

/* One gradient of a line's keys from the warp's 16. */
template <int TEAM>
static __device__ __forceinline__ void store_sums(const consumer *x, const fm_cuda_tensor *tensor, bool is_f32, int32_t dim,
                                                  const float (&sums)[1][D / 8][4], float factor) {
    if (tensor->data == NULL) {
        return;
    }
    const backward_item *item = &x->s->item[x->items % ITEM_PLACES];
    const int warp = (int)(thread_again() % 128 / 32);
    const store_target target = {tensor,
                                 item->batch * tensor->stride[0] + item->head * tensor->stride[2],
                                 item->group * KEYS + TEAM * BOX + warp * 16,
                                 x->bp->forward.columns,
                                 dim,
                                 is_f32};
    store_keys(&target, sums, factor, x->s->staged[TEAM][warp], (int)threadIdx.x % 32);
}

#endif

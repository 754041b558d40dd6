/* What the two teams of the backward kernel for head dims above 128 do in a step: from S to P, from dP to dS, dQ. backward_wide.cu puts it
 * in order. */
#ifndef FM_CUDA_SM90_BACKWARD_WIDE_TEAM_CUH
#define FM_CUDA_SM90_BACKWARD_WIDE_TEAM_CUH

#include "cuda/ptx/bar.cuh"
#include "cuda/sm90/backward_products.cuh"

enum { KEY_TEAM_BARRIER = 1 };

typedef struct consumer {
    const fm_cuda_backward_problem *bp;
    backward_shared *s;
    uint32_t origin; /* of descriptors */
    uint32_t uses;   /* of stages, so far */
    uint32_t steps;  /* with work, so far: uses of scores and staging */
    uint32_t items, loads;
} consumer;

/* ---- barriers ---- */

/* In this block, then in the other: for what the copy engine writes in both, or the other block copies to this one. */
static __device__ __forceinline__ void arrive_both(uint64_t *barrier) {
    if (thread_again() % 32 == 0) {
        const uint32_t own = ptx_shared_address(barrier);
        ptx_mbarrier_arrive(own);
        ptx_cluster_mbarrier_arrive(ptx_cluster_peer(own, ptx_cluster_rank()));
    }
}

static __device__ __forceinline__ uint32_t stage_of(const consumer *x) { return x->uses % STAGES; }
static __device__ __forceinline__ uint32_t grad_stage_of(const consumer *x) { return x->uses % GRAD_STAGES; }
static __device__ __forceinline__ void wait_query(const consumer *x) { wait(&x->s->query_full[stage_of(x)], x->uses / STAGES); }
static __device__ __forceinline__ void wait_grad_output(const consumer *x) {
    wait(&x->s->grad_output_full[grad_stage_of(x)], x->uses / GRAD_STAGES);
}
static __device__ __forceinline__ void leave_query_stage(const consumer *x, uint32_t stage) {
    const uint32_t own = ptx_shared_address(&x->s->query_empty[stage]);
    ptx_mbarrier_arrive(own);
    if (thread_again() % 32 == 0) {
        ptx_cluster_mbarrier_arrive(ptx_cluster_peer(own, ptx_cluster_rank()));
    }
}
static __device__ __forceinline__ void leave_grad_output_stage(const consumer *x, uint32_t stage) {
    arrive_both(&x->s->grad_output_empty[stage]);
}
static __device__ __forceinline__ void leave_query(const consumer *x) { leave_query_stage(x, stage_of(x)); }
static __device__ __forceinline__ void leave_grad_output(const consumer *x) { leave_grad_output_stage(x, grad_stage_of(x)); }

/* ---- products ---- */

static __device__ __forceinline__ void start_scores(const consumer *x, float (&S)[SCORES]) {
    ptx_wgmma_fence();
    multiply_dims(S, descriptor_at(x->origin, SHARED_AT(key, 0)), descriptor_at(x->origin, SHARED_AT(query, stage_of(x))));
    ptx_wgmma_commit();
}
static __device__ __forceinline__ void start_grads(const consumer *x, float (&dP)[SCORES]) {
    ptx_wgmma_fence();
    multiply_dims(dP, descriptor_at(x->origin, SHARED_AT(value, 0)),
                  descriptor_at(x->origin, SHARED_AT(grad_output, grad_stage_of(x))));
    ptx_wgmma_commit();
}

/* [64 rows x the team's dims] = dS of both lines times K of both. */
template <int TEAM, int N> static __device__ __forceinline__ void start_grad_query(const consumer *x, float (&dQ)[N]) {
    const int dim = first_query_dim(TEAM, (int)uniform(ptx_cluster_rank()));
    const uint32_t within = (uint32_t)dim % BOX * 2;
    const uint64_t own = descriptor_at(x->origin, SHARED_AT(key, dim / BOX * BOX_BYTES) + within),
                   other = descriptor_at(x->origin, SHARED_AT(other_key, TEAM) + within),
                   scores = descriptor_at(x->origin, SHARED_AT(score, 0));
    ptx_wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const int a = (k / 4 * BOX_BYTES + k % 4 * 32) / 16, b = k % 4 * 16 * 128 / 16;
        if (k == 0) {
            ptx_wgmma_ss<0, 0, 1>(dQ, scores, own);
        } else {
            ptx_wgmma_ss<1, 0, 1>(dQ, scores + a, (k < 4 ? own : other) + b);
        }
    }
    ptx_wgmma_commit();
}

/* dQ of the step in use, complete, to an adder; the scores that it was made of are free. */
template <int TEAM, int N> static __device__ __forceinline__ void pass_grad_query(const consumer *x, const float (&dQ)[N]) {
    arrive_both(&x->s->score_empty);
    wait(&x->s->staged_empty[TEAM], x->steps + 1);
    stage_grad_query(staging_place_in(x->s->staged[TEAM][thread_again() % 128 / 32]), dQ);
    arrive(&x->s->staged_full[TEAM][x->steps % STAGED_PHASES]);
}

/* ---- scores ---- */

/* Which pairs of the step in use the thread's keys see; of full steps it is not asked. */
static __device__ __forceinline__ bool line_is_full(const consumer *x) {
    return uniform(step_half_is_full(x->s->step[stage_of(x)].what, (int)ptx_cluster_rank())) != 0;
}
static __device__ __forceinline__ visible_rows find_visible_in_step(const consumer *x) {
    visible_rows visible = {{0, 0}};
    if (!line_is_full(x)) {
        const uint32_t thread = thread_again() % 128;
        const backward_step *step = &x->s->step[stage_of(x)];
        visible = find_visible(&x->bp->forward, step->plane, step_tile(step->what) * ROWS + (int32_t)(thread % 4 * 2),
                               x->s->item[x->items % ITEM_PLACES].group * KEYS + (int32_t)ptx_cluster_rank() * BOX +
                                   (int32_t)(thread / 32 * 16 + thread % 32 / 4));
    }
    return visible;
}

/* From S to P: pairs for dV, and for the other team in shared memory, where with softcap it gets P (1 - tanh^2). Q is done with. */
template <bool CAPPED>
static __device__ __forceinline__ void weigh(const consumer *x, visible_rows visible, float (&S)[SCORES],
                                             uint32_t (&weights)[PAIRS]) {
    const fm_cuda_problem *p = &x->bp->forward;
    backward_shared *s = x->s;
    const float *lse2 = s->lse2[stage_of(x)] + thread_again() % 4 * 2;
    const bool is_full = line_is_full(x);
    uint32_t slopes[PAIRS];
    if (CAPPED) {
        weigh_capped(S, weights, slopes, lse2, p->scale, p->softcap);
        if (!is_full) {
            hide_pairs(weights, visible);
            hide_pairs(slopes, visible);
        }
    } else {
        weigh_plain(S, lse2, p->scale * SOFTMAX_LOG2E);
        if (!is_full) {
            hide_scores(S, visible);
        }
        pack_weights(S, weights);
    }
    leave_query(x);
    wait(&s->score_empty, x->steps + 1);
    turn_pairs(grad_score_address(s->score[0]), CAPPED ? slopes : weights);
    __syncwarp();
    arrive(&s->score_full);
}

/* P of the thread's pairs, as the other team's thread of the same place had them. */
static __device__ __forceinline__ void load_weights(uint32_t address, uint32_t (&pairs)[PAIRS]) {
#pragma unroll
    for (int i = 0; i < ROW_BLOCKS / 2; i++) {
        ptx_ldmatrix_transposed(reinterpret_cast<uint32_t(&)[4]>(pairs[4 * i]), address + i * 16 * 128);
    }
}

/* dS = P (dP - delta), and 0 where P is 0: of hidden pairs, whose V, or dO of an empty row, may be so large that dP is not finite. */
static __device__ __forceinline__ void multiply_weights(const float (&dP)[SCORES], const uint32_t (&weights)[PAIRS],
                                                        uint32_t (&grads)[PAIRS]) {
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const fm_half *P = reinterpret_cast<const fm_half *>(&weights[i]);
        grads[i] = fm_half2_from(fm_half_to(P[0]) * dP[2 * i], fm_half_to(P[1]) * dP[2 * i + 1]) & fm_half2_is_not_0(weights[i]);
    }
}

/* From dP, still being computed, and the other team's P to dS: pairs for dK, and for dQ in shared memory of both blocks. A warp of this
 * team writes where it has read what the same warp of the other team wrote. */
template <bool SUMS_QUERY>
static __device__ __forceinline__ void differentiate(const consumer *x, float (&dP)[SCORES], uint32_t (&grads)[PAIRS]) {
    backward_shared *s = x->s;
    uint32_t weights[PAIRS];
    wait_query(x); /* delta */
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(dP);
    leave_grad_output(x);
    subtract_delta(dP, s->delta[stage_of(x)] + thread_again() % 4 * 2);
    const uint32_t address = grad_score_address(s->score[0]);
    wait(&s->score_full, x->steps);
    load_weights(address, weights);
    multiply_weights(dP, weights, grads);
    __syncwarp();
    if (!SUMS_QUERY) {
        arrive(&s->score_empty);
        return;
    }
    store_grad_scores(address, grads);
    ptx_bar_sync(KEY_TEAM_BARRIER, TEAM_THREADS);
    if (thread_again() % 128 == 0) {
        const uint32_t full = ptx_shared_address(&s->grad_score_full), rank = ptx_cluster_rank();
        ptx_mbarrier_arrive_expect(full, BOX_BYTES);
        ptx_cluster_copy(ptx_cluster_peer(ptx_shared_address(s->score[1]), rank), ptx_shared_address(s->score[0]), BOX_BYTES,
                         ptx_cluster_peer(full, rank));
    }
    __syncwarp();
}

/* One gradient of the block's line from the warp's 16 keys. */
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
                                 item->group * KEYS + (int32_t)ptx_cluster_rank() * BOX + warp * 16,
                                 x->bp->forward.columns,
                                 dim,
                                 is_f32};
    store_keys(&target, sums, factor, x->s->staged[TEAM][warp], (int)(thread_again() % 32));
}

#endif

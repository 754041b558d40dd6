/* Attention backward for Hopper (sm_90a) and head dims above 128: dK, dV of a group of keys, and its part of dQ, over the visible tiles of
 * its columns.
 *
 * Tiles    An item is a group of the plan, 128 keys of one key head, for a cluster of two blocks: block r has line r, 64 keys, whose dK and
 *          dV fill the registers of two warpgroups. A step is a tile of 64 rows that either line sees, for one query head of the keys after
 *          another; both blocks go through the same steps. Scores lie transposed, keys x rows, as in backward.cu:
 *            S^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dS^T Q   dQ = dS K
 *          Blocks exchange dS, 8 KB a step, and each makes half of the dims of dQ over the keys of both: half as much goes to dQ's sum.
 * Roles    Two teams (warpgroups) of consumers: team 0 has S, P and dV, team 1 dP, dS and dK; each makes its dims of dQ. One warp sends:
 *          Q comes from block 0 for both, dO from block 1. Three take dQ to its sum (backward_adder.cuh).
 * Barriers In shared memory (backward_wide_shared.cuh): full and empty of the stages of Q and of dO and of an item's keys; score_full (P is
 *          there), grad_score_full (dS of both lines), score_empty; for adders note_full, staged_full, staged_empty. Consumers arrive in
 *          both blocks for what the other block writes. Named: team 1's own, before it copies dS.
 * Memory   D = 256: K and V 64 KB, K of the other line 16 KB, two stages of Q 64 KB, dO 32 KB, dS (P before it) 16 KB, dQ on its way out
 *          32 KB, 1 KB of row terms. Registers of a consumer: dV or dK 128, S or dP 32, dQ 32, pairs of P or dS 16, of 240.
 * Time     A team's products run under the other's scores; what a step of the other block needs is asked for last:
 *            team 0 | P1    | dV1   S2   dQ1 | P2    | dV2   S3   dQ2 |
 *            team 1 | dP1    | dS1 | dK1 dQ1 dP2 | dS2 | dK2 dQ2 dP3 |
 *          dO has one place (D 192: two): the next comes while dK, S and dQ run.
 * Masks    Full tiles run no mask code. In others a thread of team 0 turns the intervals of its keys into 64 bits a key, while S is
 *          computed, and hidden P become 0 after the exponential; dS is 0 where P is. Hidden pairs add exact zeros, so no_skip gives the
 *          same dK and dV. */
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/sm90/backward_adder.cuh"
#include "cuda/sm90/backward_wide_producer.cuh"
#include "cuda/sm90/backward_wide_team.cuh"

enum { THREADS = CONSUMERS + TEAM_THREADS, CONSUMER_WARPS = CONSUMERS / 32, TEAM_WARPS = CONSUMER_WARPS / TEAMS };
enum { VALUE_REGISTERS = 224, KEY_REGISTERS = 232, PRODUCER_REGISTERS = 48 };
static_assert(TEAM_THREADS * (PRODUCER_REGISTERS + VALUE_REGISTERS + KEY_REGISTERS) <= 65536 / THREADS / 8 * 8 * THREADS,
              "more registers than the launch got would hang in setmaxnreg");

/* dQ of the step in use, once dS of both lines is there: starts it. */
template <int TEAM, int N> static __device__ __forceinline__ void start_grad_query_in_turn(const consumer *x, float (&dQ)[N]) {
    wait(&x->s->grad_score_full, x->steps);
    start_grad_query<TEAM>(x, dQ);
}

/* All steps of an item: dV. Nothing is in flight from one round of the loop to the next. */
template <bool SUMS_QUERY, bool CAPPED>
static __device__ __forceinline__ void make_grad_value(consumer *x, int32_t left, float (&dV)[SUMS]) {
    float S[SCORES];
    float dQ[QUERY_DIMS / 2];
    uint32_t weights[PAIRS];
    start_scores(x, S);
    visible_rows visible = find_visible_in_step(x);
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(S);
#pragma unroll 1
    while (--left > 0) {
        weigh<CAPPED>(x, visible, S, weights);
        const uint32_t grad_stage = grad_stage_of(x);
        wait_grad_output(x);
        ptx_wgmma_fence();
        multiply_rows(dV, weights, descriptor_at(x->origin, SHARED_AT(grad_output, grad_stage)));
        ptx_wgmma_commit();
        x->uses++;
        wait_query(x);
        start_scores(x, S);
        visible = find_visible_in_step(x);
        ptx_wgmma_wait<1>();
        ptx_wgmma_ready(dV);
        leave_grad_output_stage(x, grad_stage);
        if (SUMS_QUERY) {
            start_grad_query_in_turn<VALUE_TEAM>(x, dQ);
        }
        ptx_wgmma_wait<0>();
        ptx_wgmma_ready(S);
        if (SUMS_QUERY) {
            ptx_wgmma_ready(dQ);
            pass_grad_query<VALUE_TEAM>(x, dQ);
        }
        x->steps++;
    }
    weigh<CAPPED>(x, visible, S, weights);
    wait_grad_output(x);
    ptx_wgmma_fence();
    multiply_rows(dV, weights, descriptor_at(x->origin, SHARED_AT(grad_output, grad_stage_of(x))));
    ptx_wgmma_commit();
    if (SUMS_QUERY) {
        start_grad_query_in_turn<VALUE_TEAM>(x, dQ);
    }
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(dV);
    leave_grad_output(x);
    if (SUMS_QUERY) {
        ptx_wgmma_ready(dQ);
        pass_grad_query<VALUE_TEAM>(x, dQ);
    }
}

/* All steps of an item: dK. Nothing is in flight from one round of the loop to the next. */
template <bool SUMS_QUERY> static __device__ __forceinline__ void make_grad_key(consumer *x, int32_t left, float (&dK)[SUMS]) {
    float dP[SCORES];
    float dQ[LAST_QUERY_DIMS / 2];
    uint32_t grads[PAIRS];
    wait_grad_output(x);
    start_grads(x, dP);
    differentiate<SUMS_QUERY>(x, dP, grads);
#pragma unroll 1
    while (--left > 0) {
        const uint32_t stage = stage_of(x);
        ptx_wgmma_fence();
        multiply_rows(dK, grads, descriptor_at(x->origin, SHARED_AT(query, stage)));
        ptx_wgmma_commit();
        if (SUMS_QUERY) {
            start_grad_query_in_turn<KEY_TEAM>(x, dQ);
        }
        x->uses++;
        ptx_wgmma_wait<SUMS_QUERY ? 1 : 0>(); /* dK: beside its operand ptxas 13.0 would lack registers for dP */
        ptx_wgmma_ready(dK);
        leave_query_stage(x, stage);
        wait_grad_output(x);
        start_grads(x, dP);
        if (SUMS_QUERY) {
            ptx_wgmma_wait<1>();
            ptx_wgmma_ready(dQ);
            pass_grad_query<KEY_TEAM>(x, dQ);
        }
        x->steps++;
        differentiate<SUMS_QUERY>(x, dP, grads);
    }
    ptx_wgmma_fence();
    multiply_rows(dK, grads, descriptor_at(x->origin, SHARED_AT(query, stage_of(x))));
    ptx_wgmma_commit();
    if (SUMS_QUERY) {
        start_grad_query_in_turn<KEY_TEAM>(x, dQ);
    }
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(dK);
    leave_query(x);
    if (SUMS_QUERY) {
        ptx_wgmma_ready(dQ);
        pass_grad_query<KEY_TEAM>(x, dQ);
    }
}

template <int TEAM, bool SUMS_QUERY, bool CAPPED>
static __device__ __forceinline__ void consume(const fm_cuda_backward_problem *bp, backward_shared *s) {
    const fm_cuda_problem *p = &bp->forward;
    consumer x = {bp, s, descriptor_origin(s), 0, 0, 0, 0};
#pragma unroll 1
    for (;; x.items++) {
        wait_query(&x);
        const int32_t steps = (int32_t)uniform((uint32_t)s->item[x.items % ITEM_PLACES].steps);
        if (steps == ITEM_END) {
            break;
        }
        float sums[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            sums[i] = 0.0f;
        }
        if (steps > 0) {
            wait(&s->key_full, x.loads);
            if (TEAM == VALUE_TEAM) {
                make_grad_value<SUMS_QUERY, CAPPED>(&x, steps, sums);
            } else {
                make_grad_key<SUMS_QUERY>(&x, steps, sums);
            }
            arrive(&s->key_empty); /* the next keys come while these are stored */
            x.steps++;
            x.loads++;
        } else {
            wait_grad_output(&x);
            leave_query(&x);
            leave_grad_output(&x);
        }
        x.uses++;
        if (SUMS_QUERY && stores_by_elements(bp)) { /* by way of the staging area, which the last dQ has left then */
            wait(&s->staged_empty[TEAM], x.steps - 1);
            __syncwarp();
        }
        if (TEAM == VALUE_TEAM) {
            store_sums<TEAM>(&x, &bp->grad_value, bp->grad_value_is_f32, p->head_dim_v,
                             reinterpret_cast<float(&)[1][D / 8][4]>(sums), 1.0f);
        } else {
            store_sums<TEAM>(&x, &bp->grad_key, bp->grad_key_is_f32, p->head_dim, reinterpret_cast<float(&)[1][D / 8][4]>(sums),
                             p->scale);
        }
    }
}

/* One thread. */
static __device__ __forceinline__ void make_barriers(backward_shared *s, bool sums_query) {
    ptx_mbarrier_init(ptx_shared_address(&s->key_full), 1);
    ptx_mbarrier_init(ptx_shared_address(&s->key_empty), CONSUMER_WARPS);
    for (int i = 0; i < STAGES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&s->query_full[i]), 1);
        ptx_mbarrier_init(ptx_shared_address(&s->query_empty[i]), CONSUMERS + CONSUMER_WARPS);
    }
    for (int i = 0; i < GRAD_STAGES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&s->grad_output_full[i]), 1);
        ptx_mbarrier_init(ptx_shared_address(&s->grad_output_empty[i]), BLOCKS * CONSUMER_WARPS);
    }
    ptx_mbarrier_init(ptx_shared_address(&s->score_full), TEAM_WARPS);
    ptx_mbarrier_init(ptx_shared_address(&s->grad_score_full), 1);
    ptx_mbarrier_init(ptx_shared_address(&s->score_empty), sums_query ? BLOCKS * CONSUMER_WARPS : TEAM_WARPS);
    for (int i = 0; i < TEAMS; i++) {
        for (int phase = 0; phase < STAGED_PHASES; phase++) {
            ptx_mbarrier_init(ptx_shared_address(&s->staged_full[i][phase]), TEAM_WARPS);
        }
        ptx_mbarrier_init(ptx_shared_address(&s->staged_empty[i]), 1);
    }
    for (int i = 0; i < NOTES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&s->note_full[i]), 1);
    }
    for (int i = 0; i < ITEM_PLACES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&s->number_full[i]), 1);
    }
    s->sending.notes = 0;
    ptx_mbarrier_fence_init();
}

template <bool SUMS_QUERY, bool CAPPED>
static __global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS, 1)
    backward_wide_kernel(const __grid_constant__ fm_cuda_backward_problem bp,
                         const __grid_constant__ fm_sm90_backward_maps maps) {
    extern __shared__ __align__(1024) uint8_t memory[]; /* the only shared memory, so it starts on a swizzle boundary */
    backward_shared *s = reinterpret_cast<backward_shared *>(memory);
    const uint32_t team = uniform(threadIdx.x / TEAM_THREADS);
    if (threadIdx.x == 0) {
        if (ptx_shared_address(memory) % 1024 != 0) {
            __trap(); /* an address rounded up would cost the senders registers that they lack */
        }
        make_barriers(s, SUMS_QUERY);
    }
    ptx_cluster_sync();
    if (team == TEAMS) {
        ptx_registers_give<PRODUCER_REGISTERS>();
        const uint32_t warp = uniform(threadIdx.x / 32) - CONSUMERS / 32;
        if (warp == 0) {
            producer x = {&bp, &maps, s, 0, 0, 0, false};
            const fm_cuda_problem *p = &bp.forward;
            produce(&x, (uint32_t)(p->batch * p->heads_kv * p->plan.column_lines.groups));
        } else if (SUMS_QUERY) {
            add_steps(&bp, s, warp - 1);
        }
    } else if (team == VALUE_TEAM) {
        ptx_registers_take<VALUE_REGISTERS>();
        consume<VALUE_TEAM, SUMS_QUERY, CAPPED>(&bp, s);
    } else {
        ptx_registers_take<KEY_REGISTERS>();
        consume<KEY_TEAM, SUMS_QUERY, CAPPED>(&bp, s);
    }
    ptx_cluster_sync(); /* the other block may still arrive at barriers here */
}

extern "C" int FM_VARIANT(fm_sm90_backward)(const fm_sm90_backward_call *call) {
    const fm_cuda_problem *p = &call->problem->forward;
    const int64_t items = (int64_t)p->batch * p->heads_kv * p->plan.column_lines.groups;
    const bool sums = call->problem->grad_query_sum != NULL, capped = p->softcap > 0.0f;
    const void *kernel =
        sums     ? capped ? (const void *)backward_wide_kernel<true, true> : (const void *)backward_wide_kernel<true, false>
            : capped ? (const void *)backward_wide_kernel<false, true>
                 : (const void *)backward_wide_kernel<false, false>;
    void *arguments[] = {const_cast<fm_cuda_backward_problem *>(call->problem), const_cast<fm_sm90_backward_maps *>(&call->maps)};
    const launch_shape shape = {BLOCKS * min(items, max((int64_t)call->processors / BLOCKS, (int64_t)1)), 1, THREADS,
                                sizeof(backward_shared)};
    return launch_kernel(kernel, shape, arguments, call->stream);
}

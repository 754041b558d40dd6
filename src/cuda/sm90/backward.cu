/* Attention backward for Hopper (sm_90a): dK, dV of a group of keys, and its part of dQ, over the visible tiles of its columns.
 *
 * Tiles    An item is a group of the plan, 128 keys of one key head; a step is a tile of 64 rows that either of its lines sees, for one
 *          query head of the keys after another. All scores lie transposed, keys x rows:
 *            S^T = K Q^T   dP^T = V dO^T   dV += P^T dO   dK += dS^T Q   dQ = dS K
 *          so that P^T and dS^T are operands of dV and dK where they lie, in registers, and a thread sees two keys, whose intervals it
 *          looks at once an item (one a key) or twice a partial step.
 * Roles    Two teams (warpgroups) of consumers: team w has line w of the keys in S, dP, dV and dK, and half of the dims of dQ, over the
 *          keys of both. One warp sends: it takes items from a counter, walks their tiles and starts all copies. Three more take dQ of one
 *          step after another to its sum (backward_adder.cuh).
 * Barriers In shared memory (backward_shared.cuh): query_full, grad_output_full, stage_empty of three stages; key_full, key_empty of an
 *          item; grad_score_full (dS of both lines is there), grad_score_empty (team 0 has used it); for adders note_full, staged_full,
 *          staged_empty. Named: the teams' turns, a team.
 * Memory   D = 128: K and V 64 KB, three stages of Q and dO 96 KB, two dS 32 KB, dQ on its way out 32 KB, 1.5 KB of row terms.
 *          Registers of a consumer: dK, dV 2 x 64, S and dP (then dQ) 2 x 32, P and dS as halves 2 x 16, intervals 4, of 240; of
 *          a sender 24.
 * Time     A team's products run under the other's exponentials; the turn passes when dP has been started:
 *            team 0 | dV1 dQ0 dK1 S2 dP2 | exp, dS of 2       | dV2 dQ1 dK2 S3 dP3 | exp, dS of 3       |
 *            team 1 | exp, dS of 1       | dV1 dQ1 dK1 S2 dP2 | exp, dS of 2       | dV2 dQ2 dK2 S3 dP3 |
 *          Team 0 is half a step ahead, so its dQ lags a step: it needs dS of both lines, which exist by then. dQ goes through shared
 *          memory to its f32 sum by bulk copies and additions; finish_grad_query makes rows of it.
 * Masks    Full tiles run no mask code. In others a thread turns the intervals of its keys into 64 bits a key, while S is computed, and
 *          hidden P become 0 after the exponential. Hidden pairs add exact zeros, so no_skip gives the same dK and dV. */
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/sm90/backward_adder.cuh"
#include "cuda/sm90/backward_producer.cuh"
#include "cuda/sm90/backward_team.cuh"

enum { THREADS = CONSUMERS + TEAM_THREADS, CONSUMER_WARPS = CONSUMERS / 32, PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240 };
static_assert(TEAM_THREADS * PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS <= 65536 / THREADS / 8 * 8 * THREADS,
              "more registers than the launch got would hang in setmaxnreg");

/* dV and dQ of the step before (team 0: dQ of the one before that), and dK, which is in flight behind it. Moves x to the step and the
 * stage that come next, which are there then. */
template <int TEAM, bool SUMS_QUERY>
static __device__ __forceinline__ void finish_last_step(consumer *x, float (&dK)[SUMS], float (&dV)[SUMS], last_step *last) {
    constexpr bool LEADS = TEAM == 0;
    backward_shared *s = x->s;
    const uint32_t stage = x->stage, step = LEADS ? x->steps - 1 : x->steps;
    float dQ[QUERY_SUMS];
    ptx_wgmma_fence();
    multiply_rows(dV, last->weights, descriptor_at(x->origin, SHARED_AT(grad_output, stage)));
    ptx_wgmma_commit();
    if (SUMS_QUERY) {
        wait(&s->grad_score_full[step % 2], step / 2);
        ptx_wgmma_fence();
        start_grad_query<TEAM>(x, dQ, step);
    }
    multiply_rows(dK, last->grads, descriptor_at(x->origin, SHARED_AT(query, stage)));
    ptx_wgmma_commit();
    next_stage(x);
    x->steps++;
    wait_stage(x); /* mostly it has come; asked here, the answer costs S and dP nothing */
    if (SUMS_QUERY && last->has_query) {
        wait_staged_free<TEAM>(x, step);
    }
    float2 *place = staging_place<TEAM>(x);
    ptx_wgmma_wait<SUMS_QUERY ? 1 : 0>(); /* dV and dQ; without dQ, ptxas 13.0 lacks registers for dK in flight (C7512) */
    ptx_wgmma_ready(dV);
    if (SUMS_QUERY) {
        ptx_wgmma_ready(dQ);
        pass_grad_query<TEAM>(x, dQ, step, last, place);
        last->has_query = true;
    }
}

/* What the step before left, then S and dP of this one. The first step of an item is in the same code, which with one of its own
 * would crowd the instruction cache. */
template <int TEAM, bool SUMS_QUERY, bool CAPPED>
static __device__ __forceinline__ void next_step(consumer *x, float (&dK)[SUMS], float (&dV)[SUMS], last_step *last) {
    const uint32_t stage = x->stage;
    float S[SCORES], dP[SCORES];
    take_turn<TEAM>(); /* also: the team's four warps have written their part of dS */
    if (last->exists) {
        finish_last_step<TEAM, SUMS_QUERY>(x, dK, dV, last);
    }
    start_scores<TEAM>(x, S);
    const uint32_t what = uniform(x->s->step[x->stage].what);
    const visible_rows visible = find_visible_in_step<TEAM>(x, what); /* ahead of dP: behind the turn it would spill */
    start_grads<TEAM>(x, dP);
    pass_turn<TEAM>();
    ptx_wgmma_wait<2>(); /* dK */
    ptx_wgmma_ready(dK);
    if (last->exists) {
        arrive_all(&x->s->stage_empty[stage]);
    }
    differentiate<TEAM, SUMS_QUERY, CAPPED>(x, what, visible, S, dP, last);
    last->exists = true;
}

/* All steps of an item: dK and dV. */
template <int TEAM, bool SUMS_QUERY, bool CAPPED>
static __device__ __forceinline__ void run_item(consumer *x, int32_t left, float (&dK)[SUMS], float (&dV)[SUMS]) {
    constexpr bool LEADS = TEAM == 0; /* half a step ahead, dQ one step later */
    backward_shared *s = x->s;
    last_step last = {.exists = false, .has_query = !LEADS}; /* team 0's first dQ is of no step */
    keep_bounds<TEAM>(x);
    wait(&s->key_full, x->loads);
    wait_stage(x);
#pragma unroll 1
    while (left-- > 0) {
        next_step<TEAM, SUMS_QUERY, CAPPED>(x, dK, dV, &last);
    }
    const uint32_t stage = x->stage, buffer = x->steps % 2, step = LEADS ? x->steps - 1 : x->steps;
    float dQ[QUERY_SUMS];
    if (SUMS_QUERY && !LEADS) {
        wait(&s->grad_score_full[buffer], x->steps / 2);
    } else {
        ptx_bar_sync(TEAM_BARRIER + TEAM, TEAM_THREADS);
    }
    ptx_wgmma_fence();
    multiply_rows(dV, last.weights, descriptor_at(x->origin, SHARED_AT(grad_output, stage)));
    if (SUMS_QUERY) {
        start_grad_query<TEAM>(x, dQ, step);
    }
    multiply_rows(dK, last.grads, descriptor_at(x->origin, SHARED_AT(query, stage)));
    ptx_wgmma_commit();
    if (SUMS_QUERY) {
        if (last.has_query) {
            wait_staged_free<TEAM>(x, step);
        }
        float2 *place = staging_place<TEAM>(x);
        ptx_wgmma_wait<1>();
        ptx_wgmma_ready(dQ);
        pass_grad_query<TEAM>(x, dQ, step, &last, place);
    }
    if (SUMS_QUERY && LEADS) {
        wait(&s->grad_score_full[buffer], x->steps / 2);
        ptx_wgmma_fence();
        start_grad_query<TEAM>(x, dQ, x->steps);
        wait_staged_free<TEAM>(x, x->steps);
    }
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(dV);
    ptx_wgmma_ready(dK);
    arrive_all(&s->stage_empty[stage]);
    if (SUMS_QUERY && LEADS) {
        ptx_wgmma_ready(dQ);
        arrive(&s->grad_score_empty[buffer]);
        send_grad_query<TEAM>(x, dQ, x->steps, staging_place<TEAM>(x));
    }
    next_stage(x);
    x->steps++;
    x->loads++;
    arrive(&s->key_empty); /* the next keys come while these are stored */
}

template <int TEAM, bool SUMS_QUERY, bool CAPPED>
static __device__ __forceinline__ void consume(const fm_cuda_backward_problem *bp, backward_shared *s) {
    const fm_cuda_problem *p = &bp->forward;
    consumer x = {bp, s, descriptor_origin(s), 0, 0, 0, 0, 0, {}};
    if (TEAM == 1) {
        pass_turn<TEAM>();
    }
#pragma unroll 1
    for (;; x.items++) {
        wait(&s->query_full[x.stage], x.parity);
        const int32_t steps = (int32_t)uniform((uint32_t)s->item[x.items % ITEM_PLACES].steps);
        if (steps == ITEM_END) {
            break;
        }
        float dK[SUMS], dV[SUMS];
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            dK[i] = dV[i] = 0.0f;
        }
        if (steps > 0) {
            run_item<TEAM, SUMS_QUERY, CAPPED>(&x, steps, dK, dV);
        } else {
            wait(&s->grad_output_full[x.stage], x.parity);
            arrive_all(&s->stage_empty[x.stage]);
            next_stage(&x);
        }
        if (SUMS_QUERY && stores_by_elements(bp)) { /* by way of the staging area, which the last dQ has left then */
            wait(&s->staged_empty[TEAM], x.steps - 1);
            __syncwarp();
        }
#pragma unroll 1
        for (int i = 0; i < 2; i++) { /* by one code, for the instruction cache */
            store_sums<TEAM>(&x, i == 0 ? &bp->grad_value : &bp->grad_key, i == 0 ? bp->grad_value_is_f32 : bp->grad_key_is_f32,
                             i == 0 ? p->head_dim_v : p->head_dim, reinterpret_cast<float(&)[1][D / 8][4]>(dV),
                             i == 0 ? 1.0f : p->scale);
#pragma unroll
            for (int j = 0; j < SUMS; j++) {
                dV[j] = dK[j];
            }
        }
    }
    if (TEAM == 0) {
        take_turn<TEAM>(); /* the turn that nobody took */
    }
}

template <bool SUMS_QUERY, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ fm_cuda_backward_problem bp, const __grid_constant__ fm_sm90_backward_maps maps) {
    extern __shared__ __align__(1024) uint8_t memory[]; /* the only shared memory, so it starts on a swizzle boundary */
    backward_shared *s = reinterpret_cast<backward_shared *>(memory);
    const uint32_t team = uniform(threadIdx.x / TEAM_THREADS);
    if (threadIdx.x == 0) {
        if (ptx_shared_address(memory) % 1024 != 0) {
            __trap(); /* an address rounded up would cost the senders registers that they lack */
        }
        ptx_mbarrier_init(ptx_shared_address(&s->key_full), 1);
        ptx_mbarrier_init(ptx_shared_address(&s->key_empty), CONSUMER_WARPS);
        for (int i = 0; i < STAGES; i++) {
            ptx_mbarrier_init(ptx_shared_address(&s->query_full[i]), 1);
            ptx_mbarrier_init(ptx_shared_address(&s->grad_output_full[i]), 1);
            ptx_mbarrier_init(ptx_shared_address(&s->stage_empty[i]), CONSUMERS);
        }
        for (int i = 0; i < 2; i++) {
            ptx_mbarrier_init(ptx_shared_address(&s->grad_score_full[i]), CONSUMER_WARPS);
            ptx_mbarrier_init(ptx_shared_address(&s->grad_score_empty[i]), CONSUMER_WARPS / TEAMS);
            for (int phase = 0; phase < STAGED_PHASES; phase++) {
                ptx_mbarrier_init(ptx_shared_address(&s->staged_full[i][phase]), CONSUMER_WARPS / TEAMS);
            }
            ptx_mbarrier_init(ptx_shared_address(&s->staged_empty[i]), 1);
        }
        for (int i = 0; i < NOTES; i++) {
            ptx_mbarrier_init(ptx_shared_address(&s->note_full[i]), 1);
        }
        s->sending.notes = 0;
        ptx_mbarrier_fence_init();
    }
    ptx_bar_block();
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
    } else {
        ptx_registers_take<CONSUMER_REGISTERS>();
        if (team == 0) {
            consume<0, SUMS_QUERY, CAPPED>(&bp, s);
        } else {
            consume<1, SUMS_QUERY, CAPPED>(&bp, s);
        }
    }
}

extern "C" int FM_VARIANT(fm_sm90_backward)(const fm_sm90_backward_call *call) {
    const fm_cuda_problem *p = &call->problem->forward;
    const int64_t items = (int64_t)p->batch * p->heads_kv * p->plan.column_lines.groups;
    const bool sums = call->problem->grad_query_sum != NULL, capped = p->softcap > 0.0f;
    const void *kernel = sums ? capped ? (const void *)backward_kernel<true, true> : (const void *)backward_kernel<true, false>
                         : capped ? (const void *)backward_kernel<false, true>
                                  : (const void *)backward_kernel<false, false>;
    void *arguments[] = {const_cast<fm_cuda_backward_problem *>(call->problem), const_cast<fm_sm90_backward_maps *>(&call->maps)};
    const launch_shape shape = {min(items, (int64_t)call->processors), 1, THREADS, sizeof(backward_shared)};
    return launch_kernel(kernel, shape, arguments, call->stream);
}

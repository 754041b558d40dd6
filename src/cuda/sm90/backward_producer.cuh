/* The producer warp of the backward kernel for head dims up to 128: has the copy engine bring K and V of an item once, and Q, dO and their
 * rows' terms of every step. */
#ifndef FM_CUDA_SM90_BACKWARD_PRODUCER_CUH
#define FM_CUDA_SM90_BACKWARD_PRODUCER_CUH

#include "cuda/sm90/backward_walk.cuh"

static __device__ __forceinline__ void send_keys(producer *x) {
    const volatile backward_item *item = item_of(x);
    const uint32_t barrier = ptx_shared_address(&x->s->key_full);
    ptx_mbarrier_wait(ptx_shared_address(&x->s->key_empty), (x->loads & 1) ^ 1);
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive_expect(barrier, 2 * KEYS_BYTES);
#pragma unroll
        for (int line = 0; line < TEAMS; line++) {
            const int32_t key = item->group * KEYS + line * BOX;
            send_rows(ptx_shared_address(x->s->key) + line * LINE_BYTES, &x->maps->forward.key, barrier, key, item->head,
                      item->batch);
            send_rows(ptx_shared_address(x->s->value) + line * LINE_BYTES, &x->maps->forward.value, barrier, key, item->head,
                      item->batch);
        }
    }
    __syncwarp();
    x->loads++;
    x->is_first = false;
}

static __device__ __forceinline__ void send_step(producer *x, uint32_t what) {
    const int32_t batch = item_of(x)->batch;
    const volatile backward_sending *sending = &x->s->sending;
    backward_shared *s = x->s;
    const uint32_t stage = x->uses % STAGES;
    const int32_t tile = step_tile(what);
    const uint32_t query_full = ptx_shared_address(&s->query_full[stage]),
                   grad_full = ptx_shared_address(&s->grad_output_full[stage]);
    ptx_mbarrier_wait(ptx_shared_address(&s->stage_empty[stage]), (x->uses / STAGES & 1) ^ 1);
    if (threadIdx.x % 32 == 0) {
        s->step[stage] = backward_step{what, sending->plane};
        send_note(x, backward_note{sending->first_tile + (uint32_t)tile, tile, sending->plane, item_of(x)->group});
        ptx_mbarrier_arrive_expect(query_full, ROWS_BYTES + 2 * TERMS_BYTES);
        send_rows(ptx_shared_address(s->query[stage]), &x->maps->forward.query, query_full, tile * ROWS, sending->head, batch);
        send_terms(x, stage, sending->first_tile + (uint32_t)tile);
    }
    __syncwarp();
    if (x->is_first) { /* S needs K as soon as Q, dP needs V and dO later */
        send_keys(x);
    }
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive_expect(grad_full, ROWS_BYTES);
        send_rows(ptx_shared_address(s->grad_output[stage]), &x->maps->grad_output, grad_full, tile * ROWS, sending->head, batch);
    }
    __syncwarp();
    x->uses++;
}

static __device__ __forceinline__ void send_nothing(producer *x) {
    const uint32_t stage = x->uses % STAGES;
    ptx_mbarrier_wait(ptx_shared_address(&x->s->stage_empty[stage]), (x->uses / STAGES & 1) ^ 1);
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive(ptx_shared_address(&x->s->query_full[stage]));
        ptx_mbarrier_arrive(ptx_shared_address(&x->s->grad_output_full[stage]));
    }
    __syncwarp();
    x->uses++;
}

static __device__ __forceinline__ uint32_t take_number(const producer *x) {
    const uint32_t number = threadIdx.x % 32 == 0 ? atomicAdd(x->bp->counter, 1u) : 0;
    return __shfl_sync(0xffffffffu, number, 0);
}

#endif

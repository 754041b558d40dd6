/* The producer warp of the backward kernel for head dims above 128. Both blocks of a cluster walk the same items and steps: each has the
 * copy engine bring its own line of K and V, its part of the other line's K and its own rows' terms; block 0 sends Q to both and block 1
 * dO. Numbers of items come from block 0. */
#ifndef FM_CUDA_SM90_BACKWARD_WIDE_PRODUCER_CUH
#define FM_CUDA_SM90_BACKWARD_WIDE_PRODUCER_CUH

#include "cuda/sm90/backward_walk.cuh"

static __device__ __forceinline__ void send_both(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t row, int32_t head,
                                                 int32_t batch) {
#pragma unroll
    for (int r = 0; r < REGIONS; r++) {
        ptx_cluster_load_4d(to + (uint32_t)(r * BOX_BYTES), map, barrier, r * BOX, row, head, batch);
    }
}

static __device__ __forceinline__ void send_keys(producer *x) {
    const volatile backward_item *item = item_of(x);
    const fm_sm90_maps *maps = &x->maps->forward;
    const uint32_t barrier = ptx_shared_address(&x->s->key_full);
    ptx_mbarrier_wait(ptx_shared_address(&x->s->key_empty), (x->loads & 1) ^ 1);
    if (threadIdx.x % 32 == 0) {
        const int32_t rank = (int32_t)ptx_cluster_rank(), key = item->group * KEYS + rank * BOX;
        ptx_mbarrier_arrive_expect(barrier, 2 * ROWS_BYTES + QUERY_BOXES * BOX_BYTES);
        send_rows(ptx_shared_address(x->s->key), &maps->key, barrier, key, item->head, item->batch);
        send_rows(ptx_shared_address(x->s->value), &maps->value, barrier, key, item->head, item->batch);
#pragma unroll
        for (int team = 0; team < QUERY_BOXES; team++) {
            ptx_tma_load_4d(ptx_shared_address(x->s->other_key[team]), &maps->key, barrier,
                            first_query_dim(team, rank) / BOX * BOX, item->group * KEYS + (rank ^ 1) * BOX, item->head,
                            item->batch);
        }
    }
    __syncwarp();
    x->loads++;
    x->is_first = false;
}

/* Until the stage has been left in both blocks. */
static __device__ __forceinline__ void wait_query_empty(const producer *x, uint32_t stage) {
    ptx_mbarrier_wait(ptx_shared_address(&x->s->query_empty[stage]), (x->uses / STAGES & 1) ^ 1);
}
static __device__ __forceinline__ void wait_grad_output_empty(const producer *x, uint32_t stage) {
    ptx_mbarrier_wait(ptx_shared_address(&x->s->grad_output_empty[stage]), (x->uses / GRAD_STAGES & 1) ^ 1);
}

/* Each block's barriers count what either block sends to it; bytes that come ahead of the arrival that expects them count as well, for
 * the other block sends no sooner than this one's warps have left the stage, whose phase has ended then. */
static __device__ __forceinline__ void send_step(producer *x, uint32_t what) {
    const int32_t batch = item_of(x)->batch;
    const volatile backward_sending *sending = &x->s->sending;
    backward_shared *s = x->s;
    const uint32_t stage = x->uses % STAGES, grad_stage = x->uses % GRAD_STAGES;
    const int32_t tile = step_tile(what);
    const uint32_t query_full = ptx_shared_address(&s->query_full[stage]),
                   grad_full = ptx_shared_address(&s->grad_output_full[grad_stage]);
    wait_query_empty(x, stage);
    if (threadIdx.x % 32 == 0) {
        s->step[stage] = backward_step{what, sending->plane};
        send_note(x, backward_note{sending->first_tile + (uint32_t)tile, tile, sending->plane, item_of(x)->group});
        ptx_mbarrier_arrive_expect(query_full, ROWS_BYTES + 2 * TERMS_BYTES);
        if (ptx_cluster_rank() == 0) {
            send_both(ptx_shared_address(s->query[stage]), &x->maps->forward.query, query_full, tile * ROWS, sending->head,
                      batch);
        }
        send_terms(x, stage, sending->first_tile + (uint32_t)tile);
    }
    __syncwarp();
    if (x->is_first) {
        send_keys(x);
    }
    wait_grad_output_empty(x, grad_stage);
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive_expect(grad_full, ROWS_BYTES);
        if (ptx_cluster_rank() == 1) {
            send_both(ptx_shared_address(s->grad_output[grad_stage]), &x->maps->grad_output, grad_full, tile * ROWS,
                      sending->head, batch);
        }
    }
    __syncwarp();
    x->uses++;
}

static __device__ __forceinline__ void send_nothing(producer *x) {
    const uint32_t stage = x->uses % STAGES, grad_stage = x->uses % GRAD_STAGES;
    wait_query_empty(x, stage);
    wait_grad_output_empty(x, grad_stage);
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive(ptx_shared_address(&x->s->query_full[stage]));
        ptx_mbarrier_arrive(ptx_shared_address(&x->s->grad_output_full[grad_stage]));
    }
    __syncwarp();
    x->uses++;
}

/* Block 0 takes it, for both. Without a branch on the rank around the wait, and by a shuffle, so that all that follows is uniform. */
static __device__ __forceinline__ uint32_t take_number(const producer *x) {
    const uint32_t place = x->items % ITEM_PLACES;
    const uint32_t at = ptx_shared_address(&x->s->number[place]), full = ptx_shared_address(&x->s->number_full[place]);
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive_expect(full, sizeof(uint32_t));
        if (ptx_cluster_rank() == 0) {
            const uint32_t number = atomicAdd(x->bp->counter, 1u);
            ptx_cluster_store(ptx_cluster_peer(at, 1), number, ptx_cluster_peer(full, 1)); /* here */
            ptx_cluster_store(ptx_cluster_peer(at, 0), number, ptx_cluster_peer(full, 0));
        }
    }
    __syncwarp();
    ptx_mbarrier_wait(full, x->items / ITEM_PLACES & 1);
    return __shfl_sync(0xffffffffu, *static_cast<volatile uint32_t *>(&x->s->number[place]), 0);
}

#endif

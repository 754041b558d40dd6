/* Attention forward for Hopper (sm_90a): O = softmax(scale Q K^T) V over the visible tiles of a group of rows.
 *
 * Tiles    128 rows, a group of the plan, by a step of keys: an aligned pair of the plan's tiles, 128 keys, for head dims of V up to
 *          128; one tile, 64 keys, for 192 and 256. Each of two teams has a line of the group, 64 rows. Of a pair a team computes only the halves
 *          that it sees: both at once (wide) or one (narrow).
 * Roles    Warpgroup 0 gives its registers away. Its first warp, the sender, has the copy engine bring Q, K and V; its second, the
 *          scout, finds items and their tiles one part ahead (forward_producer.cuh); the others, maskers, find out what a team sees of
 *          its partial steps (forward_masker.cuh). Warpgroups 1 and 2 are the teams: both products and the softmax of their own rows
 *          (forward_consumer.cuh). Blocks are persistent: one a multiprocessor, items from a counter.
 * Barriers mbarriers, full and empty, for each place of the rings of K, V and Q, for the scout's two parts and for the maskers' jobs
 *          and words. A place of K is given back once S is there, of V once O has it. A step's description comes with its K; that it
 *          tells the next step too spares the teams a wait before they know what to do. Named barriers 1 and 2: turns. A team issues
 *          its products in its turn only, so that the other's softmax runs under them; a step that it does not see is a turn that it
 *          passes on. Barriers 3 and 4: a team's own.
 * Memory   shared, in boxes of 64 rows (keys) x 64 dims, 128-byte swizzle:  Q  K ring  V ring  forward_tail (5.6 KB, of 64 7.7)
 *            head dim              64      96     128     192     256  192, of V 128
 *            rows x keys      128x128 128x128 128x128  128x64  128x64       128x128
 *            places of Q            2       2       2       2       1             1
 *            places of K, V         3       2       2       2       2             2
 *            shared, KB           137     199     199     199     199           215
 *          registers of a consumer thread: 232, of a producer thread: 40. Head dim 128: S 64, P 32, O 64, softmax 7, the rest addresses
 *          and masks. Nothing spills.
 * Time     of one team over the steps 0 .. n-1 of an item that it sees; "S1|O0": both products in flight, a commit group each
 *            tensor cores   S0         S1|O0        S2|O1        ...   O(n-1)
 *            other units       soft 0        soft 1       soft 2 ...          store
 *            sender         K0 Q  K1 V0  K2 V1  ...  K(n-1) V(n-2)  V(n-1) | next item: K0 Q ...
 *          soft: [softcap] [mask] [max, move base] exp, all under O of the step before; then P is packed. Where a team does not see a
 *          step between two that it sees, O is finished before and the next one starts like the first. In bf16 only the first keys that
 *          a row sees are searched for a maximum (weigh); a step that leaves the range is done again (forward_again.cuh).
 * Masks    full halves run no mask code. Of a partial step the team's masker reads bounds and bitmaps while a step before is in work, and
 *          leaves each lane a word of its two rows for even keys and one for odd: one predicate an element, whatever the number of
 *          intervals. Hidden keys weigh 0 and a hidden step moves nothing, so full, partial and narrow steps, and no_skip, give the same
 *          bits: that is why pairs are aligned. */
#include "cuda/launch_kernel.cuh"
#include "cuda/ptx/setmaxnreg.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/forward_again.cuh"
#include "cuda/sm90/forward_combine.cuh"
#include "cuda/sm90/forward_masker.cuh"
#include "cuda/tile/store_rows.cuh"

/* ---- products ---- */

/* The team's rows of Q. */
static __device__ __forceinline__ uint32_t query_address(const consumer *x) {
    return x->shared + x->items % QUERIES * QUERY_BYTES + x->team * REGIONS * BOX_BYTES;
}

template <int N> static __device__ __forceinline__ void multiply_key(float (&S)[N], uint64_t query, uint64_t key) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        const uint64_t a = query + (k / 4 * BOX_BYTES + k % 4 * 32) / 16, b = key + (k / 4 * REGION_BYTES + k % 4 * 32) / 16;
        if (k == 0) {
            ptx_wgmma_ss<0, 0, 0>(S, a, b);
        } else {
            ptx_wgmma_ss<1, 0, 0>(S, a, b);
        }
    }
    ptx_wgmma_commit();
}

/* Products of Q and the halves of S: both, or the visible one. */
template <int BLOCKS>
static __device__ __forceinline__ void start_scores(float (&S)[1][BLOCKS][4], const consumer *x, uint32_t classes, uint64_t key) {
    uint64_t query = ptx_wgmma_descriptor(query_address(x), 0);
    asm volatile("" : "+l"(query)); /* the descriptors of its slices are computed anew: kept over the loop they would spill */
    const uint64_t second = BLOCKS < KEY_BLOCKS && sees_second(classes) ? BOX_BYTES / 16 : 0;
    multiply_key(reinterpret_cast<float(&)[4 * BLOCKS]>(S), query, key + second);
}

template <int SLICES>
static __device__ __forceinline__ void multiply_value(float (&O)[SUMS], const forward_weights &P, uint64_t value) {
    ptx_wgmma_fence();
#pragma unroll
    for (int k = 0; k < SLICES; k++) {
        ptx_wgmma_rs<1, 1>(O, P[4 * k], P[4 * k + 1], P[4 * k + 2], P[4 * k + 3], value + k * 2048 / 16);
    }
    ptx_wgmma_commit();
}

/* O += P V over the halves of a step that the team sees. */
static __device__ __forceinline__ void start_output(forward_rows *rows, const forward_weights &P, uint32_t classes,
                                                    uint64_t value) {
    float(&O)[SUMS] = reinterpret_cast<float(&)[SUMS]>(rows->O);
    if (HALVES == 1 || is_wide(classes)) {
        multiply_value<KEY_BLOCKS / 2>(O, P, value);
    } else {
        multiply_value<HALF_BLOCKS / 2>(O, P, value + (sees_second(classes) ? BOX_BYTES / 16 : 0));
    }
}

/* ---- an item ---- */

static __device__ __forceinline__ uint64_t key_descriptor(const consumer *x, ring_place at) {
    return ptx_wgmma_descriptor(x->shared + KEY_AT + at.stage * KEY_BYTES, 0);
}
static __device__ __forceinline__ uint64_t value_descriptor(const consumer *x, ring_place at) {
    return ptx_wgmma_descriptor(x->shared + VALUE_AT + at.stage * VALUE_BYTES, REGION_BYTES);
}

/* Once S is there: Q, after the item's last step, and K are given back. */
template <int BLOCKS>
static __device__ __forceinline__ void take_scores(const consumer *x, float (&S)[1][BLOCKS][4], ring_place at, bool is_last) {
    ptx_wgmma_ready(reinterpret_cast<float(&)[4 * BLOCKS]>(S));
    if (is_last) {
        release(TAIL_BARRIER(x, query_empty, x->items % QUERIES));
    }
    release_key(x, at);
}

/* What a team does next. Made while S of the step before is computed, so that little stands between a softmax and the next products. */
typedef struct forward_todo {
    uint32_t before, next;     /* steps; before is STEP_NONE where a run begins, next 0 where it ends */
    ring_place before_at;      /* place of V of `before`; K of `next` is at x->at */
    uint64_t key;              /* descriptor of it */
    uint32_t is_seen, is_wide; /* next */
} forward_todo;

static __device__ __forceinline__ forward_todo todo_of(const consumer *x, uint32_t before, uint32_t next, ring_place before_at) {
    const uint32_t classes = step_classes(next, x->team);
    return forward_todo{before, next, before_at, key_descriptor(x, x->at), sees(classes), HALVES == 1 || is_wide(classes)};
}

/* In the team's turn: S of the step `next` and P V of the one before. */
template <int BLOCKS>
static __device__ __forceinline__ void start_products(float (&S)[1][BLOCKS][4], const consumer *x, forward_rows *rows,
                                                      const forward_weights &P, const forward_todo *todo) {
    wait_key(x, x->at);
    turn_take(x);
    ptx_wgmma_fence();
    start_scores(S, x, step_classes(todo->next, x->team), todo->key);
    if (todo->before != STEP_NONE) {
        wait_value(x, todo->before_at);
        start_output(rows, P, step_classes(todo->before, x->team), value_descriptor(x, todo->before_at));
    } else {
        ptx_wgmma_fence();
        ptx_wgmma_commit(); /* an empty group, so that all but the last one are S */
    }
    turn_pass(x);
}

/* Both products, the softmax of `next` between their ends. Returns whether it is the item's last step. */
template <bool CAPPED, int BLOCKS>
static __device__ __forceinline__ bool do_step(consumer *x, forward_rows *rows, forward_weights &P, forward_todo *todo) {
    const forward_todo now = *todo;
    const ring_place at = x->at;
    float(&O)[SUMS] = reinterpret_cast<float(&)[SUMS]>(rows->O);
    float S[1][BLOCKS][4];
    start_products(S, x, rows, P, &now);
    const forward_step step = read_step(x, at);
    x->at = ring_after(at);
    *todo = todo_of(x, now.next, step.next, at);
    asm volatile("" : "+r"(x->at.stage), "+r"(x->at.phase), "+l"(todo->key)); /* here, not behind the softmax */
    asm volatile("" : "+r"(todo->is_seen), "+r"(todo->is_wide));
    rows->words = take_words(x, step_classes(now.next, x->team));
    ptx_wgmma_wait<1>();
    take_scores(x, S, at, (step.flags & FLAG_LAST) != 0);
    weigh<CAPPED>(S, rows, x, step_classes(now.next, x->team));
    ptx_wgmma_ready(reinterpret_cast<float(&)[4 * BLOCKS]>(S)); /* else the softmax sinks below this wait */
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(O);
    if (now.before != STEP_NONE) {
        release_value(x, now.before_at);
    }
    pack(P, S);
    if (MOVES_OUTPUT && rows->moves) {
        rescale_output(rows);
    }
    return (step.flags & FLAG_LAST) != 0;
}

/* Steps in a row that the team sees, from `step` on; returns whether the item's last one was among them. */
template <bool CAPPED> static __device__ __forceinline__ bool run_steps(consumer *x, forward_rows *rows, uint32_t step) {
    forward_weights P = {0};
    forward_todo todo = todo_of(x, STEP_NONE, step, x->at);
    float(&O)[SUMS] = reinterpret_cast<float(&)[SUMS]>(rows->O);
    bool is_last;
    do {
        if (todo.is_wide) {
            is_last = do_step<CAPPED, KEY_BLOCKS>(x, rows, P, &todo);
        } else {
            is_last = do_step<CAPPED, HALF_BLOCKS>(x, rows, P, &todo);
        }
        if (LAZY) {
            /* nothing is left, but without it ptxas serialises all products (C7515); of all warps, as PTX demands of a warpgroup */
            ptx_wgmma_wait<0>();
            ptx_wgmma_ready(O);
        }
        if (__builtin_expect(rows->is_beyond, 0)) {
            weigh_again<CAPPED>(x, rows, P, todo.before);
            rescale_output(rows);
        }
    } while (todo.is_seen);
    wait_value(x, todo.before_at);
    start_output(rows, P, step_classes(todo.before, x->team), value_descriptor(x, todo.before_at));
    ptx_wgmma_wait<0>();
    ptx_wgmma_ready(O);
    release_value(x, todo.before_at);
    return is_last;
}

/* Scale < 0: the team's rows of Q change sign, which is exact, and all that follows has |scale|. */
static __device__ __forceinline__ void negate_query(const consumer *x) {
    const uint32_t at = query_address(x);
#pragma unroll 1
    for (int i = (int)threadIdx.x % TEAM_THREADS; i < REGIONS * BOX_BYTES / 4; i += TEAM_THREADS) {
        uint32_t pair;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at + 4 * i));
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + 4 * i), "r"(pair ^ 0x80008000u) : "memory");
    }
    ptx_fence_proxy_async();
    ptx_bar_sync(TEAM_BARRIER + x->team, TEAM_THREADS);
}

/* An item with a split of the keys: sums as they are, for forward_combine.cuh. */
static __device__ __forceinline__ void store_split(const consumer *x, const forward_item *item, forward_rows *rows,
                                                   int32_t row0) {
    const fm_cuda_problem *p = x->p;
    const fm_sm90_splits *splits = &x->launch->splits;
    const int64_t first = (((int64_t)item->split * p->batch + item->batch) * p->heads + item->head) * p->rows;
    const int32_t row = row0 + (int32_t)threadIdx.x % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float l = softmax_row_sum(rows->l[r]);
        if (threadIdx.x % 4 == 0 && row + 8 * r < p->rows) {
            splits->base[first + row + 8 * r] = rows->base[r];
            splits->l[first + row + 8 * r] = l;
        }
        rows->l[r] = 1.0f;
    }
    const store_target target = {&x->launch->split_output, first * p->head_dim_v, row0, p->rows, p->head_dim_v, true};
    store_pairs(&target, rows->O, rows->l);
}

static __device__ __forceinline__ void store_item(const consumer *x, forward_rows *rows) {
    const fm_cuda_problem *p = x->p;
    const forward_item item = *item_of(x);
    const int32_t warp = (int32_t)threadIdx.x % TEAM_THREADS / 32;
    const store_target target = {.tensor = &p->output,
                                 .head = item.batch * p->output.stride[0] + item.head * p->output.stride[2],
                                 .row0 = item.group * FM_PLAN_GROUP + x->team * TEAM_ROWS + 16 * warp,
                                 .rows = p->rows,
                                 .dim = p->head_dim_v,
                                 .is_f32 = p->output_is_f32};
    if (x->launch->splits.count > 1) {
        store_split(x, &item, rows, target.row0);
        return;
    }
    store_lse(p, item.batch, item.head, rows->base, rows->l, target.row0 + (int32_t)threadIdx.x % 32 / 4);
    if (p->output_is_f32) {
        store_pairs(&target, rows->O, rows->l);
    } else {
        store_chunks(&target, rows->O, rows->l);
    }
}

template <bool CAPPED> static __device__ __forceinline__ void consume(consumer *x) {
    if (x->team == 1) {
        ptx_bar_arrive(TURN_BARRIER, TEAMS * TEAM_THREADS); /* team 0 has the first turn */
    }
    for (;; x->items++) {
        wait_key(x, x->at);
        forward_step step = read_step(x, x->at);
        if (step.flags & FLAG_END) {
            break;
        }
        forward_rows rows;
        zero_rows(&rows);
        ptx_mbarrier_wait(TAIL_BARRIER(x, query_full, x->items % QUERIES), x->items / QUERIES & 1);
        if (x->p->scale < 0.0f) {
            negate_query(x);
        }
        for (;;) {
            bool is_last = (step.flags & FLAG_LAST) != 0;
            if (sees(step_classes(step.what, x->team))) {
                is_last = run_steps<CAPPED>(x, &rows, step.what);
            } else {
                skip_step(x, is_last);
            }
            if (is_last) {
                break;
            }
            wait_key(x, x->at);
            step = read_step(x, x->at);
        }
        store_item(x, &rows);
    }
    if (x->team == 0) {
        ptx_bar_sync(TURN_BARRIER, TEAMS * TEAM_THREADS); /* the pass that nobody took */
    }
}

static __device__ __forceinline__ void init_barriers(forward_tail *tail) {
    for (int s = 0; s < STAGES; s++) {
        ptx_mbarrier_init(ptx_shared_address(&tail->key_full[s]), 1);
        ptx_mbarrier_init(ptx_shared_address(&tail->value_full[s]), 1);
        ptx_mbarrier_init(ptx_shared_address(&tail->key_empty[s]), CONSUMER_WARPS);
        ptx_mbarrier_init(ptx_shared_address(&tail->value_empty[s]), CONSUMER_WARPS);
    }
    for (int i = 0; i < QUERIES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&tail->query_full[i]), 1);
        ptx_mbarrier_init(ptx_shared_address(&tail->query_empty[i]), CONSUMER_WARPS);
    }
    for (int i = 0; i < 2; i++) {
        ptx_mbarrier_init(ptx_shared_address(&tail->part_full[i]), 32);
        ptx_mbarrier_init(ptx_shared_address(&tail->part_empty[i]), 32);
    }
    for (int i = 0; i < TEAMS * STAGES; i++) {
        ptx_mbarrier_init(ptx_shared_address(&tail->job_full[i]), 1);
        ptx_mbarrier_init(ptx_shared_address(&tail->words_full[i]), 32);
        ptx_mbarrier_init(ptx_shared_address(&tail->words_empty[i]), TEAM_THREADS);
    }
    ptx_mbarrier_fence_init();
}

template <bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    forward_kernel(const __grid_constant__ fm_cuda_problem p, const __grid_constant__ fm_sm90_maps maps,
                   const __grid_constant__ forward_launch launch) {
    extern __shared__ uint8_t memory[];
    const uint32_t shared = (ptx_shared_address(memory) + 1023) & ~1023u;
    forward_tail *tail = reinterpret_cast<forward_tail *>(memory + (shared - ptx_shared_address(memory)) + TAIL_AT);
    if (threadIdx.x == 0) {
        init_barriers(tail);
    }
    ptx_bar_block();
    if (threadIdx.x < TEAM_THREADS) {
        ptx_registers_give<PRODUCER_REGISTERS>();
        producer x = {&p, &maps, shared, tail, {0, 0}, {0, 0}, {0, 0}};
        if (threadIdx.x < 32) {
            send(&x);
        } else if (threadIdx.x < 64) {
            scout(&x, &launch.source);
        } else {
            mask_steps(&x, (int)threadIdx.x / 32 - 2);
        }
    } else {
        ptx_registers_take<CONSUMER_REGISTERS>();
        consumer x = {&p, &launch, tail, shared, (int)uniform(threadIdx.x / TEAM_THREADS - 1), {0, 0}, 0, {0, 0}};
        consume<CAPPED>(&x);
    }
}

#if FM_HEAD_DIM_V == FM_HEAD_DIM
#define LAUNCH FM_VARIANT(fm_sm90_forward)
#else
#define LAUNCH FM_VARIANT(fm_sm90_forward_v128)
#endif
extern "C" int LAUNCH(const fm_sm90_call *call) {
    const fm_cuda_problem *p = call->problem;
    const uint32_t splits = (uint32_t)call->splits.count;
    const uint32_t items = (uint32_t)((int64_t)p->batch * p->heads * p->plan.row_lines.groups * splits); /* fewer than 2^31 */
    uint32_t *counter = items > (uint32_t)call->processors ? call->counter : NULL;
    if (counter != NULL) {
        const cudaError_t error = cudaMemsetAsync(counter, 0, sizeof *counter, static_cast<cudaStream_t>(call->stream));
        if (error != cudaSuccess) {
            return error;
        }
    }
    forward_launch launch = {{items, counter, splits},
                             softmax_factor(p->scale),
                             softmax_capping_of(p->scale, p->softcap),
                             call->splits,
                             {call->splits.output, {0, p->head_dim_v, 0, 1}, true}};
    void *arguments[] = {const_cast<fm_cuda_problem *>(p), const_cast<fm_sm90_maps *>(call->maps), &launch};
    const launch_shape shape = {min((int64_t)items, (int64_t)call->processors), 1, THREADS, SHARED_BYTES};
    const void *kernel = p->softcap > 0.0f ? (const void *)forward_kernel<true> : (const void *)forward_kernel<false>;
    const int error = launch_kernel(kernel, shape, arguments, call->stream);
    if (splits == 1 || error != cudaSuccess) {
        return error;
    }
    void *combined[] = {const_cast<fm_cuda_problem *>(p), const_cast<fm_sm90_splits *>(&call->splits)};
    const launch_shape rows = {(int64_t)p->batch * p->heads * p->rows, 1, COMBINE_THREADS, 0};
    return launch_kernel((const void *)combine_kernel, rows, combined, call->stream);
}

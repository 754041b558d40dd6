/* The producer warp of both backward kernels: takes groups of keys and finds their steps in the plan's bits, for one query head of the
 * group after another. All lanes walk, lane 0 sends; so what belongs to an item lies in uniform registers. How a step is sent and where
 * numbers come from is the kernel's own. */
#ifndef FM_CUDA_SM90_BACKWARD_WALK_CUH
#define FM_CUDA_SM90_BACKWARD_WALK_CUH

#include "cuda/sm90/backward_memory.cuh"
#include "cuda/sm90/launch.h"
#include "cuda/tile/step_list.cuh"
#include "cuda/tile/work.cuh"

typedef struct producer {
    const fm_cuda_backward_problem *bp;
    const fm_sm90_backward_maps *maps;
    backward_shared *s;
    uint32_t uses;  /* of stages, so far */
    uint32_t items; /* so far */
    uint32_t loads; /* of K and V, so far */
    bool is_first;  /* the item's next step is its first */
} producer;

static __device__ __forceinline__ const volatile backward_item *item_of(const producer *x) {
    return &x->s->item[x->items % ITEM_PLACES];
}

/* For the consumers, who hear of it with its first stage, and for this warp, which has no registers to keep it. */
static __device__ __forceinline__ void put_item(producer *x, backward_item item) {
    if (threadIdx.x % 32 == 0) {
        x->s->item[x->items % ITEM_PLACES] = item;
    }
    __syncwarp();
}

/* For the adders. One lane. */
static __device__ __forceinline__ void send_note(const producer *x, backward_note note) {
    const uint32_t n = x->s->sending.notes++;
    x->s->note[n % NOTES] = note;
    ptx_mbarrier_arrive(ptx_shared_address(&x->s->note_full[n % NOTES]));
}

/* Rows past the last have lse2 +inf and delta 0: row_terms fills them up to whole steps. */
static __device__ __forceinline__ void send_terms(const producer *x, uint32_t stage, uint32_t sum_tile) {
    const int64_t at = (int64_t)sum_tile * ROWS;
    const uint32_t barrier = ptx_shared_address(&x->s->query_full[stage]);
    ptx_bulk_load(ptx_shared_address(x->s->lse2[stage]), x->bp->lse2 + at, TERMS_BYTES, barrier);
    ptx_bulk_load(ptx_shared_address(x->s->delta[stage]), x->bp->delta + at, TERMS_BYTES, barrier);
}

static __device__ __forceinline__ void send_rows(uint32_t to, const CUtensorMap *map, uint32_t barrier, int32_t row, int32_t head,
                                                 int32_t batch) {
#pragma unroll
    for (int r = 0; r < REGIONS; r++) {
        ptx_tma_load_4d(to + (uint32_t)(r * BOX_BYTES), map, barrier, r * BOX, row, head, batch);
    }
}

/* The kernel's own. */
static __device__ __forceinline__ void send_step(producer *x, uint32_t what);
static __device__ __forceinline__ void
send_nothing(producer *x); /* a stage that brings nothing: an item without steps, or the end */
static __device__ __forceinline__ uint32_t take_number(const producer *x); /* of the next item */

/* The steps of one query head, ascending. */
static __device__ __forceinline__ void send_head(producer *x, int32_t head) {
    const volatile backward_item *item = item_of(x);
    const fm_cuda_problem *p = &x->bp->forward;
    const fm_tile_lines *lines = &p->plan.column_lines;
    const int64_t plane = mask_plane(&p->plan, item->batch, head, p->heads);
    const fm_tile_word *line = lines->map + (plane * lines->lines + 2 * item->group) * lines->words;
    const bool has_second = 2 * item->group + 1 < lines->lines;
    if (threadIdx.x % 32 == 0) {
        const uint32_t index = (uint32_t)(item->batch * p->heads + head);
        x->s->sending.head = head;
        x->s->sending.plane = (int32_t)plane;
        x->s->sending.first_tile = index * (uint32_t)lines->tiles;
    }
    __syncwarp();
    fm_interval range = {0, lines->tiles};
    if (!p->no_skip) {
        range = lines->range[plane * lines->groups + item->group];
    }
#pragma unroll 1
    for (int32_t w = range.start / FM_PLAN_WORD_TILES; w * FM_PLAN_WORD_TILES < range.end; w++) {
        const fm_tile_word a = step_word(lines, line, w, p->no_skip);
        const fm_tile_word b = has_second ? step_word(lines, line + lines->words, w, p->no_skip) : fm_tile_word{0, 0};
        uint32_t bits = a.visible | b.visible;
#pragma unroll 1
        while (bits != 0) {
            const int t = __ffs((int)bits) - 1;
            bits &= bits - 1;
            const uint32_t classes =
                (a.visible >> t & 1) | (a.full >> t & 1) << 1 | (b.visible >> t & 1) << 2 | (b.full >> t & 1) << 3;
            send_step(x, (uint32_t)(w * FM_PLAN_WORD_TILES + t) << STEP_TILE_SHIFT | classes);
        }
    }
}

/* Key heads whose items are taken side by side: so many that what they read and add to still fits L2, for dQ of each tile is added by
 * one item after another. Rows in use of a head are those that a group of keys sees, three quarters of the groups not more than
 * `count` tiles, and groups under way. */
static __device__ __forceinline__ int32_t count_heads_together(const fm_cuda_backward_problem *bp) {
    constexpr float L2_BYTES = 32 << 20;
    enum { GROUPS_UNDER_WAY = 16 };
    const fm_cuda_problem *p = &bp->forward;
    const fm_tile_lines *lines = &p->plan.column_lines;
    const int32_t count = p->no_skip ? lines->tiles : lines->count[lines->order[lines->groups / 4]];
    const int32_t rows = min(count + GROUPS_UNDER_WAY, lines->tiles) * FM_PLAN_BLOCK;
    const int32_t row_bytes = p->heads / p->heads_kv * (2 * p->head_dim + 2 * p->head_dim_v + 4 * p->head_dim); /* Q, dO, sum */
    return max(1, (int32_t)fminf((float)p->heads_kv, __fdividef(L2_BYTES, (float)rows * (float)row_bytes)));
}

/* The group of keys that comes next, and its steps over all query heads, each of which may have a mask of its own. */
static __device__ __forceinline__ backward_item item_at(const producer *x, uint32_t i) {
    const fm_cuda_problem *p = &x->bp->forward;
    const fm_tile_lines *lines = &p->plan.column_lines;
    const int32_t heads = p->heads / p->heads_kv;
    work_item work = work_at(&p->plan, lines, p->heads_kv, heads, x->s->sending.heads_together, i);
    work.group = lines->groups - 1 - work.place; /* the last keys first, not the longest: backward_adder.cuh */
    backward_item item = {work.batch, work.head, work.group, p->no_skip ? lines->tiles * heads : 0};
#pragma unroll 1
    for (int32_t h = 0; h < heads && !p->no_skip; h++) {
        const int64_t plane = mask_plane(&p->plan, work.batch, work.head * heads + h, p->heads);
        item.steps += lines->count[plane * lines->groups + work.group];
    }
    return item;
}

/* All numbers come from the counter: of an item that others wait for it is certain then that a block runs it. */
static __device__ __forceinline__ void produce(producer *x, uint32_t items) {
    uint32_t i = take_number(x);
    if (threadIdx.x % 32 == 0) {
        x->s->sending.heads_together = count_heads_together(x->bp);
    }
    __syncwarp();
#pragma unroll 1
    while (i < items) {
        put_item(x, item_at(x, i));
        x->is_first = true;
        if (item_of(x)->steps == 0) {
            send_nothing(x);
        } else {
            const int32_t heads = x->bp->forward.heads / x->bp->forward.heads_kv;
#pragma unroll 1
            for (int32_t h = 0; h < heads; h++) {
                send_head(x, item_of(x)->head * heads + h);
            }
        }
        x->items++;
        i = take_number(x); /* not before, for others wait for the item's additions */
    }
    put_item(x, backward_item{0, 0, 0, ITEM_END});
    send_nothing(x);
    for (int adder = 0; adder < ADDERS && threadIdx.x % 32 == 0; adder++) {
        send_note(x, backward_note{0, 0, 0, -1});
    }
}

#endif

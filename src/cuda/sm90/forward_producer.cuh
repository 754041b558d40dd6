/* The two producer warps of the forward kernel. The scout takes items and reads their bits of the plan, four loads of which each needs the
 * one before, and leaves them in shared memory, 32 words of a line at a time, one such part ahead. The sender walks the bits and has the copy
 * engine bring Q, K and V; all its lanes walk, lane 0 sends. */
#ifndef FM_CUDA_SM90_FORWARD_PRODUCER_CUH
#define FM_CUDA_SM90_FORWARD_PRODUCER_CUH

#include "cuda/sm90/forward_shared.cuh"
#include "cuda/tile/work.cuh"

#define ALL_LANES 0xffffffffu

typedef struct producer {
    const fm_cuda_problem *p;
    const fm_sm90_maps *maps;
    uint32_t shared; /* address of the tiles */
    forward_tail *tail;
    ring_place key, value;    /* next uses */
    uint32_t job_next[TEAMS]; /* places */
} producer;

/* ---- scout ---- */

/* counter NULL: one item a block. splits: of the keys of a group, each an item. */
typedef struct item_source {
    uint32_t count, *counter, splits;
} item_source;

/* Tiles of a split, whole steps. */
static __device__ __forceinline__ fm_interval tiles_of_split(int32_t tiles, uint32_t splits, uint32_t split) {
    const int32_t steps = (tiles + HALVES - 1) / HALVES, each = (steps + (int32_t)splits - 1) / (int32_t)splits * HALVES;
    return fm_interval{min((int32_t)split * each, tiles), min((int32_t)(split + 1) * each, tiles)};
}

static __device__ __forceinline__ fm_tile_word line_word(const fm_tile_lines *lines, int64_t line, int32_t word, bool no_skip) {
    if (no_skip) {
        const int32_t tiles = min(lines->tiles - word * FM_PLAN_WORD_TILES, (int32_t)FM_PLAN_WORD_TILES);
        return fm_tile_word{ALL_LANES >> (FM_PLAN_WORD_TILES - tiles), 0};
    }
    return lines->map[line * lines->words + word];
}

/* Word `word` of both lines of a group. */
static __device__ __forceinline__ group_words read_words(const fm_cuda_problem *p, const work_item *item, int32_t word) {
    const fm_tile_lines *lines = &p->plan.row_lines;
    const int32_t line = 2 * item->group;
    const int64_t at = item->plane * lines->lines + line;
    group_words words = {{{0, 0}, {0, 0}}};
    words.line[0] = line_word(lines, at, word, p->no_skip);
    if (line + 1 < lines->lines) {
        words.line[1] = line_word(lines, at + 1, word, p->no_skip);
    }
    return words;
}

/* The place for part n; waits until the sender is done with what lay there. */
static __device__ __forceinline__ forward_part *part_open(const producer *x, uint32_t n) {
    ptx_mbarrier_wait(TAIL_BARRIER(x, part_empty, n & 1), (n >> 1 & 1) ^ 1);
    return &x->tail->part[n & 1];
}
static __device__ __forceinline__ void part_close(const producer *x, uint32_t n) {
    ptx_mbarrier_arrive(TAIL_BARRIER(x, part_full, n & 1));
}

/* Parts of an item that hold a visible tile, or one part if there is none; returns the number of the next part. within: tiles. */
static __device__ __forceinline__ uint32_t scout_item(const producer *x, const work_item *item, int32_t split, fm_interval within,
                                                      uint32_t n) {
    const fm_cuda_problem *p = x->p;
    const fm_tile_lines *lines = &p->plan.row_lines;
    if (!p->no_skip) {
        const fm_interval range = lines->range[item->plane * lines->groups + item->group];
        within = fm_interval{max(within.start, range.start), min(within.end, range.end)};
    }
    bool is_first = true;
    do {
        const int32_t base = within.start / FM_PLAN_WORD_TILES, word = base + (int32_t)threadIdx.x % 32;
        group_words words = {{{0, 0}, {0, 0}}};
        if (word * FM_PLAN_WORD_TILES < within.end) {
            words = read_words(p, item, word);
            const uint32_t kept =
                mask_rows_between(within.start - word * FM_PLAN_WORD_TILES, within.end - word * FM_PLAN_WORD_TILES);
            words.line[0].visible &= kept;
            words.line[1].visible &= kept;
        }
        const uint32_t waiting = __ballot_sync(ALL_LANES, (words.line[0].visible | words.line[1].visible) != 0);
        const bool is_last = (base + 32) * FM_PLAN_WORD_TILES >= within.end;
        if (waiting != 0 || is_last) {
            forward_part *part = part_open(x, n);
            part->words[threadIdx.x % 32] = words;
            part->item = forward_item{item->batch, item->head, item->group, (int32_t)item->plane, split};
            part->head_kv = item->head / (p->heads / p->heads_kv);
            part->waiting = waiting;
            part->base = base;
            part->flags = (is_first ? PART_FIRST : 0) | (is_last ? PART_LAST : 0);
            part_close(x, n++);
            is_first = false;
        }
        within.start = (base + 32) * FM_PLAN_WORD_TILES;
    } while (within.start < within.end);
    return n;
}

static __device__ __forceinline__ void scout(const producer *x, const item_source *source) {
    const fm_cuda_problem *p = x->p;
    uint32_t number = blockIdx.x, n = 0;
    while (number < source->count) {
        const uint32_t split = number % source->splits;
        const work_item item = work_at(&p->plan, &p->plan.row_lines, p->heads, 1, p->heads_together, number / source->splits);
        n = scout_item(x, &item, (int32_t)split, tiles_of_split(p->plan.row_lines.tiles, source->splits, split), n);
        part_open(x, n); /* nobody takes an item much before it can be sent */
        number = source->count;
        if (source->counter != NULL && threadIdx.x % 32 == 0) {
            number = gridDim.x + atomicAdd(source->counter, 1u);
        }
        number = __shfl_sync(ALL_LANES, number, 0);
    }
    part_open(x, n)->flags = PART_END;
    part_close(x, n);
}

/* ---- sender ---- */

/* Of the words of a part; the same in all lanes. */
typedef struct group_walk {
    uint32_t waiting; /* bit l: words[l] is still to come */
    int32_t word;     /* the one in work */
    group_words now;  /* what is left of it */
} group_walk;

/* The next step that any line sees, STEP_NONE at the end of the part. */
static __device__ __forceinline__ uint32_t walk_next(group_walk *walk, const forward_part *part) {
    constexpr uint32_t TILES = (1u << HALVES) - 1;
    fm_tile_word *now = walk->now.line;
    if ((now[0].visible | now[1].visible) == 0) {
        if (walk->waiting == 0) {
            return STEP_NONE;
        }
        const int at = __ffs((int)walk->waiting) - 1;
        walk->waiting &= walk->waiting - 1;
        walk->word = part->base + at;
        walk->now = part->words[at];
    }
    const int bit = (__ffs((int)(now[0].visible | now[1].visible)) - 1) / HALVES * HALVES;
    uint32_t what = (uint32_t)(walk->word * (FM_PLAN_WORD_TILES / HALVES) + bit / HALVES) << STEP_INDEX_SHIFT;
#pragma unroll
    for (int w = 0; w < TEAMS; w++) {
        const uint32_t visible = now[w].visible >> bit, full = now[w].full >> bit;
        what |= (visible & 1) << (4 * w) | (full & 1) << (4 * w + 1);
        if (HALVES == 2) {
            what |= (visible & 2) << (4 * w + 1) | (full & 2) << (4 * w + 2);
        }
        now[w].visible &= ~(TILES << bit);
    }
    return what;
}

/* Halves of a step that any team sees: bit h. */
static __device__ __forceinline__ uint32_t step_halves(uint32_t what) {
    const uint32_t any = what | what >> 4;
    return (any & 1) | (any >> 1 & 2);
}

/* The visible halves of a tile of K or V. */
template <int TILE_REGIONS>
static __device__ __forceinline__ void send_tile(uint32_t to, const CUtensorMap *map, uint32_t barrier, uint32_t what, int head,
                                                 int batch) {
    const uint32_t halves = step_halves(what);
    ptx_mbarrier_arrive_expect(barrier, __popc(halves) * TILE_REGIONS * BOX_BYTES);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        if (halves >> h & 1) {
            const int key = (int)(what >> STEP_INDEX_SHIFT) * KEYS + h * BOX;
#pragma unroll
            for (int r = 0; r < TILE_REGIONS; r++) {
                ptx_tma_load_4d(to + (uint32_t)(r * REGION_BYTES + h * BOX_BYTES), map, barrier, r * BOX, key, head, batch);
            }
        }
    }
}

static __device__ __forceinline__ void send_job(producer *x, int team, forward_job job) {
    const uint32_t place = x->job_next[team];
    if (threadIdx.x == 0) {
        x->tail->job[team][place] = job;
        ptx_mbarrier_arrive(TAIL_BARRIER(x, job_full, team * STAGES + place));
    }
    x->job_next[team] = place == STAGES - 1 ? 0 : place + 1;
}

static __device__ __forceinline__ void send_keys(producer *x, forward_step step, const forward_part *part) {
    forward_tail *tail = x->tail;
    ptx_mbarrier_wait(TAIL_BARRIER(x, key_empty, x->key.stage), x->key.phase ^ 1);
#pragma unroll
    for (int team = 0; team < TEAMS; team++) {
        if (has_partial(step_classes(step.what, team))) {
            send_job(x, team, forward_job{step.what, part->item.group, part->item.plane});
        }
    }
    if (threadIdx.x == 0) {
        tail->step[x->key.stage] = step;
        send_tile<REGIONS>(x->shared + KEY_AT + x->key.stage * KEY_BYTES, &x->maps->key, TAIL_BARRIER(x, key_full, x->key.stage),
                           step.what, part->head_kv, part->item.batch);
    }
    __syncwarp();
    x->key = ring_after(x->key);
}

static __device__ __forceinline__ void send_values(producer *x, uint32_t what, const forward_part *part) {
    ptx_mbarrier_wait(TAIL_BARRIER(x, value_empty, x->value.stage), x->value.phase ^ 1);
    if (threadIdx.x == 0) {
        send_tile<VALUE_REGIONS>(x->shared + VALUE_AT + x->value.stage * VALUE_BYTES, &x->maps->value,
                                 TAIL_BARRIER(x, value_full, x->value.stage), what, part->head_kv, part->item.batch);
    }
    __syncwarp();
    x->value = ring_after(x->value);
}

static __device__ __forceinline__ void send_query(const producer *x, const forward_item *item, uint32_t n) {
    forward_tail *tail = x->tail;
    ptx_mbarrier_wait(TAIL_BARRIER(x, query_empty, n % QUERIES), (n / QUERIES & 1) ^ 1);
    if (threadIdx.x == 0) {
        const uint32_t barrier = TAIL_BARRIER(x, query_full, n % QUERIES);
        tail->item[n % ITEM_PLACES] = *item;
        ptx_mbarrier_arrive_expect(barrier, QUERY_BYTES);
#pragma unroll
        for (int i = 0; i < TEAMS * REGIONS; i++) {
            ptx_tma_load_4d(x->shared + n % QUERIES * QUERY_BYTES + (uint32_t)(i * BOX_BYTES), &x->maps->query, barrier,
                            i % REGIONS * BOX, item->group * FM_PLAN_GROUP + i / REGIONS * BOX, item->head, item->batch);
        }
    }
    __syncwarp();
}

/* K runs one step ahead of V, which is the order of use; the last V goes before the next item's Q, whose place is free later. An item
 * without a step has one that nobody sees and that brings nothing. before: the step whose V is still to be sent. */
static __device__ __forceinline__ void send_part(producer *x, const forward_part *part, uint32_t *before, uint32_t *items) {
    group_walk walk = {.waiting = part->waiting, .word = 0, .now = {{{0, 0}, {0, 0}}}};
    const uint32_t flags = part->flags;
    uint32_t what = walk.waiting != 0 ? walk_next(&walk, part) : 0;
    bool is_first = flags & PART_FIRST;
    for (;;) {
        asm volatile("" : "+r"(x->shared)); /* addresses are computed anew: kept over the loop they would spill */
        const bool is_step = what != STEP_NONE;
        uint32_t next = what;
        if (is_step) {
            next = walk_next(&walk, part);
            const bool is_last = next == STEP_NONE && (flags & PART_LAST);
            send_keys(x, forward_step{what, is_last ? FLAG_LAST : 0u, next == STEP_NONE ? 0 : next}, part);
        } else if (!(flags & PART_LAST)) {
            break;
        }
        if (is_first) {
            send_query(x, &part->item, (*items)++);
        } else {
            send_values(x, *before, part);
        }
        if (!is_step) {
            break;
        }
        is_first = false;
        *before = what;
        what = next;
    }
}

static __device__ __forceinline__ void send(producer *x) {
    uint32_t before = 0, items = 0;
    for (uint32_t n = 0;; n++) {
        const forward_part *part = &x->tail->part[n & 1];
        ptx_mbarrier_wait(TAIL_BARRIER(x, part_full, n & 1), n >> 1 & 1);
        if (part->flags & PART_END) {
            break;
        }
        send_part(x, part, &before, &items);
        ptx_mbarrier_arrive(TAIL_BARRIER(x, part_empty, n & 1));
    }
    ptx_mbarrier_wait(TAIL_BARRIER(x, key_empty, x->key.stage), x->key.phase ^ 1);
    for (int team = 0; team < TEAMS; team++) {
        send_job(x, team, forward_job{STEP_NONE, 0, 0});
    }
    if (threadIdx.x == 0) {
        x->tail->step[x->key.stage] = forward_step{0, FLAG_END, 0};
        ptx_mbarrier_arrive(TAIL_BARRIER(x, key_full, x->key.stage));
    }
}

#endif

/* The three adder warps of a block of both backward kernels, which take dQ of its steps from the teams' staging to the sum. Of TURNS
 * blocks that have a group of keys together each adds its dims and passes on a turn, and waits for those of all.
 *
 * Sums need no zeroing: of the groups of keys that see a tile of rows the last one writes, and the others wait until it has. Items are
 * taken from the last keys of a head to the first, and an item's rows ascend, so under most masks nobody waits: the keys behind are seen
 * by later rows and were begun before. A deterministic call has all of them wait for those behind, which fixes the order of a sum.
 * Without turns (key heads of several query heads, whose items take too long for others to wait) row_terms has zeroed the sums. */
#ifndef FM_CUDA_SM90_BACKWARD_ADDER_CUH
#define FM_CUDA_SM90_BACKWARD_ADDER_CUH

#include "cuda/ptx/turn.cuh"
#include "cuda/sm90/backward_memory.cuh"

/* Groups of keys behind the note's that see its tile of rows. The whole warp. */
static __device__ __forceinline__ uint32_t count_groups_behind(const fm_cuda_problem *p, const backward_note *note) {
    const fm_tile_lines *lines = &p->plan.row_lines;
    const int32_t plane = note->plane, tile = note->tile, group = note->group;
    if (p->no_skip) {
        return (uint32_t)(p->plan.column_lines.groups - 1 - group);
    }
    const fm_tile_word *line = lines->map + ((int64_t)plane * lines->lines + tile) * lines->words;
    const int32_t first = 2 * group + 2; /* tile of keys */
    const int32_t words =
        (lines->range[(int64_t)plane * lines->groups + tile / 2].end + FM_PLAN_WORD_TILES - 1) / FM_PLAN_WORD_TILES;
    uint32_t count = 0;
#pragma unroll 1
    for (int32_t w = first / FM_PLAN_WORD_TILES + (int32_t)threadIdx.x % 32; w < words; w += 32) {
        const uint32_t visible = line[w].visible, pairs = (visible | visible >> 1) & 0x55555555;
        count +=
            (uint32_t)__popc((int)(w == first / FM_PLAN_WORD_TILES ? pairs & 0xffffffff << first % FM_PLAN_WORD_TILES : pairs));
    }
    return __reduce_add_sync(0xffffffffu, count);
}

/* What the team's warps have staged of step n goes to the sum, or is it where nothing was added yet. One lane. */
static __device__ __forceinline__ void add_staged(const fm_cuda_backward_problem *bp, backward_shared *s, int team, uint32_t n,
                                                  uint32_t sum_tile, bool is_first) {
    constexpr int WARPS = ROWS / FM_CUDA_ROW_BLOCK, CHUNK_FLOATS = FM_CUDA_ROW_BLOCK * CHUNK;
    const int chunks = bp->forward.head_dim / CHUNK, first = first_chunk(team);
    const int mine = min(chunks - first, count_chunks(team));
    float *to = bp->grad_query_sum + ((int64_t)sum_tile * (WARPS * chunks) + first) * CHUNK_FLOATS;
    uint32_t from = ptx_shared_address(s->staged[team]);
    ptx_mbarrier_wait(ptx_shared_address(&s->staged_full[team][n % STAGED_PHASES]), n / STAGED_PHASES & 1);
#pragma unroll 1
    for (int warp = 0; warp < WARPS && mine > 0; warp++, from += STAGED_FLOATS * sizeof(float), to += chunks * CHUNK_FLOATS) {
        if (is_first) {
            ptx_bulk_store(to, from, mine * CHUNK_FLOATS * (int)sizeof(float));
        } else {
            ptx_bulk_add_f32(to, from, mine * CHUNK_FLOATS * (int)sizeof(float));
        }
    }
    ptx_bulk_commit();
    ptx_bulk_wait_read<0>();
    ptx_mbarrier_arrive(ptx_shared_address(&s->staged_empty[team]));
}

static __device__ __forceinline__ const backward_note *wait_note(backward_shared *s, uint32_t n) {
    ptx_mbarrier_wait(ptx_shared_address(&s->note_full[n % NOTES]), n / NOTES & 1);
    return &s->note[n % NOTES];
}

/* Adders take steps one after another, for until an addition is complete and its turn passed on takes longer than a step. The whole
 * warp. */
static __device__ __forceinline__ void add_steps(const fm_cuda_backward_problem *bp, backward_shared *s, uint32_t adder) {
#pragma unroll 1
    for (uint32_t n = adder; wait_note(s, n)->group >= 0; n += ADDERS) {
        asm volatile("" : "+l"(s)); /* what follows from it would be kept, and spill */
        const bool has_turns = bp->turns != NULL;
        const uint32_t behind = has_turns ? TURNS * count_groups_behind(&bp->forward, &s->note[n % NOTES]) : 1;
        if (threadIdx.x % 32 == 0) {
            const uint32_t sum_tile = s->note[n % NOTES].sum_tile;
            if (has_turns) {
                ptx_turn_wait(bp->turns + sum_tile, bp->deterministic ? behind : min(behind, (uint32_t)TURNS));
            }
            add_staged(bp, s, FIRST_STAGED, n, sum_tile, behind == 0);
            add_staged(bp, s, 1 - FIRST_STAGED, n, sum_tile, behind == 0);
            if (bp->deterministic || behind == 0) {
                ptx_bulk_wait<0>();
                ptx_turn_pass(bp->turns + sum_tile);
            }
        }
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0) {
        ptx_bulk_wait<0>();
    }
}

#endif

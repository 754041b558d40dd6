/* The tiles that a block visits, read from the plan's map into shared memory a batch at a time: kernels then walk a plain array
 * and can look ahead. */
#ifndef FM_CUDA_TILE_STEP_LIST_CUH
#define FM_CUDA_TILE_STEP_LIST_CUH

#include "cuda/launch.h"
#include "cuda/ptx/bar.cuh"

/* One step: a tile and, in its low bits, the classes of its two halves, which are the group's first and second line: visible and full
 * of the first, then of the second. A second line that does not exist sees nothing: nobody may take its keys or rows for real ones. */
enum {
    STEP_TILE_SHIFT = 4,
    STEP_CAPACITY = 512, /* tiles of 16 words */
    STEP_WORDS = STEP_CAPACITY / FM_PLAN_WORD_TILES
};
static __device__ __forceinline__ int32_t step_tile(uint32_t step) { return (int32_t)(step >> STEP_TILE_SHIFT); }
/* half 0 or 1 */
static __device__ __forceinline__ bool step_half_is_visible(uint32_t step, int half) { return step >> (2 * half) & 1; }
static __device__ __forceinline__ bool step_half_is_full(uint32_t step, int half) { return step >> (2 * half + 1) & 1; }

typedef struct step_list {
    uint32_t steps[STEP_CAPACITY];
    int32_t count;
    int32_t next_word; /* of the line; one past the last: all done */
} step_list;

/* Bits of tile word w of a line that this walk takes: its own, or, with no_skip, every tile as partial. */
static __device__ __forceinline__ fm_tile_word step_word(const fm_tile_lines *lines, const fm_tile_word *line, int32_t w,
                                                         bool no_skip) {
    if (!no_skip) {
        return line[w];
    }
    const int32_t tiles = min(lines->tiles - w * FM_PLAN_WORD_TILES, FM_PLAN_WORD_TILES);
    return fm_tile_word{0xffffffffu >> (FM_PLAN_WORD_TILES - tiles), 0};
}

/* Starts the walk of a group. One thread writes; the next call of step_list_fill makes it visible. */
static __device__ __forceinline__ void step_list_start(step_list *list, const fm_tile_lines *lines, int64_t plane, int32_t group,
                                                       bool no_skip) {
    if (threadIdx.x == 0) {
        list->next_word = no_skip ? 0 : lines->range[plane * lines->groups + group].start / FM_PLAN_WORD_TILES;
    }
}

/* Of this lane's value and those of the lanes below. */
static __device__ __forceinline__ int32_t step_sum_to_lane(int32_t value, int lane) {
    for (int d = 1; d < 32; d *= 2) {
        const int32_t other = __shfl_up_sync(0xffffffffu, value, d);
        value += lane >= d ? other : 0;
    }
    return value;
}

/* Fills the list with the next tiles, ascending; returns how many, 0 at the end. Every thread of the block calls it; nobody may
 * still read the old list. */
static __device__ int step_list_fill(step_list *list, const fm_tile_lines *lines, int64_t plane, int32_t group, bool no_skip) {
    ptx_bar_block();
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x;
        const fm_tile_word *line = lines->map + (plane * lines->lines + 2 * group) * lines->words;
        const bool has_second = 2 * group + 1 < lines->lines;
        const int32_t last_tile = no_skip ? lines->tiles : lines->range[plane * lines->groups + group].end;
        const int32_t end = (last_tile + FM_PLAN_WORD_TILES - 1) / FM_PLAN_WORD_TILES;
        int32_t base = list->next_word, count = 0;
        while (base < end && count == 0) {
            fm_tile_word a = {0, 0}, b = {0, 0};
            const int32_t w = base + lane;
            if (lane < STEP_WORDS && w < end) {
                a = step_word(lines, line, w, no_skip);
                b = has_second ? step_word(lines, line + lines->words, w, no_skip) : b;
            }
            uint32_t bits = a.visible | b.visible;
            const int32_t before = step_sum_to_lane(__popc(bits), lane);
            count = __shfl_sync(0xffffffffu, before, 31);
            int32_t at = before - __popc(bits);
            while (bits != 0) {
                const int t = __ffs((int)bits) - 1;
                bits &= bits - 1;
                const uint32_t classes =
                    (a.visible >> t & 1) | (a.full >> t & 1) << 1 | (b.visible >> t & 1) << 2 | (b.full >> t & 1) << 3;
                list->steps[at++] = (uint32_t)(w * FM_PLAN_WORD_TILES + t) << STEP_TILE_SHIFT | classes;
            }
            base += STEP_WORDS;
        }
        __syncwarp();
        if (lane == 0) {
            list->next_word = base;
            list->count = count;
        }
    }
    ptx_bar_block();
    return list->count;
}

/* Keeps the steps that one half of the group sees, for blocks of 64 rows (keys); returns how many. Every thread of the block calls
 * it. */
static __device__ int step_list_keep_half(step_list *list, int half) {
    ptx_bar_block(); /* everybody has read the old count */
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x, count = list->count;
        int kept = 0;
        for (int base = 0; base < count; base += 32) {
            const uint32_t step = base + lane < count ? list->steps[base + lane] : 0;
            const bool keeps = step_half_is_visible(step, half);
            const uint32_t lanes = __ballot_sync(0xffffffffu, keeps);
            __syncwarp();
            if (keeps) {
                list->steps[kept + __popc(lanes & ((1u << lane) - 1))] = step;
            }
            kept += __popc(lanes);
            __syncwarp();
        }
        if (lane == 0) {
            list->count = kept;
        }
    }
    ptx_bar_block();
    return list->count;
}

#endif

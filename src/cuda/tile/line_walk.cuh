/* The tiles of one line, ascending, straight from the words of the plan's map. For kernels whose tile is one line high: every
 * thread walks by itself, with no shared memory and no barrier, and a tile visible only in the group's other line never shows. */
#ifndef FM_CUDA_TILE_LINE_WALK_CUH
#define FM_CUDA_TILE_LINE_WALK_CUH

#include "cuda/launch.h"

enum { WALK_END = -1 };

typedef struct line_walk {
    const fm_tile_word *words; /* of the line */
    int32_t tiles;
    int32_t next_word, end_word;
    uint32_t visible, full; /* tiles of word next_word - 1 that are still to come; their classes */
    bool no_skip;           /* every tile, as partial */
} line_walk;

static __device__ __forceinline__ line_walk line_walk_start(const fm_tile_lines *lines, int64_t plane, int32_t line,
                                                            bool no_skip) {
    const fm_interval range = lines->range[plane * lines->groups + line / 2];
    line_walk walk;
    walk.words = lines->map + (plane * lines->lines + line) * lines->words;
    walk.tiles = lines->tiles;
    walk.next_word = no_skip ? 0 : range.start / FM_PLAN_WORD_TILES;
    walk.end_word = no_skip ? lines->words : (range.end + FM_PLAN_WORD_TILES - 1) / FM_PLAN_WORD_TILES;
    walk.visible = walk.full = 0;
    walk.no_skip = no_skip;
    return walk;
}

/* The next tile, or WALK_END. */
static __device__ __forceinline__ int32_t line_walk_next(line_walk *walk, bool *is_full) {
    while (walk->visible == 0) {
        if (walk->next_word >= walk->end_word) {
            return WALK_END;
        }
        const int32_t left = walk->tiles - walk->next_word * FM_PLAN_WORD_TILES;
        const uint32_t all = left < FM_PLAN_WORD_TILES ? (1u << left) - 1 : 0xffffffffu;
        const fm_tile_word word = walk->words[walk->next_word++];
        walk->visible = walk->no_skip ? all : word.visible;
        walk->full = walk->no_skip ? 0 : word.full;
    }
    const int bit = __ffs((int)walk->visible) - 1;
    walk->visible &= walk->visible - 1;
    *is_full = walk->full >> bit & 1;
    return (walk->next_word - 1) * FM_PLAN_WORD_TILES + bit;
}

#endif

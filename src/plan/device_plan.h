/* The plan on a GPU: arrays in one buffer of the caller's, written by the plan kernels and read by attention kernels, which get
 * this struct by value. Every size is a function of the mask's shape and the number of intervals stored, never of its contents.
 *
 * Tiles are 64 x 64 whatever the kernel: a kernel whose tile is 128 rows high reads two adjacent lines at once, and each half of
 * it knows its own class. Two bits a tile: visible (some pair is) and full (every pair is; a tile cut by the last row goes by its
 * real rows, a tile cut by the last key is never full). Both orientations are stored, so that a walk along rows (forward) and
 * one along columns (backward) read consecutive words. Lines are grouped in pairs, the unit of work and of its order.
 */
#ifndef FM_PLAN_DEVICE_PLAN_H
#define FM_PLAN_DEVICE_PLAN_H

#include <flashmask/flashmask.h>

enum {
    FM_PLAN_BLOCK = 64,      /* rows and keys of a tile */
    FM_PLAN_WORD_TILES = 32, /* tiles of a word */
    FM_PLAN_GROUP = 128      /* rows (keys) of a group: two lines; equal to FM_STRIPE, so no group crosses a bitmap's edge */
};

enum { FM_DEVICE_ALIGNMENT = 256 }; /* of plan buffers and workspaces on a GPU, and of the arrays in them */

/* 32 tiles of one line. Bits past the last tile are 0. */
typedef struct fm_tile_word {
    uint32_t visible, full;
} fm_tile_word;

/* One orientation. A line of `rows` is a row of tiles, its bits run along the keys; a line of `columns` the other way round. */
typedef struct fm_tile_lines {
    int32_t lines;      /* ceil(Sq / 64); of columns ceil(Sk / 64) */
    int32_t tiles;      /* of a line: the other of the two */
    int32_t words;      /* of a line: ceil(tiles / 32) */
    int32_t groups;     /* ceil(lines / 2) */
    fm_tile_word *map;  /* [planes, lines, words] */
    fm_interval *range; /* [planes, groups] first tile visible in any line of the group and one past the last; [0, 0): none */
    int32_t *count;     /* [planes, groups] tiles visible in any line of the group */
    int32_t *order;     /* [planes, groups] groups with most such tiles first; ties ascending */
} fm_tile_lines;

typedef struct fm_device_plan {
    int32_t batch, heads;  /* Bm, Hm of the mask; plane = b * Hm + h */
    int32_t rows, columns; /* Sq, Sk */
    int32_t intervals;     /* M: 1 .. FM_MAX_INTERVALS */
    int32_t bounds_stride; /* Sk rounded up to a multiple of FM_PLAN_GROUP */
    /* [planes, M, bounds_stride] visible rows of a key, window included; ascending, empty ones (start == end) last; keys from Sk
     * on are empty. 16-byte aligned. A key of a bitmap stripe has its window as interval 0 and is visible where its bit is too. */
    fm_interval *bounds;
    fm_tile_lines row_lines, column_lines;
    /* The fallback in the layout of mask/mask.h; stripe_slot NULL: none. */
    int32_t stripes, row_blocks;
    int32_t *stripe_slot; /* [planes, stripes] */
    int32_t *block_index; /* [planes * stripes, row_blocks] */
    uint64_t *blocks;     /* [options.fallback_blocks, FM_BLOCK_WORDS] */
} fm_device_plan;

#endif

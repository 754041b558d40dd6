/* A stripe of FM_STRIPE key columns as bits: word [2 * row + c / 64] bit [c % 64] is its column c, for the mask's rows rounded
 * up to a multiple of FM_STRIPE. Bits past the last row or column are 0. What bitmaps and algebra on them are made of. */
#ifndef FM_MASK_STRIPE_H
#define FM_MASK_STRIPE_H

#include "mask/mask.h"

/* Words of one stripe of a mask with so many rows. */
static inline int64_t fm_stripe_words(int64_t rows) { return fm_ceil_divide(rows, FM_STRIPE) * FM_BLOCK_WORDS; }

enum { FM_BLOCK_MIXED = 0 };

/* The same with a kind for each block of FM_STRIPE rows, so that a long stripe costs what its mixed blocks cost. Words of
 * blocks that are not mixed hold anything, those past the last row are 0 from opening on. Reuse one object for many stripes. */
typedef struct fm_stripe_blocks {
    int64_t rows, keys; /* keys: columns of this stripe, at most FM_STRIPE */
    int32_t *kinds; /* [row blocks]: FM_BLOCK_HIDDEN, FM_BLOCK_VISIBLE (all real pairs are), FM_BLOCK_MIXED; NULL: all mixed */
    uint64_t *words;
} fm_stripe_blocks;

fm_status fm_stripe_blocks_open(fm_stripe_blocks *blocks, int64_t rows);
void fm_stripe_blocks_close(fm_stripe_blocks *blocks);

static inline int64_t fm_stripe_block_rows(const fm_stripe_blocks *s, int64_t block) {
    return fm_smaller(s->rows - block * FM_STRIPE, FM_STRIPE);
}

static inline int32_t fm_stripe_kind(const fm_stripe_blocks *s, int64_t block) {
    return s->kinds != NULL ? s->kinds[block] : FM_BLOCK_MIXED;
}

/* Visible keys of one row. */
static inline void fm_stripe_row(const fm_stripe_blocks *s, int64_t row, uint64_t out[2]) {
    const int32_t kind = fm_stripe_kind(s, row / FM_STRIPE);
    const bool visible = kind == FM_BLOCK_VISIBLE;
    out[0] = kind == FM_BLOCK_MIXED ? s->words[2 * row] : visible ? fm_low_bits(s->keys) : 0;
    out[1] = kind == FM_BLOCK_MIXED ? s->words[2 * row + 1] : visible ? fm_low_bits(s->keys - 64) : 0;
}

/* Building one from intervals: begin; add intervals of columns [c, c + columns), which do not overlap or touch in any column;
 * end. Costs the intervals, the blocks that they begin or end in and those that only some columns see. */
void fm_stripe_begin(fm_stripe_blocks *s, int64_t keys);
void fm_stripe_add(fm_stripe_blocks *s, int64_t c, int64_t columns, fm_interval v);
/* The same for the columns whose bits are set. */
void fm_stripe_add_columns(fm_stripe_blocks *s, const uint64_t columns[2], fm_interval v);
void fm_stripe_end(fm_stripe_blocks *s);

/* Hides what is above the diagonal of one block: its row r sees no column after r. */
void fm_stripe_cut_diagonal(fm_stripe_blocks *s, int64_t block);

/* One stripe of a mask, whichever way it is stored. Stripes outside [0, stripes) see nothing. */
void fm_mask_read_blocks(const fm_mask_view *v, int64_t b, int64_t h, int64_t stripe, fm_stripe_blocks *out);

/* True if some column has more than FM_MAX_INTERVALS visible intervals. */
bool fm_stripe_needs_bitmap(const fm_stripe_blocks *s);

/* Intervals of a column of a stripe that is not a bitmap; returns how many. */
static inline int32_t fm_mask_read_column(const fm_mask_view *v, int64_t b, int64_t h, int64_t column,
                                          fm_interval out[FM_MAX_INTERVALS]) {
    int32_t count = 0;
    while (count < v->intervals) {
        const fm_interval interval = fm_mask_bounds(v, b, h, count)[column];
        if (interval.start >= interval.end) {
            break;
        }
        out[count++] = interval;
    }
    return count;
}

#endif

/* The mask as the rest of the library sees it: the canonical arrays, read through a view that backends receive too. A plane is
 * the score matrix of one (batch item, head): number b * Hm + h.
 *
 * Intervals: bounds[((b * Hm + h) * M + m) * Sk + j] is visible interval m of key column j; unused ones are [Sq, Sq).
 * Fallback: keys are cut into aligned stripes of FM_STRIPE columns. A stripe one of whose columns needs more than
 * FM_MAX_INTERVALS intervals is a bitmap: its columns have no intervals, stripe_slot gives it a slot, and
 * block_index[slot * row_blocks + r] says for its rows [128 r, 128 r + 128) whether no pair is visible
 * (FM_BLOCK_HIDDEN), every real pair is (FM_BLOCK_VISIBLE), or which 128 x 128-bit block holds them. Equal blocks are one.
 * In a block, word [2 * row + column / 64] bit [column % 64] is the pair; bits past Sq or Sk are 0.
 */
#ifndef FM_MASK_MASK_H
#define FM_MASK_MASK_H

#include "core/integers.h"
#include "core/status.h"

#include <stdatomic.h>

enum { FM_BLOCK_HIDDEN = -1, FM_BLOCK_VISIBLE = -2, FM_BLOCK_WORDS = FM_STRIPE * FM_STRIPE / 64, FM_NO_SLOT = -1 };

typedef struct fm_mask_view {
    fm_mask_shape shape;
    int32_t intervals;          /* M */
    const fm_interval *bounds;  /* [Bm, Hm, M, Sk] */
    int64_t stripes;            /* ceil(Sk / 128) */
    int64_t row_blocks;         /* ceil(Sq / 128) */
    const int32_t *stripe_slot; /* [Bm, Hm, stripes], or NULL: no fallback */
    const int32_t *block_index; /* [slots, row_blocks] */
    const uint64_t *blocks;     /* [block_count, FM_BLOCK_WORDS] */
    int64_t slots, block_count;
} fm_mask_view;

struct fm_mask {
    fm_mask_view view; /* its arrays belong to the mask */
    int64_t visible_pairs;
    uint64_t hash;
    atomic_int references;
};

/* Another owner of the same mask; each calls fm_mask_free. */
fm_mask *fm_mask_retain(const fm_mask *mask);

/* Extents in range and the total of pairs below 2^63. */
fm_status fm_mask_shape_check(fm_mask_shape shape);

/* Columns of one stripe: FM_STRIPE, fewer in the last. */
static inline int64_t fm_stripe_keys(int64_t columns, int64_t stripe) {
    return fm_smaller(columns - stripe * FM_STRIPE, FM_STRIPE);
}

/* Interval m of column 0 of one head; column j is [j]. */
static inline const fm_interval *fm_mask_bounds(const fm_mask_view *v, int64_t b, int64_t h, int32_t m) {
    return v->bounds + ((b * v->shape.heads + h) * v->intervals + m) * v->shape.columns;
}

/* Slot of a stripe, or FM_NO_SLOT where it holds intervals. */
static inline int32_t fm_mask_slot(const fm_mask_view *v, int64_t b, int64_t h, int64_t stripe) {
    return v->stripe_slot == NULL ? FM_NO_SLOT : v->stripe_slot[(b * v->shape.heads + h) * v->stripes + stripe];
}

/* Visible keys of one row of one bitmap stripe: 2 words. Bits past Sk are 0. */
void fm_mask_stripe_row(const fm_mask_view *v, int32_t slot, int64_t stripe, int64_t row, uint64_t bits[2]);

/* Visible row intervals of the columns of one stripe, however many: column c (0 .. FM_STRIPE - 1, fewer at the end) has
 * intervals[first[c] .. first[c + 1]), ascending and separated. Reuse one object; release with fm_stripe_columns_free. */
typedef struct fm_stripe_columns {
    int64_t first[FM_STRIPE + 1];
    fm_interval *intervals;
    int64_t capacity;
} fm_stripe_columns;
fm_status fm_mask_read_stripe(const fm_mask_view *v, int64_t b, int64_t h, int64_t stripe, fm_stripe_columns *out);
void fm_stripe_columns_free(fm_stripe_columns *columns);

#endif

/* Which pairs of a small piece of the score matrix are visible, as bits: mask, causal flag and window together. */
#ifndef FM_MASK_VISIBILITY_H
#define FM_MASK_VISIBILITY_H

#include "mask/mask.h"

/* The causal flag and the window of a call as one: row i sees keys i + shift - left .. i + shift + right, shift = Sk - Sq. */
typedef struct fm_window {
    int64_t left, right; /* FM_UNLIMITED: no bound on that side */
    int64_t shift;
} fm_window;
#define FM_UNLIMITED (INT64_MAX / 4)

/* A reach of a public window, `name`: keys >= 0, or -1 for FM_UNLIMITED. */
fm_status fm_window_reach(const char *name, int64_t keys, int64_t *out);

/* From the public arguments: -1 is unlimited, causal means right <= 0. Lower values are errors naming the argument. */
fm_status fm_window_make(bool causal, int64_t window_left, int64_t window_right, fm_mask_shape shape, fm_window *out);

static inline bool fm_window_is_unlimited(const fm_window *w) { return w->left >= FM_UNLIMITED && w->right >= FM_UNLIMITED; }

/* Rows [start, end) that may see a column by the window alone; empty ones have start >= end. Cut to [0, rows). */
static inline fm_interval fm_window_rows(const fm_window *w, int64_t column, int64_t rows) {
    const int64_t start = column - w->right - w->shift, end = column + w->left - w->shift + 1;
    return (fm_interval){(int32_t)(start < 0      ? 0
                                   : start > rows ? rows
                                                  : start),
                         (int32_t)(end < 0      ? 0
                                   : end > rows ? rows
                                                : end)};
}

/* bits[r] bit c = row row0 + r sees column column0 + c, for r < rows and c < columns <= 64; higher bits are 0. The columns
 * must not cross a multiple of 64; rows row0 .. row0 + rows - 1 exist in the mask. O(rows + columns * M). */
void fm_visible_bits(const fm_mask_view *mask, const fm_window *window, int64_t batch, int64_t head, int64_t row0, int64_t rows,
                     int64_t column0, int64_t columns, uint64_t *bits);

#endif

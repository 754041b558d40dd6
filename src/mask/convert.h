/* What the conversions share: checks of the caller's arrays, and reading a mask column by column. */
#ifndef FM_MASK_CONVERT_H
#define FM_MASK_CONVERT_H

#include "mask/mask.h"

/* The shape is legal, and so are batch * heads * lists * length elements of at most 8 bytes: their number. `lists` leads the
 * message as `name`. */
fm_status fm_array_count(const char *name, fm_mask_shape shape, int64_t lists, int64_t length, int64_t *count);

/* An array with elements is there. NULL is fine for none. */
fm_status fm_array_check_input(const char *name, const void *array, int64_t count);

/* The same, and it has room: `capacity` elements are at least `count`. */
fm_status fm_array_check_output(const char *name, const void *array, int64_t capacity, int64_t count);

/* The four forms of startend_row_indices: 1 or 2 vectors causal, 2 or 4 not causal. */
fm_status fm_startend_check(int32_t vectors, bool causal);

/* First row of column j that the bottom-right diagonal admits, within [0, Sq]. */
static inline int32_t fm_diagonal_row(fm_mask_shape shape, int64_t column) {
    const int64_t row = column - (shape.columns - shape.rows);
    return (int32_t)(row < 0 ? 0 : row);
}

typedef struct fm_column {
    int64_t batch, head, index;
    const fm_interval *v; /* ascending and separated; valid during the visit */
    int64_t count;
} fm_column;

/* Calls visit for each column of one head, ascending; stops at the first status that is not FM_OK and returns it. scratch
 * starts as zeros and is freed by the caller. Visiting the same columns again with it allocates nothing, so that a second
 * visit that writes what the first has checked cannot fail. */
typedef fm_status (*fm_column_visitor)(void *context, const fm_column *column);
fm_status fm_columns_visit(const fm_mask_view *view, int64_t b, int64_t h, fm_stripe_columns *scratch, fm_column_visitor visit,
                           void *context);

#endif

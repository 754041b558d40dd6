/* What the builders of named masks share: argument checks that name the argument, ranges of columns, and the ending. */
#ifndef FM_MASK_BUILDERS_H
#define FM_MASK_BUILDERS_H

#include <flashmask/masks.h>

#include "mask/visibility.h"
#include "mask/writer.h"

/* value is 0 .. 2^31 - 1. */
fm_status fm_check_extent(const char *name, int64_t value);

/* A count of keys, rows or blocks that may pass the extents: value >= 0. *clamped is at most 2^31 - 1, which no extent
 * passes, so that sums of a few of them do not overflow. */
fm_status fm_check_reach(const char *name, int64_t value, int64_t *clamped);

/* n is 0 .. 2^31 - 1, and array is not NULL where n > 0. */
fm_status fm_check_array(const char *count_name, const char *array_name, int64_t n, const void *array);

/* Adds length to *total if it is 0 or more and the sum at most 2^31 - 1; false and unchanged otherwise. */
bool fm_add_length(int64_t length, int64_t *total);

/* lengths[0 .. n) and padding more tokens; *total is their sum, at most 2^31 - 1. */
fm_status fm_check_documents(int64_t n, const int64_t *lengths, int64_t padding, int64_t *total);

/* Spans [offset[k], offset[k] + length[k]) of tokens. */
typedef struct fm_spans {
    int64_t count;
    const int64_t *offset, *length;
} fm_spans;

/* They ascend, do not overlap and lie in [0, total). */
fm_status fm_check_spans(const fm_spans *spans, int64_t total);

/* Causal in a square mask. */
#define FM_CAUSAL ((fm_window){.left = FM_UNLIMITED, .right = 0, .shift = 0})

/* Columns [first, last) of one head of batch item 0: column j sees the rows of its window that are before `end`. */
fm_status fm_write_window(fm_mask_writer *writer, int64_t head, int64_t first, int64_t last, fm_window window, int64_t end);

/* Columns [first, last) of one head of batch item 0: rows [start, end). */
fm_status fm_write_rows(fm_mask_writer *writer, int64_t head, int64_t first, int64_t last, int64_t start, int64_t end);

/* A writer for a mask of batch 1. */
fm_status fm_builder_open(fm_mask_writer *writer, int64_t heads, int64_t Sq, int64_t Sk, int64_t max_intervals);

/* Ends a builder: the mask where status is FM_OK, else that status; the writer is closed either way. */
fm_status fm_builder_finish(fm_mask_writer *writer, fm_status status, fm_mask **out);

#endif

/* Builds a canonical mask from the visible row intervals of each column.
 *
 *     fm_mask_writer writer;
 *     FM_TRY(fm_mask_writer_open(&writer, shape, max_intervals, options));
 *     for each batch item, head, column in any order, each at most once:
 *         FM_TRY_DONE(fm_mask_writer_column(&writer, b, h, column, intervals, count));
 *     FM_TRY_DONE(fm_mask_writer_finish(&writer, &mask));
 * done:
 *     fm_mask_writer_close(&writer);
 *
 * Columns never written see nothing. A stripe whose pairs are known as bits is written whole with fm_mask_writer_stripe: for
 * masks of many intervals that is faster and needs no memory for the intervals. A writer serves one thread.
 */
#ifndef FM_MASK_WRITER_H
#define FM_MASK_WRITER_H

#include "mask/fallback.h"

typedef struct fm_long_column { /* equal columns of one stripe with more than FM_MAX_INTERVALS intervals each */
    int64_t plane;              /* b * Hm + h */
    int64_t column, columns;
    int64_t first, count; /* in long_intervals */
} fm_long_column;

typedef struct fm_mask_writer {
    fm_mask_shape shape;
    int32_t room;        /* intervals of a column that bounds can hold: 0 .. FM_MAX_INTERVALS */
    fm_interval *bounds; /* [Bm, Hm, room, Sk] */
    fm_fallback fallback;
    fm_stripe_blocks blocks; /* of the stripe that becomes a bitmap; not open until one does */
    fm_long_column *long_columns;
    int64_t long_count, long_capacity;
    fm_interval *long_intervals;
    int64_t long_used, long_intervals_capacity;
    fm_interval *scratch; /* sorted copy of one column's intervals; used only for more than FM_MAX_INTERVALS */
    int64_t scratch_capacity;
} fm_mask_writer;

/* max_intervals: most that any column will have after merging, 0 or more; above FM_MAX_INTERVALS means no bound. */
fm_status fm_mask_writer_open(fm_mask_writer *writer, fm_mask_shape shape, int64_t max_intervals, const fm_mask_options *options);

/* count intervals, half-open, in any order; cut to [0, Sq), empty ones dropped, overlapping and touching ones merged. */
fm_status fm_mask_writer_column(fm_mask_writer *writer, int64_t b, int64_t h, int64_t column, const fm_interval *intervals,
                                int64_t count);

/* The same for columns [column, column + columns), all with these intervals: O(count + columns * FM_MAX_INTERVALS). */
fm_status fm_mask_writer_columns(fm_mask_writer *writer, int64_t b, int64_t h, int64_t column, int64_t columns,
                                 const fm_interval *intervals, int64_t count);

/* The common case: at most one interval, given as wide integers so that callers need not clamp. */
fm_status fm_mask_writer_interval(fm_mask_writer *writer, int64_t b, int64_t h, int64_t column, int64_t start, int64_t end);

/* All columns of one stripe, none of which is written otherwise; bits as in stripe.h. It is kept as a bitmap only where some
 * column has more than FM_MAX_INTERVALS intervals. The writer must be open for as many intervals as it has. */
fm_status fm_mask_writer_stripe(fm_mask_writer *writer, int64_t b, int64_t h, int64_t stripe, const uint64_t *bits);

/* The same from blocks: costs the mixed ones. */
fm_status fm_mask_writer_blocks(fm_mask_writer *writer, int64_t b, int64_t h, int64_t stripe, const fm_stripe_blocks *blocks);

/* Optional: says that every stripe written so far is complete. Those that need it become bitmaps now, so that the memory for
 * many long columns is that of the bitmaps and of one stripe's intervals. */
fm_status fm_mask_writer_flush(fm_mask_writer *writer);

/* Yields the mask and empties the writer. FM_ERROR_LIMIT if the fallback needs more than the options allow. */
fm_status fm_mask_writer_finish(fm_mask_writer *writer, fm_mask **out);

/* Releases what an unfinished writer holds; fine after finish. */
void fm_mask_writer_close(fm_mask_writer *writer);

#endif

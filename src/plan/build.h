/* The three steps of building a plan, in this order. Each fills its part of a plan whose mask, window and tiles are set. */
#ifndef FM_PLAN_BUILD_H
#define FM_PLAN_BUILD_H

#include "plan/plan.h"

/* columns and stats.visible_pairs, from the mask and the window. Work: O(N log block_n) over columns that are intervals, with
 * few distinct tile rows per column tile in structured masks; one word per 64 pairs over bitmaps that are partly visible. */
fm_status fm_plan_build_columns(fm_plan *plan);

/* rows: the same tiles, transposed. Work and memory are proportional to the runs of both tables, not to the tiles. */
fm_status fm_plan_build_rows(fm_plan *plan);

/* order and column_order. */
fm_status fm_plan_build_orders(fm_plan *plan);

#endif

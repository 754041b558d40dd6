/* A plan's insides, for backends. Host plans are built in plan.c, device plans in attention/device_plan.c. */
#ifndef FM_PLAN_PLAN_H
#define FM_PLAN_PLAN_H

#include "mask/visibility.h"
#include "plan/device_plan.h"

/* Tiles of the CPU backend: 64 keys are one word of visibility bits; both divide FM_STRIPE. */
enum { FM_CPU_BLOCK_M = 64, FM_CPU_BLOCK_N = 64 };

/* Runs of many lines (rows or columns of tiles) in one array: line l has runs[first[l] .. first[l + 1]). */
typedef struct fm_run_table {
    int64_t lines;
    int64_t *first; /* [lines + 1] */
    fm_tile_run *runs;
} fm_run_table;

struct fm_plan {
    fm_mask_shape shape;
    fm_mask *mask;    /* retained; NULL: a device plan made from vectors, or of no mask */
    fm_window window; /* causal and window flags as one */
    fm_device device; /* FM_CPU: a host plan, and the runs below hold it; FM_CUDA: on_device does, in the caller's buffer */
    fm_device_plan on_device;
    int32_t block_m, block_n;
    int64_t tile_rows, tile_columns;
    fm_run_table rows;     /* line (b * Hm + h) * tile_rows + tile_row */
    fm_run_table columns;  /* line (b * Hm + h) * tile_columns + tile_column */
    fm_work *order;        /* [rows.lines], longest first */
    int64_t *column_order; /* [columns.lines], lines of `columns`, longest first */
    fm_plan_stats stats;
};

#endif

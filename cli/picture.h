/* A mask and its tile classes, scaled down to a grid of cells. */
#ifndef FM_CLI_PICTURE_H
#define FM_CLI_PICTURE_H

#include "error.h"

#include <stdio.h>

typedef enum fm_cell {
    FM_CELL_SKIPPED = 0, /* only skipped tiles */
    FM_CELL_HIDDEN,      /* no pair of the cell is visible, but its tile is visited */
    FM_CELL_PARTLY,      /* some pairs are visible */
    FM_CELL_VISIBLE,     /* all pairs are visible, but not all tiles are full */
    FM_CELL_FULL,        /* only full tiles */
    FM_CELL_KINDS
} fm_cell;

typedef struct fm_picture {
    int64_t rows, columns;           /* cells */
    int64_t cell_rows, cell_columns; /* pairs in a cell; fewer at the end */
    unsigned char *cells;            /* fm_cell, [rows, columns] */
} fm_picture;

typedef struct fm_picture_request {
    const fm_plan *plan;   /* of the tiles that are drawn */
    int64_t batch, head;   /* of the mask */
    int64_t rows, columns; /* most cells, at least 1 */
} fm_picture_request;

/* Cells divide tiles or hold whole ones. The caller frees the picture. */
bool fm_picture_make(const fm_mask *mask, const fm_picture_request *request, fm_picture *out);
void fm_picture_free(fm_picture *picture);

/* In characters, framed, with a legend. */
void fm_picture_print(FILE *to, const fm_picture *picture);

#endif

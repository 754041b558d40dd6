#include "picture.h"

#include <inttypes.h>
#include <stdlib.h>

static const char glyphs[FM_CELL_KINDS] = {' ', '.', '+', 'x', '#'};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Extent of a cell: at least what fits `most` cells, and a divisor or a multiple of the tile's. */
static int64_t cell_extent(int64_t extent, int64_t tile, int64_t most) {
    int64_t cell = ceil_divide(extent, most);
    if (cell >= tile) {
        return ceil_divide(cell, tile) * tile;
    }
    while (tile % cell != 0) {
        cell++;
    }
    return cell;
}

/* Which pairs of the score matrix a run of tiles covers. */
typedef struct box {
    int64_t row0, row1, column0, column1;
} box;

/* Adds the pairs that box shares with each cell to area. */
static void add_area(const fm_picture *p, box b, int64_t *area) {
    for (int64_t r = b.row0 / p->cell_rows; r * p->cell_rows < b.row1; r++) {
        const int64_t top = r * p->cell_rows > b.row0 ? r * p->cell_rows : b.row0;
        const int64_t height = smaller((r + 1) * p->cell_rows, b.row1) - top;
        for (int64_t c = b.column0 / p->cell_columns; c * p->cell_columns < b.column1; c++) {
            const int64_t left = c * p->cell_columns > b.column0 ? c * p->cell_columns : b.column0;
            const int64_t width = smaller((c + 1) * p->cell_columns, b.column1) - left;
            area[r * p->columns + c] += height * width;
        }
    }
}

/* Pairs of each cell that lie in tiles of plan: full ones, and all that are visited. */
typedef struct areas {
    int64_t *full, *visited;
} areas;

static bool measure(const fm_picture *p, const fm_picture_request *request, const fm_plan *plan, fm_mask_shape shape, areas out) {
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    if (!fm_cli_ok(fm_plan_get_stats(plan, &stats), "picture")) {
        return false;
    }
    for (int64_t row0 = 0; row0 < shape.rows; row0 += stats.block_m) {
        const fm_tile_run *runs = NULL;
        int64_t count = 0;
        if (!fm_cli_ok(fm_plan_row_runs(plan, request->batch, request->head, row0 / stats.block_m, &runs, &count), "picture")) {
            return false;
        }
        for (int64_t i = 0; i < count; i++) {
            const int64_t column0 = (int64_t)runs[i].first * stats.block_n;
            const box covered = {row0, smaller(row0 + stats.block_m, shape.rows), column0,
                                 smaller(column0 + (int64_t)runs[i].count * stats.block_n, shape.columns)};
            add_area(p, covered, out.visited);
            if (runs[i].kind == FM_TILE_FULL) {
                add_area(p, covered, out.full);
            }
        }
    }
    return true;
}

static bool plan_cells(const fm_mask *mask, int64_t cell_rows, int64_t cell_columns, fm_plan **out) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.block_m = (int32_t)smaller(cell_rows, 1 << 20);
    options.block_n = (int32_t)smaller(cell_columns, 1 << 20);
    return fm_cli_ok(fm_plan_create(mask, &options, out), "picture");
}

/* A tile that the last key cuts is never full; a plan of the last column of cells alone says whether its pairs are all
 * visible. Sets full of that column's cells. */
static bool measure_last_column(const fm_picture *p, const fm_mask *mask, const fm_picture_request *request, int64_t *full) {
    const fm_mask_shape shape = fm_mask_get_shape(mask);
    const int64_t column0 = (p->columns - 1) * p->cell_columns, width = shape.columns - column0;
    const fm_picture strip = {.rows = p->rows, .columns = 1, .cell_rows = p->cell_rows, .cell_columns = width};
    fm_mask *part = NULL;
    fm_plan *plan = NULL;
    int64_t *area = fm_cli_allocate(2 * p->rows, sizeof *area);
    bool ok = area != NULL && fm_cli_ok(fm_mask_slice(mask, 0, shape.rows, column0, shape.columns, NULL, &part), "picture") &&
              plan_cells(part, p->cell_rows, width, &plan) &&
              measure(&strip, request, plan, fm_mask_get_shape(part), (areas){area, area + p->rows});
    for (int64_t r = 0; ok && r < p->rows; r++) {
        full[(r + 1) * p->columns - 1] = area[r];
    }
    free(area);
    fm_plan_free(plan);
    fm_mask_free(part);
    return ok;
}

/* tiles: areas by the tiles that are drawn; cells: by a plan whose tiles are the cells. */
static void classify(fm_picture *p, fm_mask_shape shape, areas tiles, areas cells) {
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        const int64_t row0 = i / p->columns * p->cell_rows, column0 = i % p->columns * p->cell_columns;
        const int64_t area = smaller(p->cell_rows, shape.rows - row0) * smaller(p->cell_columns, shape.columns - column0);
        p->cells[i] = tiles.visited[i] == 0   ? FM_CELL_SKIPPED
                      : tiles.full[i] == area ? FM_CELL_FULL
                      : cells.visited[i] == 0 ? FM_CELL_HIDDEN
                      : cells.full[i] == area ? FM_CELL_VISIBLE
                                              : FM_CELL_PARTLY;
    }
}

bool fm_picture_make(const fm_mask *mask, const fm_picture_request *request, fm_picture *out) {
    const fm_mask_shape shape = fm_mask_get_shape(mask);
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    fm_plan *cell_plan = NULL;
    if (!fm_cli_ok(fm_plan_get_stats(request->plan, &stats), "picture")) {
        return false;
    }
    fm_picture p = {.cell_rows = cell_extent(shape.rows, stats.block_m, request->rows),
                    .cell_columns = cell_extent(shape.columns, stats.block_n, request->columns)};
    p.rows = ceil_divide(shape.rows, p.cell_rows);
    p.columns = ceil_divide(shape.columns, p.cell_columns);
    const int64_t count = p.rows * p.columns;
    int64_t *area = fm_cli_allocate(4 * count, sizeof *area);
    p.cells = fm_cli_allocate(count, 1);
    const areas tiles = {area, area + count}, cells = {area + 2 * count, area + 3 * count};
    const bool ok = area != NULL && p.cells != NULL && measure(&p, request, request->plan, shape, tiles) &&
                    plan_cells(mask, p.cell_rows, p.cell_columns, &cell_plan) && measure(&p, request, cell_plan, shape, cells) &&
                    (shape.columns % p.cell_columns == 0 || measure_last_column(&p, mask, request, cells.full));
    if (ok) {
        classify(&p, shape, tiles, cells);
        *out = p;
    } else {
        free(p.cells);
    }
    fm_plan_free(cell_plan);
    free(area);
    return ok;
}

void fm_picture_free(fm_picture *picture) {
    free(picture->cells);
    *picture = (fm_picture){0};
}

static void print_edge(FILE *to, int64_t columns) {
    fputc('+', to);
    for (int64_t c = 0; c < columns; c++) {
        fputc('-', to);
    }
    fputs("+\n", to);
}

void fm_picture_print(FILE *to, const fm_picture *p) {
    print_edge(to, p->columns);
    for (int64_t r = 0; r < p->rows; r++) {
        fputc('|', to);
        for (int64_t c = 0; c < p->columns; c++) {
            fputc(glyphs[p->cells[r * p->columns + c]], to);
        }
        fputs("|\n", to);
    }
    print_edge(to, p->columns);
    fprintf(to, "one character: %" PRId64 " row%s x %" PRId64 " key%s\n", p->cell_rows, p->cell_rows == 1 ? "" : "s",
            p->cell_columns, p->cell_columns == 1 ? "" : "s");
    fputs("blank: skipped tiles, #: full tiles; in partial tiles .: hidden, +: partly visible, x: visible\n", to);
}

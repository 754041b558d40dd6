/* Runs of the rows of tiles out of those of the columns, and the orders of work.
 *
 * Columns of tiles are walked left to right. A row of tiles is looked at only where its class differs from the one in the
 * column before, which is where a run of that row ends or begins.
 */
#include "plan/build.h"

#include "core/memory.h"

#include <stdlib.h>

/* One (batch item, head) of the mask. */
typedef struct row_sweep {
    const fm_plan *plan;
    int32_t *since;    /* [tile_rows] column of tiles from which the row has had its present class */
    int64_t *next;     /* [tile_rows] where the row's next run goes; its number of runs while counting */
    fm_tile_run *runs; /* NULL while counting */
} row_sweep;

/* Runs still ahead, from the top of a column of tiles. */
typedef struct run_cursor {
    const fm_tile_run *run, *end;
} run_cursor;

static run_cursor cursor_at_line(const fm_run_table *table, int64_t line) {
    return (run_cursor){table->runs + table->first[line], table->runs + table->first[line + 1]};
}

/* Class of a tile row, at or below the one asked before; *until is lowered to the first row that may have another. */
static fm_tile_class class_at(run_cursor *cursor, int32_t row, int32_t *until) {
    while (cursor->run < cursor->end && cursor->run->first + cursor->run->count <= row) {
        cursor->run++;
    }
    if (cursor->run == cursor->end) {
        return FM_TILE_SKIPPED;
    }
    const bool inside = cursor->run->first <= row;
    const int32_t edge = inside ? cursor->run->first + cursor->run->count : cursor->run->first;
    if (edge < *until) {
        *until = edge;
    }
    return inside ? cursor->run->kind : FM_TILE_SKIPPED;
}

/* Rows [row0, row1) had class kind up to this column of tiles, and have another from it on. */
static void end_runs(row_sweep *s, int32_t row0, int32_t row1, int32_t column, fm_tile_class kind) {
    for (int32_t row = row0; row < row1; row++) {
        if (kind != FM_TILE_SKIPPED) {
            if (s->runs != NULL) {
                s->runs[s->next[row]] = (fm_tile_run){s->since[row], column - s->since[row], kind};
            }
            s->next[row]++;
        }
        s->since[row] = column;
    }
}

static void compare_columns(row_sweep *s, run_cursor before, run_cursor now, int32_t column) {
    const int32_t rows = (int32_t)s->plan->tile_rows;
    for (int32_t row = 0, until; row < rows; row = until) {
        until = rows;
        const fm_tile_class old_kind = class_at(&before, row, &until);
        if (old_kind != class_at(&now, row, &until)) {
            end_runs(s, row, until, column, old_kind);
        }
    }
}

static void sweep_plane(row_sweep *s, int64_t plane) {
    const int32_t columns = (int32_t)s->plan->tile_columns;
    const run_cursor nothing = {NULL, NULL};
    run_cursor before = nothing;
    for (int32_t column = 0; column < columns; column++) {
        const run_cursor now = cursor_at_line(&s->plan->columns, plane * columns + column);
        compare_columns(s, before, now, column);
        before = now;
    }
    compare_columns(s, before, nothing, columns);
}

static void count_plane(row_sweep *s, int64_t plane, int64_t *first) {
    const int64_t rows = s->plan->tile_rows;
    for (int64_t row = 0; row < rows; row++) {
        s->next[row] = 0;
    }
    sweep_plane(s, plane);
    for (int64_t row = 0; row < rows; row++) {
        first[plane * rows + row + 1] = first[plane * rows + row] + s->next[row];
    }
}

static void fill_plane(row_sweep *s, int64_t plane, const int64_t *first) {
    const int64_t rows = s->plan->tile_rows;
    for (int64_t row = 0; row < rows; row++) {
        s->next[row] = first[plane * rows + row];
    }
    sweep_plane(s, plane);
}

fm_status fm_plan_build_rows(fm_plan *plan) {
    fm_run_table *table = &plan->rows;
    const int64_t planes = plan->tile_rows > 0 ? table->lines / plan->tile_rows : 0;
    row_sweep s = {.plan = plan};
    fm_status status;
    FM_TRY_DONE(fm_allocate("plan rows", table->lines + 1, sizeof *table->first, (void **)&table->first));
    FM_TRY_DONE(fm_allocate("plan row starts", plan->tile_rows, sizeof *s.since, (void **)&s.since));
    FM_TRY_DONE(fm_allocate("plan row ends", plan->tile_rows, sizeof *s.next, (void **)&s.next));
    for (int64_t plane = 0; plane < planes; plane++) {
        count_plane(&s, plane, table->first);
    }
    FM_TRY_DONE(fm_allocate("plan row runs", table->first[table->lines], sizeof *table->runs, (void **)&table->runs));
    s.runs = table->runs;
    for (int64_t plane = 0; plane < planes; plane++) {
        fill_plane(&s, plane, table->first);
    }
done:
    free(s.since);
    free(s.next);
    return status;
}

static int64_t visible_tiles(const fm_run_table *table, int64_t line) {
    int64_t tiles = 0;
    for (int64_t i = table->first[line]; i < table->first[line + 1]; i++) {
        tiles += table->runs[i].count;
    }
    return tiles;
}

/* Lines by visible tiles, most (at most `longest`) first, ties ascending: a counting sort. */
static fm_status sort_lines(const fm_run_table *table, int64_t longest, int64_t *sorted) {
    int64_t *place; /* of the next line with longest - i visible tiles */
    FM_TRY(fm_allocate("plan order counts", longest + 2, sizeof *place, (void **)&place));
    for (int64_t line = 0; line < table->lines; line++) {
        place[longest - visible_tiles(table, line) + 1]++;
    }
    for (int64_t i = 0; i < longest; i++) {
        place[i + 1] += place[i];
    }
    for (int64_t line = 0; line < table->lines; line++) {
        sorted[place[longest - visible_tiles(table, line)]++] = line;
    }
    free(place);
    return FM_OK;
}

fm_status fm_plan_build_orders(fm_plan *plan) {
    const int64_t heads = plan->mask->view.shape.heads, tile_rows = plan->tile_rows;
    int64_t *sorted = NULL;
    fm_status status;
    FM_TRY_DONE(fm_allocate("plan column order", plan->columns.lines, sizeof *sorted, (void **)&plan->column_order));
    FM_TRY_DONE(sort_lines(&plan->columns, tile_rows, plan->column_order));
    FM_TRY_DONE(fm_allocate("plan row order", plan->rows.lines, sizeof *sorted, (void **)&sorted));
    FM_TRY_DONE(sort_lines(&plan->rows, plan->tile_columns, sorted));
    FM_TRY_DONE(fm_allocate("plan order", plan->rows.lines, sizeof *plan->order, (void **)&plan->order));
    for (int64_t i = 0; i < plan->rows.lines; i++) {
        const int64_t plane = sorted[i] / tile_rows;
        plan->order[i] = (fm_work){(int32_t)(plane / heads), (int32_t)(plane % heads), (int32_t)(sorted[i] % tile_rows)};
    }
done:
    free(sorted);
    return status;
}

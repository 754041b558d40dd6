/* Exact classes of the tiles of every column of tiles.
 *
 * A tile is visible if one of its columns touches it, and full if block_n of its columns cover it. The intervals of a column
 * are separated by a hidden row, so that a column covers a tile through one interval only and covers simply add up; a tile
 * cut by the last column has fewer than block_n columns and is never full. Each interval gives four events on the axis of
 * tile rows:
 *
 *     rows          |....####|########|########|###.....|      '|' tile edge, '#' visible
 *     touched tiles  +1                                  -1
 *     covered tiles           +1                -1
 *
 * Sorted and swept they are the runs. Neighbouring columns mostly give equal events, which are kept once with a weight:
 * a causal tile has 2 different sets of them, not block_n. Columns of a bitmap stripe go 64 at a time: rows that see any of
 * them touch, rows that see all of them cover with that weight.
 */
#include "plan/build.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_COLUMNS = 64 };

typedef struct tile_event {
    int32_t row; /* tile row from which the changes hold */
    int32_t touch, cover;
} tile_event;

/* Tile rows that an interval of rows touches, and those it covers. All zeros for none. */
typedef struct tile_span {
    int32_t touch_start, touch_end, cover_start, cover_end;
} tile_span;

typedef struct column_builder {
    fm_plan *plan;
    const fm_mask_view *view;
    int64_t batch, head;
    tile_event *events; /* of the current column of tiles */
    int64_t event_count, event_capacity;
    fm_tile_run *runs; /* of all columns of tiles so far */
    int64_t run_count, run_capacity;
} column_builder;

/* Rows of up to 64 bitmap columns, fed from the top. */
typedef struct bitmap_scan {
    column_builder *builder;
    int64_t column0, columns;
    int32_t touch_start, touch_end; /* tile rows touched last, not yet events */
    int64_t cover_start, cover_end; /* rows that see all the columns last, not yet events */
} bitmap_scan;

static tile_span span_of_rows(const fm_plan *plan, int32_t rows, int32_t start, int32_t end) {
    const int32_t m = plan->block_m;
    tile_span span = {.touch_start = start / m, .cover_end = end / m};
    span.cover_start = span.touch_start + (start % m != 0);
    span.touch_end = span.cover_end + (end % m != 0);
    if (end == rows) { /* the last tile has no rows past it */
        span.cover_end = span.touch_end;
    }
    return span;
}

static fm_status push_events(column_builder *b, int32_t start, int32_t end, int32_t touch, int32_t cover) {
    if (start >= end) {
        return FM_OK;
    }
    FM_TRY(fm_grow("plan events", b->event_count + 2, sizeof *b->events, (void **)&b->events, &b->event_capacity));
    b->events[b->event_count++] = (tile_event){start, touch, cover};
    b->events[b->event_count++] = (tile_event){end, -touch, -cover};
    return FM_OK;
}

static fm_status push_span(column_builder *b, tile_span span, int32_t weight) {
    FM_TRY(push_events(b, span.touch_start, span.touch_end, weight, 0));
    return push_events(b, span.cover_start, span.cover_end, 0, weight);
}

static fm_status add_interval_columns(column_builder *b, int64_t column0, int64_t column1) {
    const fm_window *window = &b->plan->window;
    const int64_t rows = b->view->shape.rows;
    for (int32_t m = 0; m < b->view->intervals; m++) {
        const fm_interval *bounds = fm_mask_bounds(b->view, b->batch, b->head, m);
        tile_span pending = {0};
        int32_t weight = 0;
        for (int64_t j = column0; j < column1; j++) {
            const fm_interval reach = fm_window_rows(window, j, rows);
            const int32_t start = bounds[j].start > reach.start ? bounds[j].start : reach.start;
            const int32_t end = bounds[j].end < reach.end ? bounds[j].end : reach.end;
            tile_span span = {0};
            if (start < end) {
                b->plan->stats.visible_pairs += end - start;
                span = span_of_rows(b->plan, (int32_t)rows, start, end);
            }
            if (memcmp(&span, &pending, sizeof span) != 0) {
                FM_TRY(push_span(b, pending, weight));
                pending = span;
                weight = 0;
            }
            weight++;
        }
        FM_TRY(push_span(b, pending, weight));
    }
    return FM_OK;
}

static fm_status flush_touch(bitmap_scan *s) { return push_events(s->builder, s->touch_start, s->touch_end, 1, 0); }

static fm_status flush_cover(bitmap_scan *s) {
    const fm_plan *plan = s->builder->plan;
    const int32_t rows = (int32_t)s->builder->view->shape.rows;
    const tile_span span = span_of_rows(plan, rows, (int32_t)s->cover_start, (int32_t)s->cover_end);
    return push_events(s->builder, span.cover_start, span.cover_end, 0, (int32_t)s->columns);
}

/* Rows [row0, row1) each see some of the columns, or all of them. */
static fm_status feed_rows(bitmap_scan *s, int64_t row0, int64_t row1, bool all) {
    const int64_t m = s->builder->plan->block_m;
    const int32_t start = (int32_t)(row0 / m), end = (int32_t)fm_ceil_divide(row1, m);
    if (start > s->touch_end) {
        FM_TRY(flush_touch(s));
        s->touch_start = start;
    }
    s->touch_end = end;
    if (all) {
        if (row0 != s->cover_end) {
            FM_TRY(flush_cover(s));
            s->cover_start = row0;
        }
        s->cover_end = row1;
    }
    return FM_OK;
}

/* Rows [row0, row1) of one block, bit by bit. */
static fm_status feed_partial_rows(bitmap_scan *s, int64_t row0, int64_t row1) {
    column_builder *b = s->builder;
    uint64_t bits[FM_STRIPE];
    fm_visible_bits(b->view, &b->plan->window, b->batch, b->head, row0, row1 - row0, s->column0, s->columns, bits);
    for (int64_t row = row0; row < row1; row++) {
        const int32_t pairs = __builtin_popcountll(bits[row - row0]);
        if (pairs > 0) {
            b->plan->stats.visible_pairs += pairs;
            FM_TRY(feed_rows(s, row, row + 1, pairs == s->columns));
        }
    }
    return FM_OK;
}

/* At most 64 columns in one word of a bitmap stripe. Both ends of a column's window move down from one column to the next:
 * only rows from the first one's start to the last one's end see any column by the window, and from the last one's start to
 * the first one's end the window hides none. */
static fm_status add_bitmap_columns(column_builder *b, int32_t slot, int64_t column0, int64_t column1) {
    const fm_mask_view *v = b->view;
    const fm_interval first = fm_window_rows(&b->plan->window, column0, v->shape.rows);
    const fm_interval last = fm_window_rows(&b->plan->window, column1 - 1, v->shape.rows);
    bitmap_scan scan = {.builder = b, .column0 = column0, .columns = column1 - column0};
    for (int64_t row = first.start, next; row < last.end; row = next) {
        const int64_t row_block = row / FM_STRIPE;
        const int32_t block = v->block_index[slot * v->row_blocks + row_block];
        next = fm_smaller((row_block + 1) * FM_STRIPE, last.end);
        if (block == FM_BLOCK_VISIBLE && row >= last.start && next <= first.end) {
            b->plan->stats.visible_pairs += (next - row) * scan.columns;
            FM_TRY(feed_rows(&scan, row, next, true));
        } else if (block != FM_BLOCK_HIDDEN) {
            FM_TRY(feed_partial_rows(&scan, row, next));
        }
    }
    FM_TRY(flush_touch(&scan));
    return flush_cover(&scan);
}

static int by_row(const void *a, const void *b) {
    const tile_event *x = a, *y = b;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* line_start: first run of the current column of tiles; runs never merge across it. */
static fm_status append_run(column_builder *b, int64_t line_start, fm_tile_run run) {
    fm_tile_run *last = b->run_count > line_start ? &b->runs[b->run_count - 1] : NULL;
    if (last != NULL && last->kind == run.kind && last->first + last->count == run.first) {
        last->count += run.count;
        return FM_OK;
    }
    FM_TRY(fm_grow("plan runs", b->run_count + 1, sizeof *b->runs, (void **)&b->runs, &b->run_capacity));
    b->runs[b->run_count++] = run;
    return FM_OK;
}

static fm_status sweep_events(column_builder *b) {
    const int64_t line_start = b->run_count;
    int32_t row = 0, touch = 0, cover = 0;
    if (b->event_count > 0) {
        qsort(b->events, (size_t)b->event_count, sizeof *b->events, by_row);
    }
    for (int64_t i = 0; i < b->event_count; i++) {
        const tile_event *event = &b->events[i];
        if (event->row > row && touch > 0) {
            const fm_tile_class kind = cover == b->plan->block_n ? FM_TILE_FULL : FM_TILE_PARTIAL;
            FM_TRY(append_run(b, line_start, (fm_tile_run){row, event->row - row, kind}));
        }
        row = event->row;
        touch += event->touch;
        cover += event->cover;
    }
    b->event_count = 0;
    return FM_OK;
}

static fm_status build_tile_column(column_builder *b, int64_t column0, int64_t column1) {
    const bool has_fallback = b->view->stripe_slot != NULL;
    for (int64_t j = column0, end; j < column1; j = end) {
        const int32_t slot = fm_mask_slot(b->view, b->batch, b->head, j / FM_STRIPE);
        const int64_t unit = slot != FM_NO_SLOT ? WORD_COLUMNS : FM_STRIPE, edge = (j / unit + 1) * unit;
        end = has_fallback && edge < column1 ? edge : column1;
        FM_TRY(slot != FM_NO_SLOT ? add_bitmap_columns(b, slot, j, end) : add_interval_columns(b, j, end));
    }
    return sweep_events(b);
}

/* The runs without the spare room that they grew with. */
static fm_status keep_runs(column_builder *b, fm_run_table *table) {
    FM_TRY(fm_allocate("plan column runs", b->run_count, sizeof *b->runs, (void **)&table->runs));
    if (b->run_count > 0) {
        memcpy(table->runs, b->runs, (size_t)b->run_count * sizeof *b->runs);
    }
    return FM_OK;
}

fm_status fm_plan_build_columns(fm_plan *plan) {
    const fm_mask_shape *shape = &plan->mask->view.shape;
    fm_run_table *table = &plan->columns;
    column_builder b = {.plan = plan, .view = &plan->mask->view};
    fm_status status;
    FM_TRY_DONE(fm_allocate("plan columns", table->lines + 1, sizeof *table->first, (void **)&table->first));
    for (int64_t line = 0; line < table->lines; line++) {
        const int64_t plane = line / plan->tile_columns, column0 = line % plan->tile_columns * plan->block_n;
        b.batch = plane / shape->heads;
        b.head = plane % shape->heads;
        FM_TRY_DONE(build_tile_column(&b, column0, fm_smaller(column0 + plan->block_n, shape->columns)));
        table->first[line + 1] = b.run_count;
    }
    FM_TRY_DONE(keep_runs(&b, table));
done:
    free(b.events);
    free(b.runs);
    return status;
}

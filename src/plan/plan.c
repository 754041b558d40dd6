#include "plan/build.h"

#include "core/memory.h"

#include <stdlib.h>
#include <time.h>

enum { MAX_BLOCK = 1 << 20 };

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static fm_status check_block(const char *name, int32_t block) {
    FM_CHECK(block >= 0 && block <= MAX_BLOCK, FM_ERROR_ARGUMENT, "options.%s: is %d, needs 1 .. 2^20, or 0 (the backend's own)",
             name, block);
    return FM_OK;
}

static fm_status check_options(const fm_plan_options *o) {
    FM_CHECK(o->size == sizeof *o, FM_ERROR_ARGUMENT, "options.size: is %zu, needs %zu (start from FM_PLAN_OPTIONS_INIT)",
             o->size, sizeof *o);
    FM_CHECK(o->backend == FM_BACKEND_AUTO || o->backend == FM_BACKEND_REFERENCE || o->backend == FM_BACKEND_CPU,
             FM_ERROR_ARGUMENT, "options.backend: is %d, needs FM_BACKEND_AUTO, _REFERENCE or _CPU", (int)o->backend);
    FM_CHECK(o->fallback_blocks == 0, FM_ERROR_ARGUMENT, "options.fallback_blocks: is %lld, a host plan needs 0",
             (long long)o->fallback_blocks);
    FM_TRY(check_block("block_m", o->block_m));
    return check_block("block_n", o->block_n);
}

static fm_status count_lines(const char *what, int64_t planes, int64_t tiles, fm_run_table *table) {
    table->lines = fm_multiply(planes, tiles);
    FM_CHECK(table->lines >= 0 && table->lines <= INT32_MAX, FM_ERROR_LIMIT,
             "plan: %lld %s of tiles in each of %lld (batch item, head) pairs pass 2^31 - 1", (long long)tiles, what,
             (long long)planes);
    return FM_OK;
}

/* Everything that follows from the shape and the options alone. */
static fm_status set_geometry(fm_plan *plan, fm_mask_shape shape, const fm_plan_options *o) {
    FM_TRY(fm_window_make(o->causal, o->window_left, o->window_right, shape, &plan->window));
    plan->block_m = o->block_m > 0 ? o->block_m : FM_CPU_BLOCK_M; /* the reference backend takes any tiles */
    plan->block_n = o->block_n > 0 ? o->block_n : FM_CPU_BLOCK_N;
    plan->tile_rows = fm_ceil_divide(shape.rows, plan->block_m);
    plan->tile_columns = fm_ceil_divide(shape.columns, plan->block_n);
    FM_TRY(count_lines("rows", shape.batch * shape.heads, plan->tile_rows, &plan->rows));
    return count_lines("columns", shape.batch * shape.heads, plan->tile_columns, &plan->columns);
}

static int64_t table_bytes(const fm_run_table *t) {
    return (t->lines + 1) * (int64_t)sizeof *t->first + t->first[t->lines] * (int64_t)sizeof *t->runs;
}

/* Products of extents fit: a mask's pairs stay below 2^63, and there are no more tiles than pairs. */
static void fill_stats(fm_plan *plan) {
    const fm_mask_shape shape = plan->mask->view.shape;
    fm_plan_stats *s = &plan->stats;
    s->size = sizeof *s;
    s->tiles = plan->columns.lines * plan->tile_rows;
    for (int64_t i = 0; i < plan->columns.first[plan->columns.lines]; i++) {
        const fm_tile_run *run = &plan->columns.runs[i];
        *(run->kind == FM_TILE_FULL ? &s->full : &s->partial) += run->count;
    }
    const int64_t visible = s->full + s->partial;
    s->skipped = s->tiles - visible;
    s->mask_bytes = fm_mask_bytes(plan->mask);
    s->plan_bytes = table_bytes(&plan->rows) + table_bytes(&plan->columns) + plan->rows.lines * (int64_t)sizeof *plan->order +
                    plan->columns.lines * (int64_t)sizeof *plan->column_order;
    s->dense_bytes = shape.batch * shape.heads * (shape.rows * shape.columns);
    s->block_m = plan->block_m;
    s->block_n = plan->block_n;
    const double tile_pairs = (double)visible * (double)plan->block_m * (double)plan->block_n;
    s->density = s->dense_bytes > 0 ? (double)s->visible_pairs / (double)s->dense_bytes : 0;
    s->tile_efficiency = visible > 0 ? (double)s->visible_pairs / tile_pairs : 0;
}

fm_status fm_plan_create(const fm_mask *mask, const fm_plan_options *options, fm_plan **out) {
    const fm_plan_options defaults = FM_PLAN_OPTIONS_INIT;
    const fm_plan_options *o = options != NULL ? options : &defaults;
    const double start = seconds_now();
    fm_plan *plan = NULL;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(out);
    FM_TRY(check_options(o));
    FM_TRY(fm_allocate("plan", 1, sizeof *plan, (void **)&plan));
    plan->mask = fm_mask_retain(mask);
    plan->shape = mask->view.shape;
    FM_TRY_DONE(set_geometry(plan, mask->view.shape, o));
    FM_TRY_DONE(fm_plan_build_columns(plan));
    FM_TRY_DONE(fm_plan_build_rows(plan));
    FM_TRY_DONE(fm_plan_build_orders(plan));
    fill_stats(plan);
    plan->stats.build_seconds = seconds_now() - start;
    *out = plan;
    plan = NULL;
done:
    fm_plan_free(plan);
    return status;
}

void fm_plan_free(fm_plan *plan) {
    if (plan == NULL) {
        return;
    }
    fm_mask_free(plan->mask);
    free(plan->rows.first);
    free(plan->rows.runs);
    free(plan->columns.first);
    free(plan->columns.runs);
    free(plan->order);
    free(plan->column_order);
    free(plan);
}

static fm_status check_is_host(const fm_plan *plan) {
    FM_CHECK(plan->device.kind == FM_CPU, FM_ERROR_DEVICE,
             "plan: is on CUDA device %d, needs a host plan (fm_plan_create of the same mask)", plan->device.index);
    return FM_OK;
}

fm_status fm_plan_get_stats(const fm_plan *plan, fm_plan_stats *out) {
    fm_clear_error();
    FM_REQUIRE(plan);
    FM_REQUIRE(out);
    FM_TRY(check_is_host(plan));
    FM_CHECK(out->size == sizeof *out, FM_ERROR_ARGUMENT, "out.size: is %zu, needs %zu (start from FM_PLAN_STATS_INIT)",
             out->size, sizeof *out);
    *out = plan->stats;
    return FM_OK;
}

static fm_status check_index(const char *name, int64_t index, int64_t count) {
    FM_CHECK(index >= 0 && index < count, FM_ERROR_ARGUMENT, "%s: is %lld, the plan has %lld", name, (long long)index,
             (long long)count);
    return FM_OK;
}

/* A row or column of tiles of one head. */
typedef struct tile_line {
    int64_t batch, head, tile;
} tile_line;

static fm_status get_runs(const fm_plan *plan, bool is_row, tile_line at, const fm_tile_run **runs, int64_t *count) {
    fm_clear_error();
    FM_REQUIRE(plan);
    FM_REQUIRE(runs);
    FM_REQUIRE(count);
    FM_TRY(check_is_host(plan));
    const fm_mask_shape *shape = &plan->mask->view.shape;
    const fm_run_table *table = is_row ? &plan->rows : &plan->columns;
    const int64_t tiles = is_row ? plan->tile_rows : plan->tile_columns;
    FM_TRY(check_index("batch", at.batch, shape->batch));
    FM_TRY(check_index("head", at.head, shape->heads));
    FM_TRY(check_index(is_row ? "tile_row" : "tile_column", at.tile, tiles));
    const int64_t *first = &table->first[(at.batch * shape->heads + at.head) * tiles + at.tile];
    *runs = table->runs + first[0];
    *count = first[1] - first[0];
    return FM_OK;
}

fm_status fm_plan_row_runs(const fm_plan *plan, int64_t batch, int64_t head, int64_t tile_row, const fm_tile_run **runs,
                           int64_t *count) {
    return get_runs(plan, true, (tile_line){batch, head, tile_row}, runs, count);
}

fm_status fm_plan_column_runs(const fm_plan *plan, int64_t batch, int64_t head, int64_t tile_column, const fm_tile_run **runs,
                              int64_t *count) {
    return get_runs(plan, false, (tile_line){batch, head, tile_column}, runs, count);
}

fm_status fm_plan_order(const fm_plan *plan, const fm_work **work, int64_t *count) {
    fm_clear_error();
    FM_REQUIRE(plan);
    FM_REQUIRE(work);
    FM_REQUIRE(count);
    FM_TRY(check_is_host(plan));
    *work = plan->order;
    *count = plan->rows.lines;
    return FM_OK;
}

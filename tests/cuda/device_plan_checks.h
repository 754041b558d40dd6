/* Device plans against host plans of the same mask and flags: bounds, classes, counts, ranges, orders, to the last bit. */
#ifndef FM_TESTS_DEVICE_PLAN_CHECKS_H
#define FM_TESTS_DEVICE_PLAN_CHECKS_H

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "attention/device_plan.h"
#include "support/cmocka_all.h"
#include "support/expect.h"

enum { GUARD = 4096, POISON = 0xa5, SKIPPED = 77 };
static const fm_device gpu = {FM_CUDA, 0};

static inline void cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fail_msg("%s", cudaGetErrorString(error));
    }
}

/* ---- a plan on the device, and its arrays here ---- */

typedef struct device_plan {
    fm_plan *plan;
    char *buffer, *copy;
    size_t bytes;
    fm_device_plan arrays; /* in copy */
} device_plan;

/* A buffer of poison, with a guard behind it. */
static inline device_plan open_plan(fm_mask_shape shape, int32_t intervals, const fm_plan_options *options) {
    device_plan d = {.plan = NULL};
    succeed(fm_plan_device_bytes(shape, intervals, options, &d.bytes));
    cuda(cudaMalloc((void **)&d.buffer, d.bytes + GUARD));
    cuda(cudaMemset(d.buffer, POISON, d.bytes + GUARD));
    return d;
}

static inline void close_plan(device_plan *d) {
    fm_plan_free(d->plan);
    cuda(cudaFree(d->buffer));
    free(d->copy);
}

static inline void *moved(const device_plan *d, const void *array) {
    return array == NULL ? NULL : d->copy + ((const char *)array - d->buffer);
}

static inline void move_lines(const device_plan *d, fm_tile_lines *lines) {
    lines->map = moved(d, lines->map);
    lines->range = moved(d, lines->range);
    lines->count = moved(d, lines->count);
    lines->order = moved(d, lines->order);
}

static inline void download(device_plan *d) {
    free(d->copy);
    d->copy = malloc(d->bytes + GUARD);
    assert_non_null(d->copy);
    cuda(cudaDeviceSynchronize());
    cuda(cudaMemcpy(d->copy, d->buffer, d->bytes + GUARD, cudaMemcpyDeviceToHost));
    for (size_t i = d->bytes; i < d->bytes + GUARD; i++) {
        assert_int_equal((unsigned char)d->copy[i], POISON);
    }
    d->arrays = d->plan->on_device;
    d->arrays.bounds = moved(d, d->arrays.bounds);
    move_lines(d, &d->arrays.row_lines);
    move_lines(d, &d->arrays.column_lines);
}

/* ---- against the host ---- */

static inline fm_interval cut(fm_interval v, fm_interval window) {
    return (fm_interval){v.start > window.start ? v.start : window.start, v.end < window.end ? v.end : window.end};
}

/* The visible rows of one key: what the mask says, cut to the window; M of them, [Sq, Sq) where there are fewer. */
static inline void expected_bounds(const fm_mask_view *v, const fm_window *window, int64_t plane, int64_t key,
                                   fm_interval out[FM_MAX_INTERVALS]) {
    const int64_t rows = v->shape.rows, b = plane / v->shape.heads, h = plane % v->shape.heads;
    const fm_interval reach = fm_window_rows(window, key, rows);
    fm_interval held[FM_MAX_INTERVALS] = {{0, (int32_t)rows}};
    int32_t count = 1, kept = 0;
    if (fm_mask_slot(v, b, h, key / FM_STRIPE) == FM_NO_SLOT) {
        for (count = 0; count < v->intervals; count++) {
            held[count] = fm_mask_bounds(v, b, h, count)[key];
        }
    }
    for (int32_t m = 0; m < count; m++) {
        const fm_interval seen = cut(held[m], reach);
        if (seen.start < seen.end) {
            out[kept++] = seen;
        }
    }
    while (kept < FM_MAX_INTERVALS) {
        out[kept++] = (fm_interval){(int32_t)rows, (int32_t)rows};
    }
}

static inline void check_bounds(const fm_device_plan *d, const fm_mask_view *v, const fm_window *window) {
    for (int64_t plane = 0; plane < v->shape.batch * v->shape.heads; plane++) {
        for (int64_t key = 0; key < d->bounds_stride; key++) {
            fm_interval expected[FM_MAX_INTERVALS];
            expected_bounds(v, window, plane, key, expected);
            for (int32_t m = 0; m < d->intervals; m++) {
                const fm_interval got = d->bounds[(plane * d->intervals + m) * d->bounds_stride + key];
                const int32_t rows = (int32_t)v->shape.rows;
                const fm_interval want = key < v->shape.columns ? expected[m] : (fm_interval){rows, rows};
                if (got.start != want.start || got.end != want.end) {
                    fail_msg("plane %d key %d interval %d: [%d, %d), needs [%d, %d)", (int)plane, (int)key, m, got.start, got.end,
                             want.start, want.end);
                }
            }
        }
    }
}

/* Words of one line of the host's runs. */
static inline void expected_words(const fm_run_table *table, int64_t line, int32_t words, fm_tile_word *out) {
    memset(out, 0, (size_t)words * sizeof *out);
    for (int64_t i = table->first[line]; i < table->first[line + 1]; i++) {
        const fm_tile_run run = table->runs[i];
        for (int32_t t = run.first; t < run.first + run.count; t++) {
            out[t / 32].visible |= UINT32_C(1) << t % 32;
            out[t / 32].full |= (run.kind == FM_TILE_FULL ? UINT32_C(1) : 0) << t % 32;
        }
    }
}

static inline void check_map(const char *name, const fm_tile_lines *lines, const fm_run_table *table) {
    fm_tile_word *want = malloc((size_t)lines->words * sizeof *want + 1);
    assert_non_null(want);
    for (int64_t line = 0; line < table->lines; line++) {
        const fm_tile_word *got = lines->map + line * lines->words;
        expected_words(table, line, lines->words, want);
        for (int32_t w = 0; w < lines->words; w++) {
            if (got[w].visible != want[w].visible || got[w].full != want[w].full) {
                fail_msg("%s line %lld word %d: visible %08x full %08x, needs %08x %08x", name, (long long)line, w,
                         got[w].visible, got[w].full, want[w].visible, want[w].full);
            }
        }
    }
    free(want);
}

/* table: of a host plan whose lines are the groups. */
static inline void check_groups(const char *name, const fm_tile_lines *lines, const fm_run_table *table) {
    for (int64_t group = 0; group < table->lines; group++) {
        const fm_tile_run *run = table->runs + table->first[group], *end = table->runs + table->first[group + 1];
        fm_interval range = {0, 0};
        int32_t count = 0;
        if (run < end) {
            range = (fm_interval){run->first, end[-1].first + end[-1].count};
        }
        for (; run < end; run++) {
            count += run->count;
        }
        if (lines->count[group] != count || lines->range[group].start != range.start || lines->range[group].end != range.end) {
            fail_msg("%s group %lld: %d tiles in [%d, %d), needs %d in [%d, %d)", name, (long long)group, lines->count[group],
                     lines->range[group].start, lines->range[group].end, count, range.start, range.end);
        }
    }
}

/* sorted: groups of all planes by the host, as numbers plane * groups + group. */
static inline void check_order(const char *name, const fm_tile_lines *lines, const int64_t *sorted, int64_t planes) {
    int64_t *used = calloc((size_t)planes + 1, sizeof *used);
    assert_non_null(used);
    for (int64_t i = 0; i < planes * lines->groups; i++) {
        const int64_t plane = sorted[i] / lines->groups, at = plane * lines->groups + used[plane]++;
        if (lines->order[at] != sorted[i] % lines->groups) {
            fail_msg("%s order[%lld]: is %d, needs %lld", name, (long long)at, lines->order[at],
                     (long long)(sorted[i] % lines->groups));
        }
    }
    free(used);
}

static inline fm_plan *host_plan(const fm_mask *mask, fm_plan_options options, int32_t block_m, int32_t block_n) {
    fm_plan *plan = NULL;
    options.block_m = block_m;
    options.block_n = block_n;
    options.fallback_blocks = 0;
    succeed(fm_plan_create(mask, &options, &plan));
    return plan;
}

static inline void check_row_order(const fm_tile_lines *lines, const fm_plan *host, fm_mask_shape shape) {
    int64_t *sorted = malloc((size_t)host->rows.lines * sizeof *sorted + 1);
    assert_non_null(sorted);
    for (int64_t i = 0; i < host->rows.lines; i++) {
        const fm_work w = host->order[i];
        sorted[i] = (w.batch * shape.heads + w.head) * lines->groups + w.tile_row;
    }
    check_order("row", lines, sorted, shape.batch * shape.heads);
    free(sorted);
}

/* The whole plan, against host plans of mask and the flags of options. */
static inline void check_plan(device_plan *d, const fm_mask *mask, fm_plan_options options) {
    const fm_mask_shape shape = mask->view.shape;
    fm_plan *tiles = host_plan(mask, options, 64, 64), *rows = host_plan(mask, options, 128, 64),
            *columns = host_plan(mask, options, 64, 128);
    download(d);
    check_bounds(&d->arrays, &mask->view, &tiles->window);
    check_map("row", &d->arrays.row_lines, &tiles->rows);
    check_map("column", &d->arrays.column_lines, &tiles->columns);
    check_groups("row", &d->arrays.row_lines, &rows->rows);
    check_groups("column", &d->arrays.column_lines, &columns->columns);
    check_row_order(&d->arrays.row_lines, rows, shape);
    check_order("column", &d->arrays.column_lines, columns->column_order, shape.batch * shape.heads);
    fm_plan_free(tiles);
    fm_plan_free(rows);
    fm_plan_free(columns);
}

/* True where the tests can run; says why not. */
static inline bool gpu_is_present(void) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        print_message("skipped: no GPU (%s)\n", cudaGetErrorString(error));
    }
    return error == cudaSuccess && count > 0;
}

#endif

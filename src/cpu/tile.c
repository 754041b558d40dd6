#include "cpu/tile.h"

#include "core/memory.h"
#include "core/tensor.h"
#include "cpu/dispatch.h"

#include <string.h>

fm_status fm_cpu_call_open(const fm_problem *problem, const fm_backward_problem *backward, fm_cpu_call *out) {
    const fm_cpu_kernels *kernels;
    FM_TRY(fm_cpu_kernels_choose(&kernels));
    *out = (fm_cpu_call){
        .problem = problem,
        .backward = backward,
        .kernels = kernels,
        .head_dim = fm_cpu_round_up(problem->head_dim, kernels->width),
        .head_dim_v = fm_cpu_round_up(problem->head_dim_v, kernels->width),
    };
    return FM_OK;
}

int32_t fm_cpu_thread_count(const fm_problem *problem, int64_t work) {
    const int64_t wanted = problem->num_threads > 0 ? problem->num_threads : fm_problem_free_threads();
    return (int32_t)(work < 1 ? 1 : work < wanted ? work : wanted);
}

fm_status fm_cpu_scratch_allocate(int32_t threads, fm_cpu_scratch **out) {
    void *memory;
    FM_TRY(fm_allocate_aligned("CPU scratch, one element for each thread", threads, sizeof(fm_cpu_scratch), &memory));
    *out = memory;
    return FM_OK;
}

fm_cpu_rows fm_cpu_tensor_rows(const fm_tensor *tensor, int64_t b, int64_t h) {
    const int64_t offset = fm_tensor_offset(tensor, b, 0, h, 0);
    return (fm_cpu_rows){
        .data = (char *)tensor->data + offset * (int64_t)fm_dtype_size(tensor->dtype),
        .dtype = tensor->dtype,
        .row_stride = tensor->stride[1],
        .stride = tensor->stride[3],
        .width = tensor->shape[3],
    };
}

fm_cpu_tile fm_cpu_tile_load(const fm_cpu_call *call, fm_cpu_rows rows, int64_t first, int64_t count, float scale, float *data) {
    fm_cpu_tile tile = {.rows = rows, .first = first, .count = count, .scale = scale, .data = data};
    tile.stride = fm_cpu_round_up(rows.width, call->kernels->width);
    tile.bad = call->kernels->widen(&rows, first, count, scale, data, tile.stride);
    return tile;
}

void fm_cpu_scores(const fm_cpu_call *call, const fm_cpu_tile *tile, const float *lanes, float *scores) {
    call->kernels->gemm(&(fm_cpu_gemm){
        .m = tile->count,
        .n = FM_CPU_LANES,
        .k = tile->rows.width,
        .a = tile->data,
        .a_row = tile->stride,
        .a_column = 1,
        .b = lanes,
        .b_stride = FM_CPU_LANES,
        .c = scores,
        .c_stride = FM_CPU_LANES,
    });
}

/* The share in fm_cpu_accumulate of rows that are not finite: plain loops over the pairs that are visible. */
static void accumulate_bad_rows(const fm_cpu_call *call, const float *weights, const fm_cpu_tile *tile, const fm_cpu_part *part,
                                float *sum) {
    float row[FM_CPU_MAX_DIM];
    for (int64_t y = 0; y < tile->count; y++) {
        if ((tile->bad >> y & 1) == 0) {
            continue;
        }
        call->kernels->widen(&tile->rows, tile->first + y, 1, tile->scale, row, tile->stride);
        for (int64_t x = part->lane; x < part->lane + part->lanes; x++) {
            const bool sees = part->visible == NULL || (part->visible[y] >> x & 1) != 0;
            for (int64_t d = 0; sees && d < tile->rows.width; d++) {
                sum[x * tile->stride + d] += weights[y * FM_CPU_LANES + x] * row[d];
            }
        }
    }
}

void fm_cpu_accumulate(const fm_cpu_call *call, const float *weights, fm_cpu_tile *tile, const fm_cpu_part *part, float *sum) {
    for (int64_t y = 0; tile->bad != 0 && y < tile->count; y++) {
        if ((tile->bad >> y & 1) != 0) {
            memset(tile->data + y * tile->stride, 0, (size_t)tile->stride * sizeof *tile->data);
        }
    }
    call->kernels->gemm(&(fm_cpu_gemm){
        .m = part->lanes,
        .n = tile->stride,
        .k = tile->count,
        .a = weights + part->lane,
        .a_row = 1,
        .a_column = FM_CPU_LANES,
        .b = tile->data,
        .b_stride = tile->stride,
        .c = sum + part->lane * tile->stride,
        .c_stride = tile->stride,
        .accumulate = true,
    });
    if (tile->bad != 0) {
        accumulate_bad_rows(call, weights, tile, part, sum);
    }
}

/* Swaps the off-diagonal quarters of ever smaller squares: side 32, 16, ..., 1. */
void fm_cpu_transpose_bits(uint64_t words[FM_CPU_LANES]) {
    uint64_t low = UINT64_C(0x00000000ffffffff);
    for (int side = FM_CPU_LANES / 2; side > 0; side /= 2, low ^= low << side) {
        for (int y = 0; y < FM_CPU_LANES; y = (y + side + 1) & ~side) {
            const uint64_t swap = (words[y] >> side ^ words[y + side]) & low;
            words[y] ^= swap << side;
            words[y + side] ^= swap;
        }
    }
}

/* Takes off hidden lines and lanes at the ends. */
static fm_cpu_part trim(fm_cpu_part part) {
    uint64_t seen = 0;
    for (; part.count > 0 && part.visible[part.count - 1] == 0; part.count--) {
    }
    for (; part.count > 0 && part.visible[0] == 0; part.count--, part.first++) {
        part.visible++;
    }
    for (int64_t y = 0; y < part.count; y++) {
        seen |= part.visible[y];
    }
    part.lane = seen == 0 ? 0 : __builtin_ctzll(seen);
    part.lanes = seen == 0 ? 0 : FM_CPU_LANES - __builtin_clzll(seen) - part.lane;
    return part;
}

fm_cpu_part fm_cpu_visible_part(const fm_problem *p, fm_cpu_place place, fm_tile_class kind, bool lines_are_keys,
                                uint64_t bits[FM_CPU_LANES]) {
    const int64_t row0 = place.tile_row * FM_CPU_LANES, rows = fm_cpu_tile_length(p->rows, place.tile_row);
    const int64_t column0 = place.tile_column * FM_CPU_LANES, columns = fm_cpu_tile_length(p->columns, place.tile_column);
    fm_cpu_part part = lines_are_keys ? (fm_cpu_part){.first = column0, .count = columns, .lanes = rows}
                                      : (fm_cpu_part){.first = row0, .count = rows, .lanes = columns};
    if (kind == FM_TILE_FULL) {
        return part;
    }
    memset(bits, 0, FM_CPU_LANES * sizeof *bits);
    fm_visible_bits(p->mask, &p->window, fm_problem_mask_batch(p, place.b), fm_problem_mask_head(p, place.h), row0, rows, column0,
                    columns, bits);
    if (lines_are_keys) {
        fm_cpu_transpose_bits(bits);
    }
    part.visible = bits;
    return p->no_skip ? part : trim(part);
}

static fm_cpu_runs line_runs(const fm_problem *p, const fm_run_table *table, int64_t line, int64_t tiles, fm_tile_run *whole) {
    if (p->no_skip) {
        *whole = (fm_tile_run){.first = 0, .count = (int32_t)tiles, .kind = FM_TILE_PARTIAL};
        return (fm_cpu_runs){whole, 1};
    }
    return (fm_cpu_runs){table->runs + table->first[line], table->first[line + 1] - table->first[line]};
}

static int64_t mask_plane(const fm_problem *p, fm_cpu_place place) {
    return fm_problem_mask_batch(p, place.b) * p->mask->shape.heads + fm_problem_mask_head(p, place.h);
}

fm_cpu_runs fm_cpu_row_runs(const fm_problem *p, fm_cpu_place place, fm_tile_run *whole) {
    const fm_plan *plan = p->plan;
    const int64_t line = mask_plane(p, place) * plan->tile_rows + place.tile_row;
    return line_runs(p, &plan->rows, line, plan->tile_columns, whole);
}

fm_cpu_runs fm_cpu_column_runs(const fm_problem *p, fm_cpu_place place, fm_tile_run *whole) {
    const fm_plan *plan = p->plan;
    const int64_t line = mask_plane(p, place) * plan->tile_columns + place.tile_column;
    return line_runs(p, &plan->columns, line, plan->tile_rows, whole);
}

static int64_t batch_share(const fm_problem *p) { return p->mask->shape.batch == 1 ? p->batch : 1; }

int64_t fm_cpu_row_work_count(const fm_problem *p) {
    return p->plan->rows.lines * batch_share(p) * (p->heads / p->mask->shape.heads);
}

fm_cpu_place fm_cpu_row_work_get(const fm_problem *p, int64_t index) {
    const int64_t heads = p->heads / p->mask->shape.heads, share = batch_share(p) * heads;
    const fm_work *work = &p->plan->order[index / share];
    const int64_t member = index % share;
    return (fm_cpu_place){
        .b = work->batch + member / heads,
        .h = work->head * heads + member % heads,
        .tile_row = work->tile_row,
    };
}

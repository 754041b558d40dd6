#include "cpu/passes.h"
#include "cpu/tile.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

static void start_rows(const fm_cpu_call *call, fm_cpu_place place, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const int64_t row0 = place.tile_row * FM_CPU_LANES, rows = fm_cpu_tile_length(p->rows, place.tile_row);
    const fm_cpu_tile query =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->query, place.b, place.h), row0, rows, p->scale, scratch->lines_a);
    call->kernels->transpose(query.data, query.stride, rows, p->head_dim, scratch->lanes_a);
    for (int64_t i = 0; i < FM_CPU_LANES; i++) {
        scratch->maximum[i] = -INFINITY;
        scratch->sum[i] = 0.0f;
    }
    memset(scratch->sum_a, 0, (size_t)(rows * call->head_dim_v) * sizeof *scratch->sum_a);
}

static void fold_tile(const fm_cpu_call *call, fm_cpu_place place, fm_tile_class kind, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const int64_t kh = fm_problem_key_head(p, place.h), rows = fm_cpu_tile_length(p->rows, place.tile_row);
    const fm_cpu_part part = fm_cpu_visible_part(p, place, kind, true, scratch->visible);
    const fm_cpu_tile key =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->key, place.b, kh), part.first, part.count, 1.0f, scratch->lines_a);
    fm_cpu_tile value =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->value, place.b, kh), part.first, part.count, 1.0f, scratch->lines_b);

    fm_cpu_scores(call, &key, scratch->lanes_a, scratch->scores);
    call->kernels->softmax(&(fm_cpu_softmax){
        .scores = scratch->scores,
        .lines = part.count,
        .visible = part.visible,
        .cap = p->softcap,
        .maximum = scratch->maximum,
        .sum = scratch->sum,
        .decay = scratch->factors,
    });
    call->kernels->scale_rows(scratch->sum_a, value.stride, rows, value.stride, scratch->factors);
    fm_cpu_accumulate(call, scratch->scores, &value, &part, scratch->sum_a);
}

/* The sink joins the denominator here and nowhere else. A sum of 0 means that the row saw nothing; NaN is not 0. */
static void finish_rows(const fm_cpu_call *call, fm_cpu_place place, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const int64_t row0 = place.tile_row * FM_CPU_LANES, rows = fm_cpu_tile_length(p->rows, place.tile_row);
    float *lse = p->lse == NULL ? NULL : p->lse + fm_cpu_first_row(p, place);
    for (int64_t i = 0; i < rows; i++) {
        const double maximum = scratch->maximum[i], sum = scratch->sum[i];
        const double sink = p->sinks == NULL ? 0.0 : exp(p->sinks[place.h] - maximum);
        scratch->factors[i] = sum == 0.0 ? 0.0f : (float)(1.0 / (sum + sink));
        if (sum == 0.0) { /* scores of -inf alone may have made NaN of values that are not finite */
            memset(scratch->sum_a + i * call->head_dim_v, 0, (size_t)call->head_dim_v * sizeof *scratch->sum_a);
        }
        if (lse != NULL) {
            lse[i] = sum == 0.0 ? -INFINITY : (float)(maximum + log(sum));
        }
    }
    const fm_cpu_rows output = fm_cpu_tensor_rows(&p->output, place.b, place.h);
    call->kernels->narrow(scratch->sum_a, call->head_dim_v, scratch->factors, &output, row0, rows);
}

static void forward_rows(const fm_cpu_call *call, fm_cpu_place place, fm_cpu_scratch *scratch) {
    fm_tile_run whole;
    const fm_cpu_runs line = fm_cpu_row_runs(call->problem, place, &whole);
    start_rows(call, place, scratch);
    for (int64_t r = 0; r < line.count; r++) {
        for (int64_t t = 0; t < line.runs[r].count; t++) {
            place.tile_column = line.runs[r].first + t;
            fold_tile(call, place, line.runs[r].kind, scratch);
        }
    }
    finish_rows(call, place, scratch);
}

fm_status fm_cpu_forward(const fm_problem *problem) {
    fm_cpu_call call;
    fm_cpu_scratch *scratch;
    FM_TRY(fm_cpu_call_open(problem, NULL, &call));
    const int64_t count = fm_cpu_row_work_count(problem);
    const int32_t threads = fm_cpu_thread_count(problem, count);
    FM_TRY(fm_cpu_scratch_allocate(threads, &scratch));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        forward_rows(&call, fm_cpu_row_work_get(problem, i), scratch + omp_get_thread_num());
    }
    free(scratch);
    return FM_OK;
}

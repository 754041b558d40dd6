#include "cpu/passes.h"
#include "core/memory.h"
#include "cpu/tile.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* ---- what every row needs, once ----------------------------------------------------------------------------------- */

/* log(exp(lse) + exp(sink)): the denominator of P in the output. Of rows without weight (lse -inf: none visible, or scores of
 * -inf alone) +inf, so that every P is 0. */
static double denominator(const fm_problem *p, int64_t h, double lse) {
    if (lse == -INFINITY || p->sinks == NULL) {
        return lse == -INFINITY ? INFINITY : lse;
    }
    const double sink = p->sinks[h];
    return lse > sink ? lse + log1p(exp(sink - lse)) : sink + log1p(exp(lse - sink));
}

static void prepare_rows(const fm_cpu_call *call, fm_cpu_place place, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const fm_backward_problem *backward = call->backward;
    const int64_t row0 = place.tile_row * FM_CPU_LANES, rows = fm_cpu_tile_length(p->rows, place.tile_row);
    const int64_t first = fm_cpu_first_row(p, place);
    const fm_cpu_tile grad =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&backward->grad_output, place.b, place.h), row0, rows, 1.0f, scratch->lines_a);
    const fm_cpu_tile output =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->output, place.b, place.h), row0, rows, 1.0f, scratch->lines_b);
    call->kernels->transpose(grad.data, grad.stride, rows, p->head_dim_v, scratch->lanes_a);
    call->kernels->transpose(output.data, output.stride, rows, p->head_dim_v, scratch->lanes_b);
    call->kernels->lane_dots(scratch->lanes_a, scratch->lanes_b, p->head_dim_v, scratch->sum);
    for (int64_t i = 0; i < rows; i++) {
        call->row_offset[first + i] = scratch->sum[i];
        call->row_lse[first + i] = (float)denominator(p, place.h, p->lse[first + i]);
    }
}

/* Rows past the last one get zeros: their lanes stay finite and are stored nowhere. */
static void load_terms(const fm_cpu_call *call, fm_cpu_place place, int64_t row0, int64_t rows, fm_cpu_row_terms *terms) {
    const fm_problem *p = call->problem;
    const int64_t first = (place.b * p->heads + place.h) * p->rows + row0;
    memset(terms, 0, sizeof *terms);
    memcpy(terms->offset, call->row_offset + first, (size_t)rows * sizeof(float));
    memcpy(terms->lse_output, call->row_lse + first, (size_t)rows * sizeof(float));
    if (call->backward->grad_lse == NULL) {
        return;
    }
    memcpy(terms->grad_lse, call->backward->grad_lse + first, (size_t)rows * sizeof(float));
    terms->has_split = p->sinks != NULL;
    for (int64_t i = 0; i < rows; i++) {
        terms->lse[i] = p->lse[first + i] == -INFINITY ? INFINITY : p->lse[first + i];
    }
}

/* ---- shared by both passes ---------------------------------------------------------------------------------------- */

typedef struct query_side {
    fm_cpu_tile query, grad_output; /* in lines_a and lines_b */
    uint64_t empty;                 /* bit i: row row0 + i has lse -inf */
} query_side;

static uint64_t empty_rows(const fm_problem *p, fm_cpu_place place, int64_t row0, int64_t rows) {
    const float *lse = p->lse + (place.b * p->heads + place.h) * p->rows + row0;
    uint64_t empty = 0;
    for (int64_t i = 0; i < rows; i++) {
        empty |= (uint64_t)(lse[i] == -INFINITY) << i;
    }
    return empty;
}

/* Rows with scores of -inf alone see keys and count as empty: where these keys, their values or gradients are not finite,
 * weights of 0 would make NaN of them. bits: what part->visible lies in, or may. */
static void hide_empty_rows(uint64_t empty, bool lanes_are_rows, fm_cpu_part *part, uint64_t bits[FM_CPU_LANES]) {
    if (empty == 0) {
        return;
    }
    uint64_t *visible = part->visible != NULL ? bits + (part->visible - bits) : bits;
    for (int64_t y = 0; y < part->count; y++) {
        const uint64_t seen = part->visible != NULL ? visible[y] : fm_low_bits(part->lanes);
        visible[y] = lanes_are_rows ? seen & ~empty : (empty >> y & 1) != 0 ? 0 : seen;
    }
    part->visible = visible;
}

static query_side load_query_side(const fm_cpu_call *call, fm_cpu_place place, int64_t row0, int64_t rows,
                                  fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const fm_tensor *grad = &call->backward->grad_output;
    load_terms(call, place, row0, rows, &scratch->terms);
    return (query_side){
        .query = fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->query, place.b, place.h), row0, rows, p->scale, scratch->lines_a),
        .grad_output = fm_cpu_tile_load(call, fm_cpu_tensor_rows(grad, place.b, place.h), row0, rows, 1.0f, scratch->lines_b),
        .empty = empty_rows(p, place, row0, rows),
    };
}

static void scores_to_gradients(const fm_cpu_call *call, const fm_cpu_part *part, bool lanes_are_rows, fm_cpu_scratch *scratch) {
    call->kernels->softmax_grad(&(fm_cpu_softmax_grad){
        .scores = scratch->scores,
        .grad_scores = scratch->grad_scores,
        .lines = part->count,
        .visible = part->visible,
        .lanes_are_rows = lanes_are_rows,
        .cap = call->problem->softcap,
        .terms = &scratch->terms,
    });
}

static void clear(float *sum, int64_t rows, int64_t stride) { memset(sum, 0, (size_t)(rows * stride) * sizeof *sum); }

static void store_rows(const fm_cpu_call *call, const fm_cpu_rows *to, int64_t first, int64_t count, float factor,
                       const float *sum) {
    float factors[FM_CPU_LANES];
    for (int64_t i = 0; i < count; i++) {
        factors[i] = factor;
    }
    call->kernels->narrow(sum, fm_cpu_round_up(to->width, call->kernels->width), factors, to, first, count);
}

/* ---- grad_query: rows of tiles; lines are keys, lanes are query rows ---------------------------------------------- */

static void add_to_grad_query(const fm_cpu_call *call, fm_cpu_place place, fm_tile_class kind, uint64_t empty,
                              fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const int64_t kh = fm_problem_key_head(p, place.h);
    fm_cpu_part part = fm_cpu_visible_part(p, place, kind, true, scratch->visible);
    hide_empty_rows(empty, true, &part, scratch->visible);
    fm_cpu_tile key =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->key, place.b, kh), part.first, part.count, 1.0f, scratch->lines_a);
    const fm_cpu_tile value =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->value, place.b, kh), part.first, part.count, 1.0f, scratch->lines_b);

    fm_cpu_scores(call, &key, scratch->lanes_a, scratch->scores);
    fm_cpu_scores(call, &value, scratch->lanes_b, scratch->grad_scores);
    scores_to_gradients(call, &part, true, scratch);
    fm_cpu_accumulate(call, scratch->grad_scores, &key, &part, scratch->sum_a);
}

static void grad_query_rows(const fm_cpu_call *call, fm_cpu_place place, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const int64_t row0 = place.tile_row * FM_CPU_LANES, rows = fm_cpu_tile_length(p->rows, place.tile_row);
    fm_tile_run whole;
    const fm_cpu_runs line = fm_cpu_row_runs(p, place, &whole);
    const query_side side = load_query_side(call, place, row0, rows, scratch);
    call->kernels->transpose(side.query.data, side.query.stride, rows, p->head_dim, scratch->lanes_a);
    call->kernels->transpose(side.grad_output.data, side.grad_output.stride, rows, p->head_dim_v, scratch->lanes_b);
    clear(scratch->sum_a, rows, call->head_dim);
    for (int64_t r = 0; r < line.count; r++) {
        for (int64_t t = 0; t < line.runs[r].count; t++) {
            place.tile_column = line.runs[r].first + t;
            add_to_grad_query(call, place, line.runs[r].kind, side.empty, scratch);
        }
    }
    const fm_cpu_rows to = fm_cpu_tensor_rows(&call->backward->grad_query, place.b, place.h);
    store_rows(call, &to, row0, rows, p->scale, scratch->sum_a);
}

/* ---- grad_key and grad_value: columns of tiles; lines are query rows, lanes are keys ------------------------------ */

static void add_to_grad_key_value(const fm_cpu_call *call, fm_cpu_place place, fm_tile_class kind, fm_cpu_scratch *scratch) {
    fm_cpu_part part = fm_cpu_visible_part(call->problem, place, kind, false, scratch->visible);
    query_side side = load_query_side(call, place, part.first, part.count, scratch);
    hide_empty_rows(side.empty, false, &part, scratch->visible);

    fm_cpu_scores(call, &side.query, scratch->lanes_a, scratch->scores);
    fm_cpu_scores(call, &side.grad_output, scratch->lanes_b, scratch->grad_scores);
    scores_to_gradients(call, &part, false, scratch);
    if (call->backward->grad_value.data != NULL) {
        fm_cpu_accumulate(call, scratch->scores, &side.grad_output, &part, scratch->sum_b);
    }
    if (call->backward->grad_key.data != NULL) {
        fm_cpu_accumulate(call, scratch->grad_scores, &side.query, &part, scratch->sum_a);
    }
}

static void add_query_head(const fm_cpu_call *call, fm_cpu_place place, fm_cpu_scratch *scratch) {
    fm_tile_run whole;
    const fm_cpu_runs line = fm_cpu_column_runs(call->problem, place, &whole);
    for (int64_t r = 0; r < line.count; r++) {
        for (int64_t t = 0; t < line.runs[r].count; t++) {
            place.tile_row = line.runs[r].first + t;
            add_to_grad_key_value(call, place, line.runs[r].kind, scratch);
        }
    }
}

/* place.h is the first query head of key head kh. */
static void grad_key_value_columns(const fm_cpu_call *call, fm_cpu_place place, int64_t kh, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const fm_backward_problem *backward = call->backward;
    const int64_t group = p->heads / p->heads_kv, first_head = place.h;
    const int64_t column0 = place.tile_column * FM_CPU_LANES, columns = fm_cpu_tile_length(p->columns, place.tile_column);
    const fm_cpu_tile key =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->key, place.b, kh), column0, columns, 1.0f, scratch->lines_a);
    const fm_cpu_tile value =
        fm_cpu_tile_load(call, fm_cpu_tensor_rows(&p->value, place.b, kh), column0, columns, 1.0f, scratch->lines_b);
    call->kernels->transpose(key.data, key.stride, columns, p->head_dim, scratch->lanes_a);
    call->kernels->transpose(value.data, value.stride, columns, p->head_dim_v, scratch->lanes_b);
    clear(scratch->sum_a, columns, call->head_dim);
    clear(scratch->sum_b, columns, call->head_dim_v);
    for (place.h = first_head; place.h < first_head + group; place.h++) {
        add_query_head(call, place, scratch);
    }
    if (backward->grad_key.data != NULL) {
        const fm_cpu_rows to = fm_cpu_tensor_rows(&backward->grad_key, place.b, kh);
        store_rows(call, &to, column0, columns, 1.0f, scratch->sum_a);
    }
    if (backward->grad_value.data != NULL) {
        const fm_cpu_rows to = fm_cpu_tensor_rows(&backward->grad_value, place.b, kh);
        store_rows(call, &to, column0, columns, 1.0f, scratch->sum_b);
    }
}

/* Work is a line of the plan's columns, for the batch items and key heads that share it. Where the mask has one head per
 * query head, the line of a group's first head stands for the group. */
typedef struct column_work {
    int64_t heads, share; /* key heads of a line; members of a line */
} column_work;

static column_work column_work_of(const fm_problem *p) {
    const int64_t mask_heads = p->mask->shape.heads;
    const int64_t heads = mask_heads < p->heads_kv ? p->heads_kv / mask_heads : p->heads_kv > 0 ? 1 : 0;
    return (column_work){.heads = heads, .share = heads * (p->mask->shape.batch == 1 ? p->batch : 1)};
}

static void column_item(const fm_cpu_call *call, column_work work, int64_t index, fm_cpu_scratch *scratch) {
    const fm_problem *p = call->problem;
    const fm_plan *plan = p->plan;
    const int64_t line = plan->column_order[index / work.share], member = index % work.share;
    const int64_t plane = line / plan->tile_columns, mask_heads = p->mask->shape.heads, mask_head = plane % mask_heads;
    const int64_t per_key_head = mask_heads > p->heads_kv ? mask_heads / p->heads_kv : 1;
    if (mask_head % per_key_head != 0) {
        return;
    }
    const int64_t kh = mask_head / per_key_head * work.heads + member % work.heads;
    const fm_cpu_place place = {
        .b = plane / mask_heads + member / work.heads,
        .h = kh * (p->heads / p->heads_kv),
        .tile_column = line % plan->tile_columns,
    };
    grad_key_value_columns(call, place, kh, scratch);
}

/* ---- grad_sinks --------------------------------------------------------------------------------------------------- */

/* The sink adds exp(sink) to the denominator and nothing to the numerator: its gradient is -P(sink) * sum(grad_output *
 * output) in every row that sees a key. Summed over batch items and rows, ascending, in f64. */
static double grad_sink_of_head(const fm_cpu_call *call, int64_t h) {
    const fm_problem *p = call->problem;
    double total = 0.0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t first = (b * p->heads + h) * p->rows;
        for (int64_t i = first; i < first + p->rows; i++) {
            const double share = 1.0 / (1.0 + exp((double)p->lse[i] - p->sinks[h]));
            total -= p->lse[i] == -INFINITY ? 0.0 : share * call->row_offset[i];
        }
    }
    return total;
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static void run_prepare(const fm_cpu_call *call, int32_t threads, fm_cpu_scratch *scratch) {
    const int64_t count = fm_cpu_row_work_count(call->problem);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        prepare_rows(call, fm_cpu_row_work_get(call->problem, i), scratch + omp_get_thread_num());
    }
}

static void run_grad_query(const fm_cpu_call *call, int32_t threads, fm_cpu_scratch *scratch) {
    const int64_t count = fm_cpu_row_work_count(call->problem);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        grad_query_rows(call, fm_cpu_row_work_get(call->problem, i), scratch + omp_get_thread_num());
    }
}

static void run_grad_key_value(const fm_cpu_call *call, int32_t threads, fm_cpu_scratch *scratch) {
    const column_work work = column_work_of(call->problem);
    const int64_t count = call->problem->plan->columns.lines * work.share;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t i = 0; i < count; i++) {
        column_item(call, work, i, scratch + omp_get_thread_num());
    }
}

static void run_grad_sinks(const fm_cpu_call *call, int32_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t h = 0; h < call->problem->heads; h++) {
        call->backward->grad_sinks[h] = (float)grad_sink_of_head(call, h);
    }
}

static void run_passes(const fm_cpu_call *call, int32_t threads, fm_cpu_scratch *scratch) {
    const fm_backward_problem *backward = call->backward;
    run_prepare(call, threads, scratch);
    if (backward->grad_query.data != NULL) {
        run_grad_query(call, threads, scratch);
    }
    if (backward->grad_key.data != NULL || backward->grad_value.data != NULL) {
        run_grad_key_value(call, threads, scratch);
    }
    if (backward->grad_sinks != NULL) {
        run_grad_sinks(call, threads);
    }
}

fm_status fm_cpu_backward(const fm_backward_problem *backward) {
    const fm_problem *p = &backward->forward;
    const int64_t rows = p->batch * p->heads * p->rows;
    const int64_t row_items = fm_cpu_row_work_count(p), column_items = p->plan->columns.lines * column_work_of(p).share;
    const int32_t threads = fm_cpu_thread_count(p, row_items > column_items ? row_items : column_items);
    fm_cpu_scratch *scratch = NULL;
    void *terms = NULL;
    fm_status status = FM_OK;
    fm_cpu_call call;
    FM_TRY(fm_cpu_call_open(p, backward, &call));
    FM_TRY_DONE(fm_allocate("backward: row terms", 2 * rows, sizeof(float), &terms));
    FM_TRY_DONE(fm_cpu_scratch_allocate(threads, &scratch));
    call.row_offset = terms;
    call.row_lse = (float *)terms + rows;
    run_passes(&call, threads, scratch);
done:
    free(scratch);
    free(terms);
    return status;
}

#include "attention/problem.h"

#include "core/memory.h"
#include "core/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The keys that one row of one query head sees, ascending, into columns[0 .. count). */
static int64_t visible_columns(const fm_problem *p, int64_t b, int64_t h, int64_t row, int32_t *columns) {
    const int64_t mask_batch = fm_problem_mask_batch(p, b), mask_head = fm_problem_mask_head(p, h);
    int64_t count = 0;
    for (int64_t column0 = 0; column0 < p->columns; column0 += 64) {
        const int64_t width = p->columns - column0 < 64 ? p->columns - column0 : 64;
        uint64_t bits;
        fm_visible_bits(p->mask, &p->window, mask_batch, mask_head, row, 1, column0, width, &bits);
        for (; bits != 0; bits &= bits - 1) {
            columns[count++] = (int32_t)(column0 + __builtin_ctzll(bits));
        }
    }
    return count;
}

/* Below WORTH_THREADS pairs in an item of work, waking threads takes longer than the work. */
enum { WORTH_THREADS = 4096 };

static int thread_count(const fm_problem *p, int64_t work) {
    const int free_choice = p->rows * p->columns < WORTH_THREADS ? 1 : fm_problem_free_threads();
    const int wanted = p->num_threads > 0 ? p->num_threads : free_choice;
    return work < wanted ? (int)work : wanted;
}

/* Sums of each head over the batch, in order. */
static void store_grad_sinks(const fm_backward_problem *bp, const double *of_batch_and_head) {
    const fm_problem *p = &bp->forward;
    for (int64_t h = 0; bp->grad_sinks != NULL && h < p->heads; h++) {
        double sum = 0.0;
        for (int64_t b = 0; b < p->batch; b++) {
            sum += of_batch_and_head[b * p->heads + h];
        }
        bp->grad_sinks[h] = (float)sum;
    }
}

#define REAL double
#define NAME(x) x##_f64
#define EXP exp
#define LOG log
#define LOG1P log1p
#define TANH tanh
#include "attention/reference.inc"
#undef REAL
#undef NAME
#undef EXP
#undef LOG
#undef LOG1P
#undef TANH

#define REAL float
#define NAME(x) x##_f32
#define EXP expf
#define LOG logf
#define LOG1P log1pf
#define TANH tanhf
#include "attention/reference.inc"

static fm_status reference_forward(const fm_problem *p) { return p->query.dtype == FM_F64 ? forward_f64(p) : forward_f32(p); }

static fm_status reference_backward(const fm_backward_problem *bp) {
    return bp->forward.query.dtype == FM_F64 ? backward_f64(bp) : backward_f32(bp);
}

static fm_status no_forward_workspace(const fm_problem *p, size_t *bytes) {
    (void)p;
    *bytes = 0;
    return FM_OK;
}

static fm_status no_backward_workspace(const fm_backward_problem *bp, size_t *bytes) {
    (void)bp;
    *bytes = 0;
    return FM_OK;
}

const fm_backend fm_backend_reference = {
    .id = FM_BACKEND_REFERENCE,
    .name = "reference",
    .device = FM_CPU,
    .uses_plan = false,
    .takes_f64 = true,
    .forward_workspace = no_forward_workspace,
    .backward_workspace = no_backward_workspace,
    .forward = reference_forward,
    .backward = reference_backward,
};

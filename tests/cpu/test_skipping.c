/* Skipping pays: on one thread the time of a call is a * full tiles + b * partial tiles + c with one a, b, c for all masks.
 * Processor time, medians over rounds that visit every mask in turn; other work on the machine still disturbs it through caches
 * and clocks, so this is a slow test. */
#include <flashmask/masks.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "support/attention_case.h"
#include "support/cmocka_all.h"

enum { LENGTH = 8192, DIM = 128, ROUNDS = 7, MASKS = 8, UNKNOWNS = 3 };

typedef struct measurement {
    const char *name;
    double full, partial, seconds[2]; /* forward, forward + backward */
} measurement;

static void build(int i, fm_mask **out) {
    static const int64_t lengths[] = {1041, 2718, 1420, 1191, 1822}, prefix[] = {245, 737, 391, 275, 328};
    static const int64_t answers[] = {300, 341, 700, 718, 500, 320, 400, 391, 600, 622};
    const fm_question questions[] = {
        {400, 2, answers}, {1300, 2, answers + 2}, {600, 2, answers + 4}, {400, 2, answers + 6}, {600, 2, answers + 8}};
    fm_status status = FM_ERROR_INTERNAL;
    switch (i) {
    case 0: status = fm_mask_full(LENGTH, LENGTH, out); break;
    case 1: status = fm_mask_causal(LENGTH, LENGTH, out); break;
    case 2: status = fm_mask_sliding_window(LENGTH, LENGTH, 511, 0, out); break;
    case 3: status = fm_mask_documents(5, lengths, true, 0, out); break;
    case 4: status = fm_mask_documents(5, lengths, false, 0, out); break;
    case 5: status = fm_mask_share_question(5, questions, false, 0, out); break;
    case 6: status = fm_mask_prefix_lm(LENGTH, LENGTH, LENGTH / 2, out); break;
    case 7: status = fm_mask_prefix_documents(5, prefix, lengths, 0, out); break;
    default: break;
    }
    assert_int_equal(status, FM_OK);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Everything that one mask's calls need. */
typedef struct subject {
    fm_mask *mask;
    fm_plan *plan;
    attention_inputs in;
    test_tensor results[5]; /* output, gradients of query, key, value, lse */
    fm_attention_forward_args forward;
    fm_attention_backward_args backward;
    double seconds[2][ROUNDS]; /* forward, forward + backward */
} subject;

static void open_subject(subject *s, int i) {
    const attention_case shape = {.batch = 1,
                                  .rows = LENGTH,
                                  .columns = LENGTH,
                                  .heads = 1,
                                  .heads_kv = 1,
                                  .head_dim = DIM,
                                  .head_dim_v = DIM,
                                  .dtype = FM_F32,
                                  .layout = LAYOUT_CONTIGUOUS};
    test_random random = {7};
    build(i, &s->mask);
    assert_int_equal(fm_plan_create(s->mask, NULL, &s->plan), FM_OK);
    s->in = attention_inputs_make(&shape, &random);
    for (int k = 0; k < 5; k++) {
        s->results[k] = test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, LENGTH, 1, k == 4 ? 1 : DIM);
    }
    s->forward = (fm_attention_forward_args)FM_ATTENTION_FORWARD_ARGS_INIT;
    s->forward.query = s->in.query.view;
    s->forward.key = s->in.key.view;
    s->forward.value = s->in.value.view;
    s->forward.mask = s->mask;
    s->forward.plan = s->plan;
    s->forward.num_threads = 1;
    s->forward.output = s->results[0].view;
    s->forward.lse = s->results[4].buffer;
    s->backward = (fm_attention_backward_args)FM_ATTENTION_BACKWARD_ARGS_INIT;
    s->backward.forward = &s->forward;
    s->backward.grad_output = s->in.grad_output.view;
    s->backward.grad_query = s->results[1].view;
    s->backward.grad_key = s->results[2].view;
    s->backward.grad_value = s->results[3].view;
}

static void close_subject(subject *s) {
    for (int k = 0; k < 5; k++) {
        test_tensor_free(&s->results[k]);
    }
    attention_inputs_free(&s->in);
    fm_plan_free(s->plan);
    fm_mask_free(s->mask);
}

static void run_round(subject *s, int round) {
    const double start = now();
    assert_int_equal(fm_attention_forward(&s->forward), FM_OK);
    const double middle = now();
    assert_int_equal(fm_attention_backward(&s->backward), FM_OK);
    s->seconds[0][round] = middle - start;
    s->seconds[1][round] = now() - start;
}

static void measure(measurement m[MASKS]) {
    static const char *const names[MASKS] = {"full",      "causal",         "sliding window", "causal documents",
                                             "documents", "share question", "prefix lm",      "prefix documents"};
    subject *s = calloc(MASKS, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < MASKS; i++) {
        open_subject(&s[i], i);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < MASKS; i++) {
            run_round(&s[i], round);
        }
    }
    for (int i = 0; i < MASKS; i++) {
        fm_plan_stats stats = FM_PLAN_STATS_INIT;
        assert_int_equal(fm_plan_get_stats(s[i].plan, &stats), FM_OK);
        m[i] = (measurement){.name = names[i], .full = (double)stats.full, .partial = (double)stats.partial};
        for (int pass = 0; pass < 2; pass++) {
            qsort(s[i].seconds[pass], ROUNDS, sizeof(double), ascending);
            m[i].seconds[pass] = s[i].seconds[pass][ROUNDS / 2];
        }
        close_subject(&s[i]);
    }
    free(s);
}

/* Least squares of relative errors: rows (full, partial, 1) / seconds against 1, by the normal equations. */
static void fit(const measurement *m, int pass, double x[UNKNOWNS]) {
    double a[UNKNOWNS][UNKNOWNS + 1] = {{0}};
    for (int i = 0; i < MASKS; i++) {
        const double t = m[i].seconds[pass], row[UNKNOWNS] = {m[i].full / t, m[i].partial / t, 1.0 / t};
        for (int r = 0; r < UNKNOWNS; r++) {
            for (int c = 0; c < UNKNOWNS; c++) {
                a[r][c] += row[r] * row[c];
            }
            a[r][UNKNOWNS] += row[r];
        }
    }
    for (int p = 0; p < UNKNOWNS; p++) { /* Gauss-Jordan; the matrix is positive definite */
        for (int r = 0; r < UNKNOWNS; r++) {
            const double factor = r == p ? 0.0 : a[r][p] / a[p][p];
            for (int c = p; c <= UNKNOWNS; c++) {
                a[r][c] -= factor * a[p][c];
            }
        }
    }
    for (int p = 0; p < UNKNOWNS; p++) {
        x[p] = a[p][UNKNOWNS] / a[p][p];
    }
}

static void time_is_linear_in_full_and_partial_tiles(void **state) {
    (void)state;
    static const char *const passes[] = {"forward", "forward + backward"};
    measurement m[MASKS];
    measure(m);
    for (int pass = 0; pass < 2; pass++) {
        double x[UNKNOWNS], worst = 0.0;
        fit(m, pass, x);
        print_message("%s: full %.2f us, partial %.2f us, constant %.2f ms\n", passes[pass], 1e6 * x[0], 1e6 * x[1], 1e3 * x[2]);
        for (int i = 0; i < MASKS; i++) {
            const double model = x[0] * m[i].full + x[1] * m[i].partial + x[2], error = model / m[i].seconds[pass] - 1.0;
            print_message("  %-18s full %6.0f partial %5.0f  %8.2f ms, model %+5.1f %%\n", m[i].name, m[i].full, m[i].partial,
                          1e3 * m[i].seconds[pass], 100.0 * error);
            worst = fmax(worst, fabs(error));
        }
        assert_true(x[0] > 0.0 && x[1] > 0.0);
        assert_true(worst <= 0.15);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(time_is_linear_in_full_and_partial_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

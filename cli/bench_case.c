#include "bench_case.h"

#include "bench_check.h"
#include "call.h"

#include <stdio.h>
#include <stdlib.h>

void fm_bench_case_free(fm_bench_case *c) {
    fm_mask_free(c->mask);
    c->mask = NULL;
}

/* ---- times --------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int64_t count, double share) {
    return sorted[(int64_t)(share * (double)(count - 1) + 0.5)];
}

static int64_t runs_for(const fm_bench_settings *settings, double seconds) {
    if (settings->runs > 0) {
        return settings->runs;
    }
    const int64_t fit = (int64_t)(FM_BENCH_SECONDS / (seconds > 1e-9 ? seconds : 1e-9));
    return fit < FM_BENCH_LEAST_RUNS ? FM_BENCH_LEAST_RUNS : fit < FM_BENCH_RUNS ? fit : FM_BENCH_RUNS;
}

/* One of the two calls with its arguments. */
typedef struct timed_call {
    fm_attention_forward_args *forward;
    fm_attention_backward_args *backward; /* NULL: the forward call is timed */
} timed_call;

static bool call_once(const timed_call *call, double *seconds) {
    return call->backward != NULL ? fm_call_backward(call->backward, seconds) : fm_call_forward(call->forward, seconds);
}

/* A first call warms up and says how many runs fit. */
static bool time_call(const timed_call *call, const fm_bench_settings *settings, fm_bench_times *out) {
    double first = 0;
    if (!call_once(call, &first)) {
        return false;
    }
    out->runs = runs_for(settings, first);
    double *seconds = fm_cli_allocate(out->runs, sizeof *seconds);
    bool ok = seconds != NULL;
    for (int64_t i = 0; ok && i < out->runs; i++) {
        ok = call_once(call, &seconds[i]);
    }
    if (ok) {
        qsort(seconds, (size_t)out->runs, sizeof *seconds, by_value);
        out->median = percentile(seconds, out->runs, 0.5);
        out->p10 = percentile(seconds, out->runs, 0.1);
        out->p90 = percentile(seconds, out->runs, 0.9);
    }
    free(seconds);
    return ok;
}

/* ---- plans --------------------------------------------------------------------------------------------------------- */

static bool plan_once(const fm_mask *mask, int32_t tile, fm_plan_stats *stats, fm_plan **out) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.block_m = options.block_n = tile;
    *stats = (fm_plan_stats)FM_PLAN_STATS_INIT;
    return fm_cli_ok(fm_plan_create(mask, &options, out), "plan") && fm_cli_ok(fm_plan_get_stats(*out, stats), "plan");
}

/* Builds three times; tile 0: the backend's own. */
static bool plan_often(const fm_mask *mask, int32_t tile, fm_plan_stats *stats, double *seconds, fm_plan **out) {
    enum { BUILDS = 3 };
    double times[BUILDS];
    for (int i = 0; i < BUILDS; i++) {
        fm_plan_free(*out);
        *out = NULL;
        if (!plan_once(mask, tile, stats, out)) {
            return false;
        }
        times[i] = stats->build_seconds;
    }
    qsort(times, BUILDS, sizeof *times, by_value);
    *seconds = times[BUILDS / 2];
    return true;
}

bool fm_bench_plan(const fm_mask *mask, fm_bench_plans *out, fm_plan **plan) {
    fm_plan *own = NULL, *common = NULL;
    const bool ok = plan_often(mask, 0, &out->own, &out->own_seconds, &own) &&
                    plan_often(mask, FM_BENCH_COMMON_TILE, &out->common, &out->common_seconds, &common);
    fm_plan_free(common);
    if (ok && plan != NULL) {
        *plan = own;
    } else {
        fm_plan_free(own);
    }
    return ok;
}

/* ---- attention ----------------------------------------------------------------------------------------------------- */

typedef struct bench {
    const fm_bench_case *bench_case;
    const fm_bench_settings *settings;
    fm_trial_inputs inputs;
    fm_trial_results results;
    fm_plan *plan;
    fm_attention_forward_args forward;
    fm_attention_backward_args backward;
} bench;

static bool prepare(bench *b) {
    fm_attention_forward_args *f = &b->forward;
    if (!fm_trial_inputs_make(&b->settings->shape, b->settings->seed, &b->inputs) ||
        !fm_trial_results_make(&b->inputs, &b->results)) {
        return false;
    }
    *f = (fm_attention_forward_args)FM_ATTENTION_FORWARD_ARGS_INIT;
    f->query = b->inputs.query;
    f->key = b->inputs.key;
    f->value = b->inputs.value;
    f->plan = b->plan;
    f->output = b->results.result[FM_TRIAL_OUTPUT];
    f->lse = b->results.result[FM_TRIAL_LSE].data;
    f->backend = FM_BACKEND_CPU;
    f->num_threads = b->settings->threads;
    b->backward = (fm_attention_backward_args)FM_ATTENTION_BACKWARD_ARGS_INIT;
    b->backward.forward = f;
    b->backward.grad_output = b->inputs.grad_output;
    b->backward.grad_query = b->results.result[FM_TRIAL_GRAD_QUERY];
    b->backward.grad_key = b->results.result[FM_TRIAL_GRAD_KEY];
    b->backward.grad_value = b->results.result[FM_TRIAL_GRAD_VALUE];
    return true;
}

/* Pairs are those of the mask; each of its heads serves several query heads, and its batch items may serve several too. */
static double forward_flops(const bench *b, const fm_plan_stats *stats) {
    const fm_mask_shape mask = fm_mask_get_shape(b->bench_case->mask);
    const fm_trial_shape *s = &b->settings->shape;
    const double copies = (double)(s->batch * s->heads) / (double)(mask.batch * mask.heads);
    return 2.0 * (double)(s->head_dim + s->head_dim_v) * (double)stats->visible_pairs * copies;
}

static void say(const bench *b, fm_progress *progress, int64_t steps, const char *what) {
    char text[128];
    fm_progress_advance(progress, steps);
    snprintf(text, sizeof text, "%s: %s", b->bench_case->name, what);
    fm_progress_say(progress, text);
}

static bool measure(bench *b, fm_progress *progress, fm_bench_result *out) {
    say(b, progress, 0, "plan");
    if (!fm_bench_plan(b->bench_case->mask, &out->plans, &b->plan) || !prepare(b)) {
        return false;
    }
    out->forward.flops = forward_flops(b, &out->plans.own);
    out->backward.flops = 2.5 * out->forward.flops;
    say(b, progress, 0, "forward");
    if (!time_call(&(timed_call){&b->forward, NULL}, b->settings, &out->forward)) {
        return false;
    }
    say(b, progress, 3, "backward");
    if (!time_call(&(timed_call){&b->forward, &b->backward}, b->settings, &out->backward)) {
        return false;
    }
    say(b, progress, FM_BENCH_STEPS - 4, "f64 reference on sampled rows and keys");
    const fm_bench_checked checked = {b->bench_case->mask, &b->inputs, &b->results, b->settings};
    const bool ok = fm_bench_check(&checked, out);
    fm_progress_advance(progress, 1);
    return ok;
}

bool fm_bench_measure(const fm_bench_case *c, const fm_bench_settings *settings, fm_progress *progress, fm_bench_result *out) {
    bench b = {.bench_case = c, .settings = settings};
    *out = (fm_bench_result){0};
    const bool ok = measure(&b, progress, out);
    free(b.forward.workspace);
    free(b.backward.workspace);
    fm_trial_results_free(&b.results);
    fm_trial_inputs_free(&b.inputs);
    fm_plan_free(b.plan);
    return ok;
}

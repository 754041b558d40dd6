#include "bench_report.h"

#include "numbers.h"
#include "options.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- where and what ------------------------------------------------------------------------------------------------ */

/* The processor's name, or what uname calls it. */
static void machine_name(char *out, size_t room) {
    char line[256];
    struct utsname names;
    FILE *file = fopen("/proc/cpuinfo", "r");
    out[0] = '\0';
    while (file != NULL && out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(out, room, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    if (out[0] == '\0' && uname(&names) == 0) {
        snprintf(out, room, "%s", names.machine);
    }
}

static bool describe(fm_bench_report *report, int32_t threads) {
    char machine[128], version[32];
    const char *isa = NULL;
    if (!fm_cli_ok(fm_cpu_isa(&isa), "bench")) {
        return false;
    }
    const int number = fm_version();
    machine_name(machine, sizeof machine);
    snprintf(version, sizeof version, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    report->about =
        json_pack("{ss si ss ss ss si}", "machine", machine, "processors", (int)sysconf(_SC_NPROCESSORS_ONLN), "version", version,
                  "commit", FM_COMMIT, "isa", isa, "threads", threads > 0 ? threads : omp_get_max_threads());
    return report->about != NULL || fm_cli_fail("bench: the machine's name is not valid UTF-8");
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

static json_t *plan_json(const fm_plan_stats *s, double seconds) {
    return json_pack("{si si sI sI sI sI sf sI sf}", "block_m", s->block_m, "block_n", s->block_n, "tiles", (json_int_t)s->tiles,
                     "skipped", (json_int_t)s->skipped, "full", (json_int_t)s->full, "partial", (json_int_t)s->partial,
                     "efficiency", s->tile_efficiency, "bytes", (json_int_t)s->plan_bytes, "build_ms", 1e3 * seconds);
}

static json_t *times_json(const fm_bench_times *t) {
    return json_pack("{sI sf sf sf sf}", "runs", (json_int_t)t->runs, "median_ms", 1e3 * t->median, "p10_ms", 1e3 * t->p10,
                     "p90_ms", 1e3 * t->p90, "tflops", t->flops / t->median * 1e-12);
}

/* JSON has no infinity: an infinite error is null. */
static json_t *number_json(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *check_json(const fm_bench_result *r) {
    json_t *errors = json_object();
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        json_object_set_new(
            errors, fm_trial_result_names[i],
            json_pack("{so so}", "error", number_json(r->errors[i].error), "tolerance", number_json(r->errors[i].tolerance)));
    }
    return json_pack("{sI sI sb so}", "rows", (json_int_t)r->checked_rows, "keys", (json_int_t)r->checked_keys, "agrees",
                     r->agrees, "errors", errors);
}

static json_t *mask_json(const fm_bench_case *c, const fm_bench_result *r) {
    const fm_mask_shape shape = fm_mask_get_shape(c->mask);
    const fm_plan_stats *own = &r->plans.own;
    json_t *plans =
        json_pack("[o o]", plan_json(own, r->plans.own_seconds), plan_json(&r->plans.common, r->plans.common_seconds));
    return json_pack("{ss so* sI sI sI sf sI sI sI sf so}", "mask", c->name, "sample",
                     c->sample >= 0 ? json_integer(c->sample) : NULL, "seq", (json_int_t)shape.columns, "mask_heads",
                     (json_int_t)shape.heads, "visible_pairs", (json_int_t)own->visible_pairs, "density", own->density,
                     "mask_bytes", (json_int_t)own->mask_bytes, "fallback_bytes", (json_int_t)fm_mask_fallback_bytes(c->mask),
                     "dense_bytes", (json_int_t)own->dense_bytes, "mask_ms", 1e3 * c->mask_seconds, "plans", plans);
}

static json_t *shape_json(const fm_trial_shape *s) {
    return json_pack("{sI sI sI sI ss}", "batch", (json_int_t)s->batch, "heads", (json_int_t)s->heads, "heads_kv",
                     (json_int_t)s->heads_kv, "head_dim", (json_int_t)s->head_dim, "dtype", fm_dtype_text(s->dtype));
}

static bool print_json(const fm_bench_report *report, const fm_bench_case *c, const fm_bench_settings *settings,
                       const fm_bench_result *r) {
    json_t *line = json_pack("{ss}", "bench", report->mode == FM_BENCH_PLAN ? "plan" : "attention");
    json_t *mask = mask_json(c, r);
    json_object_update(line, mask);
    json_decref(mask);
    if (report->mode == FM_BENCH_ATTENTION) {
        json_t *shape = shape_json(&settings->shape);
        json_object_update(line, shape);
        json_decref(shape);
        json_object_set_new(line, "forward", times_json(&r->forward));
        json_object_set_new(line, "backward", times_json(&r->backward));
        json_object_set_new(line, "check", check_json(r));
    }
    json_object_update(line, report->about);
    const bool ok = json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6)) == 0;
    json_decref(line);
    printf("\n");
    fflush(stdout);
    return ok || fm_cli_fail("standard output: cannot be written");
}

/* ---- table --------------------------------------------------------------------------------------------------------- */

static void print_attention_head(const fm_trial_shape *s) {
    printf("%" PRId64 " tokens, %" PRId64 ":%" PRId64 " heads, head dim %" PRId64
           ", %s; eff: visible pairs in visited tiles of 128 x 128; times in ms, median (p10 .. p90)\n\n",
           s->columns, s->heads, s->heads_kv, s->head_dim, fm_dtype_text(s->dtype));
    printf("%-24s %7s %6s %8s %8s %6s | %-22s %7s | %-22s %7s | %s\n", "mask", "density", "eff", "mask", "plan", "ms", "forward",
           "TFLOP/s", "backward", "TFLOP/s", "check");
}

static void print_plan_head(void) {
    printf("%-24s %8s %8s %8s %7s | %-8s %8s | %-8s %8s %6s\n", "", "", "", "", "", "own tiles", "", "128x128", "", "");
    printf("%-24s %8s %8s %8s %7s | %8s %8s | %8s %8s %6s\n", "mask", "tokens", "density", "mask", "ms", "plan", "ms", "plan",
           "ms", "eff");
}

static void print_head(const fm_bench_report *report, const fm_bench_settings *settings) {
    const json_t *a = report->about;
    printf("%s, %d threads, %s; flashmask %s, %s\n", json_string_value(json_object_get(a, "machine")),
           (int)json_integer_value(json_object_get(a, "threads")), json_string_value(json_object_get(a, "isa")),
           json_string_value(json_object_get(a, "version")), json_string_value(json_object_get(a, "commit")));
    if (report->mode == FM_BENCH_PLAN) {
        print_plan_head();
    } else {
        print_attention_head(&settings->shape);
    }
}

static void case_label(const fm_bench_case *c, char *out, size_t room) {
    if (c->sample >= 0) {
        snprintf(out, room, "%.19s #%" PRId64, c->name, c->sample);
    } else {
        snprintf(out, room, "%.24s", c->name);
    }
}

static void print_plan_row(const fm_bench_case *c, const fm_bench_result *r) {
    char label[48];
    fm_number_buffer mask, own, common;
    case_label(c, label, sizeof label);
    printf("%-24s %8" PRId64 " %7.2f%% %8s %7.2f | %8s %8.3f | %8s %8.3f %5.1f%%\n", label, fm_mask_get_shape(c->mask).columns,
           100 * r->plans.own.density, fm_bytes_text(r->plans.own.mask_bytes, &mask), 1e3 * c->mask_seconds,
           fm_bytes_text(r->plans.own.plan_bytes, &own), 1e3 * r->plans.own_seconds,
           fm_bytes_text(r->plans.common.plan_bytes, &common), 1e3 * r->plans.common_seconds,
           100 * r->plans.common.tile_efficiency);
}

static void times_text(const fm_bench_times *t, char *out, size_t room) {
    const int decimals = t->median < 0.01 ? 3 : t->median < 1 ? 2 : 0;
    snprintf(out, room, "%.*f (%.*f .. %.*f)", decimals, 1e3 * t->median, decimals, 1e3 * t->p10, decimals, 1e3 * t->p90);
}

static void print_attention_row(const fm_bench_case *c, const fm_bench_result *r) {
    char label[48], forward[48], backward[48];
    fm_number_buffer mask, plan;
    case_label(c, label, sizeof label);
    times_text(&r->forward, forward, sizeof forward);
    times_text(&r->backward, backward, sizeof backward);
    printf("%-24s %6.2f%% %5.1f%% %8s %8s %6.2f | %-22s %7.4f | %-22s %7.4f | %s\n", label, 100 * r->plans.own.density,
           100 * r->plans.common.tile_efficiency, fm_bytes_text(r->plans.own.mask_bytes, &mask),
           fm_bytes_text(r->plans.own.plan_bytes, &plan), 1e3 * r->plans.own_seconds, forward,
           r->forward.flops / r->forward.median * 1e-12, backward, r->backward.flops / r->backward.median * 1e-12,
           r->agrees ? "ok" : "DIFFERS");
}

/* ---- the report ---------------------------------------------------------------------------------------------------- */

bool fm_bench_report_open(fm_bench_report *report, fm_bench_mode mode, bool json, const fm_bench_settings *settings) {
    *report = (fm_bench_report){.mode = mode, .json = json || isatty(STDOUT_FILENO) != 1};
    if (!describe(report, settings->threads)) {
        return false;
    }
    if (!report->json) {
        print_head(report, settings);
    }
    return true;
}

bool fm_bench_report_case(const fm_bench_report *report, const fm_bench_case *c, const fm_bench_settings *settings,
                          const fm_bench_result *result) {
    if (report->json) {
        return print_json(report, c, settings, result);
    }
    if (report->mode == FM_BENCH_PLAN) {
        print_plan_row(c, result);
    } else {
        print_attention_row(c, result);
    }
    fflush(stdout);
    return true;
}

void fm_bench_report_close(fm_bench_report *report) {
    json_decref(report->about);
    *report = (fm_bench_report){0};
}

/* flashmask bench: how long masks and attention take. */
#include "bench/benchmark_masks.h"
#include "bench_report.h"
#include "call.h"
#include "commands.h"
#include "demo_pack.h"

#include <string.h>

enum { DEFAULT_SEQ = 4096, DEFAULT_HEAD_DIM = 128, LENGTHS = 5, DENSITIES = 3 };
enum { FIRST_PACK = BENCHMARK_MASKS, FIRST_RANDOM = FIRST_PACK + FM_DEMO_SETS, MASKS = FIRST_RANDOM + DENSITIES };

static const int64_t lengths[LENGTHS] = {4096, 8192, 32768, 131072, 1048576};
static const char *const pack_names[FM_DEMO_SETS] = {"chat_pack", "pairs_pack", "code_pack"};
static const char *const random_names[DENSITIES] = {"random_sparse_1%", "random_sparse_10%", "random_sparse_50%"};
static const double densities[DENSITIES] = {0.01, 0.1, 0.5};

typedef struct bench {
    const fm_options *options;
    int64_t heads_kv;
    fm_bench_report report;
    fm_progress progress;
    bool agrees;
} bench;

/* ---- which masks --------------------------------------------------------------------------------------------------- */

static const char *name_of(int mask) {
    return mask < FIRST_PACK     ? benchmark_mask_name((benchmark_mask)mask)
           : mask < FIRST_RANDOM ? pack_names[mask - FIRST_PACK]
                                 : random_names[mask - FIRST_RANDOM];
}

/* True if name stands in a list of names apart by commas. */
static bool is_listed(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* --plan-only is about the published masks alone, --fallback about random ones. */
static bool is_wanted(const fm_options *o, int mask) {
    const int first = o->fallback ? FIRST_RANDOM : 0, end = o->fallback ? MASKS : o->plan_only ? FIRST_PACK : FIRST_RANDOM;
    return mask >= first && mask < end && (o->mask == NULL || is_listed(o->mask, name_of(mask)));
}

/* Each name of --mask is one that can be wanted. */
static bool check_names(const fm_options *o) {
    fm_options all = *o;
    all.mask = NULL;
    for (const char *at = o->mask; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        const size_t length = strcspn(at, ",");
        bool known = false;
        for (int m = 0; m < MASKS; m++) {
            known = known || (is_wanted(&all, m) && strlen(name_of(m)) == length && strncmp(at, name_of(m), length) == 0);
        }
        if (!known) {
            char text[512] = "";
            for (int m = 0; m < MASKS; m++) {
                if (is_wanted(&all, m)) {
                    snprintf(text + strlen(text), sizeof text - strlen(text), " %s", name_of(m));
                }
            }
            return fm_cli_fail("--mask: no '%.*s' here; there are%s", (int)(length < 40 ? length : 40), at, text);
        }
    }
    return true;
}

static int64_t samples_of(const fm_options *o, int mask) {
    const bool many = mask < FIRST_PACK ? benchmark_mask_has_samples((benchmark_mask)mask) : mask < FIRST_RANDOM;
    return !many ? 1 : o->samples != 0 ? o->samples : 1;
}

/* ---- one mask ------------------------------------------------------------------------------------------------------ */

/* Sequences spread evenly over the pack. */
static bool build_pack(const bench *b, int set_index, int64_t seq, fm_bench_case *c) {
    const int64_t samples = samples_of(b->options, FIRST_PACK + set_index);
    char data[4096];
    fm_packed_set set = {0};
    if (!fm_demo_find_data(b->options->data, data, sizeof data) || !fm_demo_set_load(set_index, data, seq, &set)) {
        return false;
    }
    const int64_t sequence = (2 * c->sample + 1) * set.sequences / (2 * samples);
    const double start = fm_clock_seconds();
    const bool ok = fm_packed_set_mask(&set, sequence, &c->mask);
    c->mask_seconds = fm_clock_seconds() - start;
    c->sample = sequence;
    fm_packed_set_free(&set);
    return ok;
}

static bool build_case(const bench *b, int mask, int64_t seq, int64_t sample, fm_bench_case *c) {
    *c = (fm_bench_case){.sample = sample};
    snprintf(c->name, sizeof c->name, "%s", name_of(mask));
    if (mask >= FIRST_PACK && mask < FIRST_RANDOM) {
        return build_pack(b, mask - FIRST_PACK, seq, c);
    }
    const double start = fm_clock_seconds();
    const fm_status status =
        mask < FIRST_PACK ? benchmark_mask_build((benchmark_mask)mask, seq, (int)sample, b->heads_kv, &c->mask)
                          : fm_mask_random_sparse(seq, seq, densities[mask - FIRST_RANDOM], b->options->seed, NULL, &c->mask);
    c->mask_seconds = fm_clock_seconds() - start;
    c->sample = mask < FIRST_PACK && benchmark_mask_has_samples((benchmark_mask)mask) ? sample : -1;
    return fm_cli_ok(status, c->name);
}

static fm_bench_settings settings_of(const bench *b, int64_t seq) {
    const fm_options *o = b->options;
    const int64_t head_dim = o->head_dim != 0 ? o->head_dim : DEFAULT_HEAD_DIM;
    return (fm_bench_settings){
        .shape = {1, seq, seq, o->heads != 0 ? o->heads : 1, b->heads_kv, head_dim, head_dim, o->dtype},
        .runs = o->runs,
        .threads = (int32_t)o->threads,
        .seed = o->seed,
    };
}

static bool bench_mask(bench *b, int mask, int64_t seq, int64_t sample) {
    const fm_bench_settings settings = settings_of(b, seq);
    fm_bench_case c = {0};
    fm_bench_result result = {0};
    fm_progress_say(&b->progress, name_of(mask));
    bool ok = build_case(b, mask, seq, sample, &c);
    if (ok && b->options->plan_only) {
        ok = fm_bench_plan(c.mask, &result.plans, NULL);
        fm_progress_advance(&b->progress, FM_BENCH_STEPS);
    } else if (ok) {
        ok = fm_bench_measure(&c, &settings, &b->progress, &result);
        b->agrees = b->agrees && result.agrees;
    }
    fm_progress_clear(&b->progress);
    ok = ok && fm_bench_report_case(&b->report, &c, &settings, &result);
    fm_bench_case_free(&c);
    return ok;
}

static bool bench_length(bench *b, int64_t seq) {
    for (int mask = 0; mask < MASKS; mask++) {
        for (int64_t sample = 0; is_wanted(b->options, mask) && sample < samples_of(b->options, mask); sample++) {
            if (!bench_mask(b, mask, seq, sample)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

/* The packs come last: their files are looked for before the minutes that the other masks take. */
static bool check_data(const fm_options *o) {
    char data[4096];
    bool needed = false;
    for (int mask = FIRST_PACK; mask < FIRST_RANDOM; mask++) {
        needed = needed || is_wanted(o, mask);
    }
    return !needed || fm_demo_find_data(o->data, data, sizeof data);
}

static bool check_options(const fm_options *o) {
    bool known = o->seq == 0 || o->fallback;
    for (int i = 0; i < LENGTHS; i++) {
        known = known || o->seq == lengths[i];
    }
    if (!known) {
        return fm_cli_fail("--seq: the benchmark has 4096, 8192, 32768, 131072 and 1048576 tokens");
    }
    return check_names(o) && check_data(o);
}

static int64_t case_count(const fm_options *o) {
    int64_t count = 0;
    for (int mask = 0; mask < MASKS; mask++) {
        count += is_wanted(o, mask) ? samples_of(o, mask) : 0;
    }
    return count;
}

static bool run_bench(bench *b) {
    const fm_options *o = b->options;
    const bool both = o->plan_only && !o->fallback && o->seq == 0;
    const int64_t seq = o->seq != 0 ? o->seq : both ? 131072 : DEFAULT_SEQ;
    const fm_bench_settings settings = settings_of(b, seq);
    if (!check_options(o) ||
        !fm_bench_report_open(&b->report, o->plan_only ? FM_BENCH_PLAN : FM_BENCH_ATTENTION, o->json, &settings)) {
        return false;
    }
    b->progress = fm_progress_start(case_count(o) * FM_BENCH_STEPS * (both ? 2 : 1));
    const bool ok = bench_length(b, seq) && (!both || bench_length(b, 1048576));
    fm_progress_end(&b->progress);
    return ok;
}

fm_exit fm_command_bench(const fm_options *options) {
    bench b = {.options = options, .agrees = true};
    b.heads_kv = options->heads_kv != 0 ? options->heads_kv : options->heads != 0 ? options->heads : 1;
    const bool ok = run_bench(&b);
    fm_bench_report_close(&b.report);
    return !ok ? FM_EXIT_BAD : b.agrees ? FM_EXIT_OK : FM_EXIT_DIFFERS;
}

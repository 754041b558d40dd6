/* flashmask demo: real document lengths packed into sequences, attention on some of them, all of it checked. */
#include "commands.h"
#include "demo_check.h"
#include "progress.h"

#include <inttypes.h>

enum { CAPACITY = 8192, SEQUENCES = 4, HEADS = 2, HEAD_DIM = 64 };

/* Pairs of one sequence that the f64 reference goes over: all of a chat sequence, three or more documents of code. */
enum { CHECKED_PAIRS = 3 << 20 };

/* Steps of the progress bar, in the proportion of the time that they take. */
enum { PLAN_STEPS = 2, SKIP_STEPS = 1, EVERY_TILE_STEPS = 12, CHECK_STEPS = 4 };

typedef struct set_report {
    fm_packed_set set;
    int64_t tiles, skipped, mask_bytes, dense_bytes; /* of all sequences */
    int64_t ran;
    double skip_seconds, every_tile_seconds;
    bool same_bits;
    fm_demo_checked checked;
} set_report;

typedef struct demo {
    const fm_options *options;
    char data[4096];
    int64_t capacity, sequences;
    fm_progress progress;
    set_report sets[FM_DEMO_SETS];
} demo;

static void say(demo *d, const set_report *r, const char *what) {
    char text[64];
    snprintf(text, sizeof text, "%s: %s", fm_demo_set_name((int)(r - d->sets)), what);
    fm_progress_say(&d->progress, text);
}

/* ---- all sequences: masks and plans -------------------------------------------------------------------------------- */

static bool add_stats(set_report *r, const fm_plan *plan) {
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    if (!fm_cli_ok(fm_plan_get_stats(plan, &stats), "plan")) {
        return false;
    }
    r->tiles += stats.tiles;
    r->skipped += stats.skipped;
    r->mask_bytes += stats.mask_bytes;
    r->dense_bytes += stats.dense_bytes;
    return true;
}

static bool plan_all(demo *d, set_report *r) {
    say(d, r, "masks and plans");
    for (int64_t s = 0; s < r->set.sequences; s++) {
        fm_mask *mask = NULL;
        fm_plan *plan = NULL;
        const bool ok =
            fm_packed_set_mask(&r->set, s, &mask) && fm_cli_ok(fm_plan_create(mask, NULL, &plan), "plan") && add_stats(r, plan);
        fm_plan_free(plan);
        fm_mask_free(mask);
        if (!ok) {
            return false;
        }
    }
    fm_progress_advance(&d->progress, PLAN_STEPS);
    return true;
}

/* ---- some sequences: attention -------------------------------------------------------------------------------------- */

/* With skipping, without, and against the reference. */
static bool run_and_check(demo *d, set_report *r, fm_demo_sequence s, const fm_plan *plan) {
    fm_trial_results skipping = {0}, every_tile = {0};
    fm_trial_call call = {.mask = s.mask, .plan = plan, .backend = FM_BACKEND_CPU, .threads = s.threads};
    fm_random random = {.state = d->options->seed + (uint64_t)s.sequence};
    say(d, r, "skipping tiles");
    bool ok = fm_trial_run(s.inputs, &call, &skipping);
    fm_progress_advance(&d->progress, SKIP_STEPS);
    if (ok) {
        call.no_skip = true;
        say(d, r, "every tile");
        ok = fm_trial_run(s.inputs, &call, &every_tile);
        fm_progress_advance(&d->progress, EVERY_TILE_STEPS);
    }
    if (ok) {
        r->skip_seconds += skipping.forward_seconds + skipping.backward_seconds;
        r->every_tile_seconds += every_tile.forward_seconds + every_tile.backward_seconds;
        r->same_bits = r->same_bits && fm_trial_results_equal(&skipping, &every_tile);
        s.results = &skipping;
        say(d, r, "f64 reference");
        ok = fm_demo_check(&s, CHECKED_PAIRS, &random, &r->checked);
        fm_progress_advance(&d->progress, CHECK_STEPS);
    }
    fm_trial_results_free(&skipping);
    fm_trial_results_free(&every_tile);
    return ok;
}

static bool run_sequence(demo *d, set_report *r, int64_t sequence) {
    const fm_trial_shape shape = {1, d->capacity, d->capacity, HEADS, HEADS, HEAD_DIM, HEAD_DIM, d->options->dtype};
    fm_mask *mask = NULL;
    fm_plan *plan = NULL;
    fm_trial_inputs inputs = {0};
    bool ok = fm_packed_set_mask(&r->set, sequence, &mask) && fm_cli_ok(fm_plan_create(mask, NULL, &plan), "plan") &&
              fm_trial_inputs_make(&shape, d->options->seed + (uint64_t)sequence, &inputs);
    if (ok) {
        const fm_demo_sequence s = {&r->set, sequence, mask, &inputs, NULL, (int32_t)d->options->threads};
        ok = run_and_check(d, r, s, plan);
    }
    fm_trial_inputs_free(&inputs);
    fm_plan_free(plan);
    fm_mask_free(mask);
    return ok;
}

/* Sequences spread evenly over the set. */
static bool run_some(demo *d, set_report *r) {
    r->ran = d->sequences < r->set.sequences ? d->sequences : r->set.sequences;
    r->same_bits = true;
    for (int64_t i = 0; i < r->ran; i++) {
        if (!run_sequence(d, r, i * r->set.sequences / r->ran)) {
            return false;
        }
    }
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        fm_trial_judge(&r->checked.errors[i], i, d->options->dtype);
    }
    return true;
}

/* ---- the table ------------------------------------------------------------------------------------------------------ */

enum { LABEL = 40, COLUMN = 19 };

typedef enum metric {
    DOCUMENTS,
    TOKENS,
    PACKED_ROWS,
    PADDED_ROWS,
    PACKED_SHARE,
    PADDED_SHARE,
    MASK_BYTES,
    DENSE_BYTES,
    SKIPPED,
    RAN,
    SKIP_TIME,
    EVERY_TILE_TIME,
    SPEEDUP,
    SAME_BITS,
    CHECKED_ROWS,
    ERROR,
    TOLERANCE_SHARE,
    METRICS
} metric;

static const char *const labels[METRICS] = {
    [DOCUMENTS] = "documents (long ones in pieces)",
    [TOKENS] = "tokens",
    [PACKED_ROWS] = "sequences, packed",
    [PADDED_ROWS] = "sequences, each document padded",
    [PACKED_SHARE] = "effective tokens, packed",
    [PADDED_SHARE] = "effective tokens, padded",
    [MASK_BYTES] = "mask bytes a sequence, intervals",
    [DENSE_BYTES] = "mask bytes a sequence, dense",
    [SKIPPED] = "tiles skipped",
    [RAN] = "sequences run, forward + backward",
    [SKIP_TIME] = "time, skipping tiles",
    [EVERY_TILE_TIME] = "time, every tile",
    [SPEEDUP] = "ratio",
    [SAME_BITS] = "same bits both ways",
    [CHECKED_ROWS] = "rows compared with the f64 reference",
    [ERROR] = "largest error of O, LSE, dQ, dK, dV",
    [TOLERANCE_SHARE] = "largest error / tolerance",
};

static double share(int64_t part, int64_t whole) { return whole > 0 ? 100.0 * (double)part / (double)whole : 0; }

static double largest_error(const set_report *r, bool as_share) {
    double largest = 0;
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        const fm_trial_error *e = &r->checked.errors[i];
        const double value = as_share ? e->error / e->tolerance : e->error;
        largest = value > largest ? value : largest;
    }
    return largest;
}

static void format_metric(const set_report *r, metric m, char *out, size_t room) {
    fm_number_buffer number;
    const fm_packed_set *s = &r->set;
    const int64_t sequences = s->sequences > 0 ? s->sequences : 1;
    switch (m) {
    case DOCUMENTS: snprintf(out, room, "%s", fm_number_text(s->pieces, &number)); break;
    case TOKENS: snprintf(out, room, "%s", fm_number_text(s->tokens, &number)); break;
    case PACKED_ROWS: snprintf(out, room, "%s", fm_number_text(s->sequences, &number)); break;
    case PADDED_ROWS: snprintf(out, room, "%s", fm_number_text(s->pieces, &number)); break;
    case PACKED_SHARE: snprintf(out, room, "%.2f%%", share(s->tokens, s->sequences * s->capacity)); break;
    case PADDED_SHARE: snprintf(out, room, "%.2f%%", share(s->tokens, s->pieces * s->capacity)); break;
    case MASK_BYTES: snprintf(out, room, "%s", fm_number_text(r->mask_bytes / sequences, &number)); break;
    case DENSE_BYTES: snprintf(out, room, "%s", fm_number_text(r->dense_bytes / sequences, &number)); break;
    case SKIPPED: snprintf(out, room, "%.1f%%", share(r->skipped, r->tiles)); break;
    case RAN: snprintf(out, room, "%" PRId64, r->ran); break;
    case SKIP_TIME: snprintf(out, room, "%.2f s", r->skip_seconds); break;
    case EVERY_TILE_TIME: snprintf(out, room, "%.2f s", r->every_tile_seconds); break;
    case SPEEDUP: snprintf(out, room, "%.1f x", r->every_tile_seconds / r->skip_seconds); break;
    case SAME_BITS: snprintf(out, room, "%s", r->same_bits ? "yes" : "NO"); break;
    case CHECKED_ROWS: snprintf(out, room, "%s", fm_number_text(r->checked.rows, &number)); break;
    case ERROR: snprintf(out, room, "%.2g", largest_error(r, false)); break;
    case TOLERANCE_SHARE: snprintf(out, room, "%.0f%%", 100 * largest_error(r, true)); break;
    case METRICS: out[0] = '\0'; break;
    }
}

static void print_rule(void) {
    for (int i = 0; i < LABEL + FM_DEMO_SETS * COLUMN; i++) {
        putchar('-');
    }
    putchar('\n');
}

static void print_table(const demo *d) {
    fm_number_buffer number;
    char text[64];
    printf("Real lengths from %s, packed into sequences of %s tokens\n", d->data, fm_number_text(d->capacity, &number));
    printf("Attention: %d heads, head dim %d, %s\n\n", HEADS, HEAD_DIM, fm_dtype_text(d->options->dtype));
    printf("%-*s", LABEL, "");
    for (int s = 0; s < FM_DEMO_SETS; s++) {
        printf("%*s", COLUMN, fm_demo_set_name(s));
    }
    printf("\n");
    for (metric m = 0; m < METRICS; m++) {
        if (m == DOCUMENTS || m == MASK_BYTES || m == RAN || m == CHECKED_ROWS) {
            print_rule();
        }
        printf("%-*s", LABEL, labels[m]);
        for (int s = 0; s < FM_DEMO_SETS; s++) {
            format_metric(&d->sets[s], m, text, sizeof text);
            printf("%*s", COLUMN, text);
        }
        printf("\n");
    }
}

static bool agrees(const demo *d) {
    bool all = true;
    for (int s = 0; s < FM_DEMO_SETS; s++) {
        all = all && d->sets[s].same_bits;
        for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
            all = all && d->sets[s].checked.errors[i].agrees;
        }
    }
    return all;
}

/* ---- the command ---------------------------------------------------------------------------------------------------- */

static bool run_demo(demo *d) {
    for (int i = 0; i < FM_DEMO_SETS; i++) {
        if (!fm_demo_set_load(i, d->data, d->capacity, &d->sets[i].set)) {
            return false;
        }
    }
    d->progress = fm_progress_start(FM_DEMO_SETS * (PLAN_STEPS + d->sequences * (SKIP_STEPS + EVERY_TILE_STEPS + CHECK_STEPS)));
    for (int i = 0; i < FM_DEMO_SETS; i++) {
        if (!plan_all(d, &d->sets[i]) || !run_some(d, &d->sets[i])) {
            return false;
        }
    }
    return true;
}

fm_exit fm_command_demo(const fm_options *options) {
    demo d = {.options = options,
              .capacity = options->seq != 0 ? options->seq : CAPACITY,
              .sequences = options->sequences >= 0 ? options->sequences : SEQUENCES};
    const bool ok = fm_demo_find_data(options->data, d.data, sizeof d.data) && run_demo(&d), agree = ok && agrees(&d);
    fm_progress_end(&d.progress);
    if (ok) {
        print_table(&d);
        printf("\n%s\n",
               agree ? "Every compared value is within its tolerance: twice the error of the same computation in the same\n"
                       "dtype without tiles, and the floor of docs/numerics.md."
                     : "DIFFERS: some value is out of its tolerance, or skipping tiles changed bits.");
    }
    for (int i = 0; i < FM_DEMO_SETS; i++) {
        fm_packed_set_free(&d.sets[i].set);
    }
    return !ok ? FM_EXIT_BAD : agree ? FM_EXIT_OK : FM_EXIT_DIFFERS;
}

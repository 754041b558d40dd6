/* flashmask check: the CPU backend with a mask, forward and backward, against the f64 reference. */
#include "commands.h"
#include "json_out.h"
#include "progress.h"
#include "trial.h"

#include <inttypes.h>
#include <math.h>

enum { DEFAULT_HEAD_DIM = 64 };

typedef struct check {
    fm_trial_shape shape;
    fm_trial_error errors[FM_TRIAL_RESULTS];
    bool agrees;
} check;

static fm_trial_shape shape_of(const fm_options *o, const fm_mask *mask) {
    const fm_mask_shape m = fm_mask_get_shape(mask);
    fm_trial_shape s = {.batch = m.batch, .rows = m.rows, .columns = m.columns, .dtype = o->dtype};
    s.heads = o->heads != 0 ? o->heads : m.heads;
    s.heads_kv = o->heads_kv != 0 ? o->heads_kv : s.heads;
    s.head_dim = o->head_dim != 0 ? o->head_dim : DEFAULT_HEAD_DIM;
    s.head_dim_v = o->head_dim_v != 0 ? o->head_dim_v : s.head_dim;
    return s;
}

/* Ours first: it refuses what does not fit together before the slow references run. */
static bool compare(const fm_options *o, const fm_mask *mask, const fm_trial_inputs *inputs, check *out) {
    const fm_trial_call call = {.mask = mask, .backend = FM_BACKEND_CPU, .threads = (int32_t)o->threads};
    fm_trial_results ours = {0}, plain = {0}, oracle = {0};
    fm_progress progress = fm_progress_start(2);
    fm_progress_say(&progress, "CPU backend");
    bool ok = fm_trial_run(inputs, &call, &ours);
    fm_progress_advance(&progress, 1);
    fm_progress_say(&progress, "references");
    ok = ok && fm_trial_references(inputs, mask, (int32_t)o->threads, &oracle, &plain);
    fm_progress_end(&progress);
    out->agrees = ok;
    for (int i = 0; ok && i < FM_TRIAL_RESULTS; i++) {
        fm_trial_measure(&out->errors[i], fm_trial_terms(inputs), &ours.result[i], &plain.result[i], &oracle.result[i]);
        fm_trial_judge(&out->errors[i], i, o->dtype);
        out->agrees = out->agrees && out->errors[i].agrees;
    }
    fm_trial_results_free(&ours);
    fm_trial_results_free(&plain);
    fm_trial_results_free(&oracle);
    return ok;
}

static void print_text(const fm_options *o, const check *c) {
    const fm_trial_shape *s = &c->shape;
    printf("spec   %s\n", fm_options_mask_name(o));
    printf("shape  batch %" PRId64 ", rows %" PRId64 ", keys %" PRId64 ", heads %" PRId64 ":%" PRId64 ", head dim %" PRId64
           ":%" PRId64 ", %s\n\n",
           s->batch, s->rows, s->columns, s->heads, s->heads_kv, s->head_dim, s->head_dim_v, fm_dtype_text(s->dtype));
    printf("       %-10s %-10s %-10s tolerance = 2 plain + floor\n", "error", "plain", "floor");
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        const fm_trial_error *e = &c->errors[i];
        printf("%-6s %-10.3g %-10.3g %-10.3g %-10.3g %s\n", fm_trial_result_names[i], e->error, e->plain, e->floor, e->tolerance,
               e->agrees ? "ok" : "DIFFERS");
    }
    printf("\n%s the f64 reference; plain: the same computation in %s without tiles\n",
           c->agrees ? "agrees with" : "differs from", fm_dtype_text(s->dtype));
}

/* JSON has no infinity: an infinite error is null. */
static json_t *number_json(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static bool print_json(const fm_options *o, const check *c) {
    const fm_trial_shape *s = &c->shape;
    json_t *errors = json_object();
    for (int i = 0; i < FM_TRIAL_RESULTS; i++) {
        const fm_trial_error *e = &c->errors[i];
        json_object_set_new(errors, fm_trial_result_names[i],
                            json_pack("{so so so so sb}", "error", number_json(e->error), "plain", number_json(e->plain), "floor",
                                      number_json(e->floor), "tolerance", number_json(e->tolerance), "agrees", e->agrees));
    }
    json_t *object =
        json_pack("{ss sI sI sI sI sI sI sI ss so sb}", "mask", fm_options_mask_name(o), "batch", (json_int_t)s->batch, "rows",
                  (json_int_t)s->rows, "keys", (json_int_t)s->columns, "heads", (json_int_t)s->heads, "heads_kv",
                  (json_int_t)s->heads_kv, "head_dim", (json_int_t)s->head_dim, "head_dim_v", (json_int_t)s->head_dim_v, "dtype",
                  fm_dtype_text(s->dtype), "results", errors, "agrees", c->agrees);
    return fm_json_print(object);
}

fm_exit fm_command_check(const fm_options *options) {
    check c = {0};
    fm_mask *mask = NULL;
    fm_trial_inputs inputs = {0};
    bool ok = fm_options_mask(options, &mask);
    if (ok) {
        c.shape = shape_of(options, mask);
        ok = fm_trial_inputs_make(&c.shape, options->seed, &inputs) && compare(options, mask, &inputs, &c);
    }
    if (ok && options->json) {
        ok = print_json(options, &c);
    } else if (ok) {
        print_text(options, &c);
    }
    fm_trial_inputs_free(&inputs);
    fm_mask_free(mask);
    return !ok ? FM_EXIT_BAD : c.agrees ? FM_EXIT_OK : FM_EXIT_DIFFERS;
}

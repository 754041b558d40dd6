#include "demo_check.h"

#include <stdlib.h>

enum {
    LEAST_ROWS = 16,
    SHARES = 3, /* no document takes more than a third of the pairs */
    LSE = 1,
    FIRST_BY_KEY = 3 /* dK and dV: results from here on have keys, not rows */
};

/* Rows [row0, end) of the document [start, end). */
typedef struct suffix {
    int64_t start, row0, end;
} suffix;

/* A result, cut to the rows or keys that a suffix determines; row and key are where it starts in this tensor. */
static fm_tensor cut(const fm_tensor *tensor, int result, int64_t row, int64_t key, int64_t count) {
    return result >= FIRST_BY_KEY ? fm_tensor_range(tensor, 1, key, key + count)
                                  : fm_tensor_range(tensor, result == LSE ? 3 : 1, row, row + count);
}

static bool check_suffix(const fm_demo_sequence *s, suffix d, fm_demo_checked *checked) {
    const fm_trial_range range = {d.row0, d.end, d.start, d.end};
    const fm_trial_inputs inputs = fm_trial_inputs_slice(s->inputs, range);
    const int64_t count = d.end - d.row0;
    fm_trial_results oracle = {0}, plain = {0};
    fm_mask *mask = NULL;
    const bool ok = fm_cli_ok(fm_mask_slice(s->mask, d.row0, d.end, d.start, d.end, NULL, &mask), "check") &&
                    fm_trial_references(&inputs, mask, s->threads, &oracle, &plain);
    for (int i = 0; ok && i < FM_TRIAL_RESULTS; i++) {
        const fm_tensor ours = cut(&s->results->result[i], i, d.row0, d.row0, count);
        const fm_tensor theirs = cut(&plain.result[i], i, 0, d.row0 - d.start, count);
        const fm_tensor truth = cut(&oracle.result[i], i, 0, d.row0 - d.start, count);
        fm_trial_measure(&checked->errors[i], fm_trial_terms(&inputs), &ours, &theirs, &truth);
    }
    checked->rows += count;
    fm_trial_results_free(&oracle);
    fm_trial_results_free(&plain);
    fm_mask_free(mask);
    return ok;
}

/* Starts of the pieces, one after another, and a random order of them. */
static bool lay_out(const fm_piece *pieces, int64_t count, fm_random *random, int64_t **starts, int64_t **order) {
    *starts = fm_cli_allocate(count + 1, sizeof **starts);
    *order = fm_cli_allocate(count, sizeof **order);
    if (*starts == NULL || *order == NULL) {
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        (*starts)[i + 1] = (*starts)[i] + pieces[i].length;
        const int64_t other = fm_random_below(random, i + 1);
        (*order)[i] = (*order)[other];
        (*order)[other] = i;
    }
    return true;
}

/* Causal pairs in the last rows of a document. */
static int64_t pairs_of(int64_t length, int64_t rows) { return rows * (2 * length - rows + 1) / 2; }

/* Most last rows of a document that hold at most `pairs` pairs; a few, whatever they hold, or all of a short one. */
static int64_t rows_within(int64_t length, int64_t pairs) {
    int64_t rows = length < LEAST_ROWS ? length : LEAST_ROWS;
    while (rows < length && pairs_of(length, rows + 1) <= pairs) {
        rows++;
    }
    return rows;
}

bool fm_demo_check(const fm_demo_sequence *s, int64_t pairs, fm_random *random, fm_demo_checked *checked) {
    const fm_piece *pieces = NULL;
    int64_t count = 0, *starts = NULL, *order = NULL;
    bool ok = fm_packed_set_pieces(s->set, s->sequence, &pieces, &count) && lay_out(pieces, count, random, &starts, &order);
    const int64_t end = ok ? starts[count] : 0;
    if (ok && end < s->set->capacity) { /* padding: rows and keys that see nothing */
        ok = check_suffix(s, (suffix){end, end, s->set->capacity}, checked);
    }
    for (int64_t i = 0, left = pairs; ok && i < count && left > 0; i++) {
        const int64_t length = pieces[order[i]].length, start = starts[order[i]];
        const int64_t rows = rows_within(length, pairs / SHARES < left ? pairs / SHARES : left);
        ok = check_suffix(s, (suffix){start, start + length - rows, start + length}, checked);
        left -= pairs_of(length, rows);
    }
    free(starts);
    free(order);
    return ok;
}

/* Sampled rows and keys of a packed sequence against the f64 reference. */
#ifndef FM_CLI_DEMO_CHECK_H
#define FM_CLI_DEMO_CHECK_H

#include "demo_pack.h"
#include "random.h"
#include "trial.h"

typedef struct fm_demo_checked {
    fm_trial_error errors[FM_TRIAL_RESULTS];
    int64_t rows; /* how many were compared */
} fm_demo_checked;

typedef struct fm_demo_sequence {
    const fm_packed_set *set;
    int64_t sequence;
    const fm_mask *mask;
    const fm_trial_inputs *inputs;
    const fm_trial_results *results;
    int32_t threads;
} fm_demo_sequence;

/* Compares documents drawn at random until they hold about `pairs` visible pairs, and the padding; adds to checked.
 *
 * A document sees only itself, so its rows and keys alone give its results. Of a document that would hold too many pairs,
 * the last rows stand for it: their O, LSE and dQ need its keys alone, and dK and dV of the last keys need these rows alone,
 * since in every mask of the demo a key is seen from its own row on.
 *
 *               keys of the document
 *               start        row0  end
 *      row0     k k k k k k k q             q rows x k keys go to the reference; compared are all of O, LSE and dQ,
 *      end      k k k k k k k q q           and dK, dV of keys row0 .. end
 */
bool fm_demo_check(const fm_demo_sequence *sequence, int64_t pairs, fm_random *random, fm_demo_checked *checked);

#endif

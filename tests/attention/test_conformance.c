/* The CPU backend against the f64 oracle: the cases of support/conformance_cases.h. `test_conformance draws FIRST COUNT` runs
 * random draws instead. */
#include "support/conformance_cases.h"

static attention_results run(const attention_case *c, const attention_inputs *in, int way) {
    (void)way;
    return attention_run(c, in, (attention_run_options){.backend = FM_BACKEND_CPU});
}

int main(int argc, char **argv) {
    return conformance_main(argc, argv, &(conformance_subject){.head_dim_step = 1, .most_head_dim = 256, .ways = 1, .run = run});
}

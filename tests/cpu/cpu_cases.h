/* Attention cases on the CPU backend, for every instruction set that this processor has. */
#ifndef FM_TESTS_CPU_CASES_H
#define FM_TESTS_CPU_CASES_H

#include "cpu/dispatch.h"
#include "support/attention_case.h"

#include <math.h>
#include <stdlib.h>

/* Runs check once for each instruction set that this processor has, from the same seed. */
static inline void for_each_isa(void (*check)(test_random *)) {
    const fm_cpu_kernels *present[FM_CPU_ISA_COUNT];
    const int32_t count = fm_cpu_kernels_list(present);
    for (int32_t i = 0; i < count; i++) {
        test_random random = {23};
        setenv("FLASHMASK_CPU_ISA", present[i]->name, 1);
        check(&random);
    }
    unsetenv("FLASHMASK_CPU_ISA");
}

static inline attention_results run_cpu(const attention_case *c, const attention_inputs *in, int32_t threads, bool no_skip) {
    return attention_run(c, in, (attention_run_options){.backend = FM_BACKEND_CPU, .num_threads = threads, .no_skip = no_skip});
}

static inline int64_t pick(test_random *r, const int64_t *from, int64_t count) { return from[random_integer(r, 0, count - 1)]; }

/* A case with everything drawn but the mask. */
static inline attention_case draw_case(test_random *r) {
    static const int64_t lengths[] = {1, 2, 17, 64, 65, 127, 128, 129, 200},
                         dims[] = {1, 8, 31, 40, 64, 72, 80, 96, 128, 192, 256};
    static const int64_t heads[][2] = {{1, 1}, {6, 1}, {6, 2}, {6, 3}, {3, 3}};
    const int64_t *h = heads[random_integer(r, 0, 4)];
    return (attention_case){.batch = random_integer(r, 1, 3),
                            .rows = pick(r, lengths, 9),
                            .columns = pick(r, lengths, 9),
                            .heads = h[0],
                            .heads_kv = h[1],
                            .head_dim = pick(r, dims, 11),
                            .head_dim_v = pick(r, dims, 11),
                            .dtype = (fm_dtype)random_integer(r, FM_F32, FM_BF16),
                            .layout = (test_layout)random_integer(r, 0, LAYOUT_COUNT - 1),
                            .window_left = -1,
                            .window_right = -1,
                            .scale = NAN,
                            .softcap = random_chance(r, 0.3) ? 2.0f : 0.0f,
                            .with_sinks = random_chance(r, 0.3),
                            .with_grad_lse = random_chance(r, 0.3),
                            .f32_results = random_chance(r, 0.3)};
}

#endif

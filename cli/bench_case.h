/* One benched case: a mask, attention with it forward and backward, how long that takes and whether it is right. */
#ifndef FM_CLI_BENCH_CASE_H
#define FM_CLI_BENCH_CASE_H

#include "progress.h"
#include "trial.h"

typedef struct fm_bench_case {
    char name[48];
    int64_t sample; /* of the document lists, or sequence of a pack; -1: the mask has none */
    fm_mask *mask;
    double mask_seconds; /* it took to build */
} fm_bench_case;

typedef struct fm_bench_settings {
    fm_trial_shape shape; /* rows and columns: the mask's */
    int64_t runs;         /* 0: FM_BENCH_RUNS, fewer where they would take longer than FM_BENCH_SECONDS */
    int32_t threads;
    uint64_t seed;
} fm_bench_settings;

enum { FM_BENCH_RUNS = 20, FM_BENCH_LEAST_RUNS = 3, FM_BENCH_SECONDS = 10, FM_BENCH_COMMON_TILE = 128 };

/* Seconds of a call: median, and 10th and 90th percentile by the nearest run. */
typedef struct fm_bench_times {
    int64_t runs;
    double median, p10, p90;
    double flops; /* of one call: 4 D pairs forward, 2.5 times that backward; exactly the visible pairs are counted */
} fm_bench_times;

typedef struct fm_bench_plans {
    fm_plan_stats own, common;          /* the backend's tiles, and 128 x 128 */
    double own_seconds, common_seconds; /* to build: median of three */
} fm_bench_plans;

typedef struct fm_bench_result {
    fm_bench_plans plans;
    fm_bench_times forward, backward; /* with the plan of the backend's tiles, built before */
    fm_trial_error errors[FM_TRIAL_RESULTS];
    int64_t checked_rows, checked_keys;
    bool agrees;
} fm_bench_result;

/* Steps of progress that fm_bench_measure advances by. */
enum { FM_BENCH_STEPS = 10 };

bool fm_bench_measure(const fm_bench_case *c, const fm_bench_settings *settings, fm_progress *progress, fm_bench_result *out);

/* Plans alone, without attention; *plan, if not NULL, is the one of the backend's tiles. */
bool fm_bench_plan(const fm_mask *mask, fm_bench_plans *out, fm_plan **plan);

void fm_bench_case_free(fm_bench_case *c);

#endif

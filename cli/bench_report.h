/* What bench prints: a table on a terminal, JSON lines otherwise. */
#ifndef FM_CLI_BENCH_REPORT_H
#define FM_CLI_BENCH_REPORT_H

#include "bench_case.h"

#include <jansson.h>

typedef enum fm_bench_mode { FM_BENCH_ATTENTION, FM_BENCH_PLAN } fm_bench_mode;

typedef struct fm_bench_report {
    fm_bench_mode mode;
    bool json;
    json_t *about; /* machine, version, commit, threads, ISA: part of every line */
} fm_bench_report;

/* Prints the head of the table. settings are those of all cases. Free with fm_bench_report_close. */
bool fm_bench_report_open(fm_bench_report *report, fm_bench_mode mode, bool json, const fm_bench_settings *settings);

/* One case; settings and all but the plans of result are unused in mode FM_BENCH_PLAN. */
bool fm_bench_report_case(const fm_bench_report *report, const fm_bench_case *c, const fm_bench_settings *settings,
                          const fm_bench_result *result);

void fm_bench_report_close(fm_bench_report *report);

#endif

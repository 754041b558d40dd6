/* Document lengths that the benchmark masks are made of. */
#ifndef FM_BENCH_DOCUMENT_LISTS_H
#define FM_BENCH_DOCUMENT_LISTS_H

#include <stdint.h>

enum { BENCHMARK_LISTS = 3, BENCHMARK_SAMPLES = 5, BENCHMARK_LIST_DOCUMENTS = 15 };

typedef struct benchmark_document {
    int32_t prefix, tokens;
    int32_t hidden;  /* 1: a span of the QK-sparse mask */
    int32_t answers; /* of the share-question mask, 2 .. 6 */
} benchmark_document;

typedef struct benchmark_list {
    int64_t tokens;
    int32_t documents;
    benchmark_document document[BENCHMARK_LIST_DOCUMENTS];
} benchmark_list;

extern const benchmark_list benchmark_lists[BENCHMARK_LISTS][BENCHMARK_SAMPLES]; /* 8192, 32768, 131072 tokens */

#endif

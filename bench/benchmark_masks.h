/* The twelve masks of the published FlashMask benchmark at 4K, 8K, 32K, 128K and 1M tokens, built with the public library.
 * 4K halves the 8K document lists (odd lengths rounded down, the rest to the last document), 1M repeats the 128K lists. */
#ifndef FM_BENCH_BENCHMARK_MASKS_H
#define FM_BENCH_BENCHMARK_MASKS_H

#include <flashmask/masks.h>

#include "document_lists.h"

typedef enum benchmark_mask {
    BENCHMARK_FULL,
    BENCHMARK_CAUSAL,
    BENCHMARK_SLIDING_WINDOW,
    BENCHMARK_CAUSAL_DOCUMENT,
    BENCHMARK_DOCUMENT,
    BENCHMARK_SHARE_QUESTION,
    BENCHMARK_GLOBAL_SLIDING_WINDOW,
    BENCHMARK_CAUSAL_BLOCKWISE,
    BENCHMARK_PREFIX_LM_DOCUMENT,
    BENCHMARK_PREFIX_LM_CAUSAL,
    BENCHMARK_QK_SPARSE,
    BENCHMARK_RANDOM_EVICTION,
    BENCHMARK_MASKS
} benchmark_mask;

const char *benchmark_mask_name(benchmark_mask kind); /* "sliding_window", ... */

/* True if the mask depends on the document list, so that a benchmark takes the mean over the samples. */
bool benchmark_mask_has_samples(benchmark_mask kind);

/* tokens: 4096, 8192, 32768, 131072 or 1048576, others FM_ERROR_ARGUMENT. sample: 0 .. BENCHMARK_SAMPLES - 1. heads: of the
 * random eviction mask, one draw each; other masks have one head. Random parts (answer lengths, evicted keys) are drawn with
 * splitmix64 from the sample number. */
fm_status benchmark_mask_build(benchmark_mask kind, int64_t tokens, int sample, int64_t heads, fm_mask **out);

#endif

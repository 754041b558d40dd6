#include "benchmark_masks.h"

#include <stdlib.h>

enum { MOST_REPEATS = 8, MOST_DOCUMENTS = MOST_REPEATS * BENCHMARK_LIST_DOCUMENTS, MOST_ANSWERS = 6, GLOBAL_TOKENS = 16 };

typedef struct documents {
    int64_t count;
    int64_t prefix[MOST_DOCUMENTS], length[MOST_DOCUMENTS], answers[MOST_DOCUMENTS];
    bool hidden[MOST_DOCUMENTS];
} documents;

static const char *const names[BENCHMARK_MASKS] = {
    [BENCHMARK_FULL] = "full",
    [BENCHMARK_CAUSAL] = "causal",
    [BENCHMARK_SLIDING_WINDOW] = "sliding_window",
    [BENCHMARK_CAUSAL_DOCUMENT] = "causal_document",
    [BENCHMARK_DOCUMENT] = "document",
    [BENCHMARK_SHARE_QUESTION] = "share_question",
    [BENCHMARK_GLOBAL_SLIDING_WINDOW] = "global_sliding_window",
    [BENCHMARK_CAUSAL_BLOCKWISE] = "causal_blockwise",
    [BENCHMARK_PREFIX_LM_DOCUMENT] = "prefix_lm_document",
    [BENCHMARK_PREFIX_LM_CAUSAL] = "prefix_lm_causal",
    [BENCHMARK_QK_SPARSE] = "qk_sparse",
    [BENCHMARK_RANDOM_EVICTION] = "random_eviction",
};

const char *benchmark_mask_name(benchmark_mask kind) { return names[kind]; }

bool benchmark_mask_has_samples(benchmark_mask kind) {
    return kind != BENCHMARK_FULL && kind != BENCHMARK_CAUSAL && kind != BENCHMARK_SLIDING_WINDOW &&
           kind != BENCHMARK_GLOBAL_SLIDING_WINDOW && kind != BENCHMARK_PREFIX_LM_CAUSAL;
}

/* The list of a length, halved or repeated where the length has none of its own; false for other lengths. */
static bool load_documents(int64_t tokens, int sample, documents *out) {
    const int list = tokens <= 8192 ? 0 : tokens <= 32768 ? 1 : 2;
    const benchmark_list *source = &benchmark_lists[list][sample];
    const int64_t repeats = tokens == 1048576 ? MOST_REPEATS : 1, divisor = tokens == 4096 ? 2 : 1;
    if (source->tokens * repeats != tokens * divisor) {
        return false;
    }
    *out = (documents){0};
    int64_t total = 0;
    for (int64_t r = 0; r < repeats; r++) {
        for (int32_t k = 0; k < source->documents; k++) {
            const int64_t n = out->count++;
            out->prefix[n] = source->document[k].prefix / divisor;
            out->length[n] = source->document[k].tokens / divisor;
            out->answers[n] = source->document[k].answers;
            out->hidden[n] = source->document[k].hidden != 0;
            total += out->length[n];
        }
    }
    out->length[out->count - 1] += tokens - total;
    return true;
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A document becomes a question and its answers; tokens beyond one each go to a part drawn uniformly, one at a time. */
static fm_status share_question(const documents *d, int sample, fm_mask **out) {
    fm_question questions[MOST_DOCUMENTS];
    int64_t answers[MOST_DOCUMENTS][MOST_ANSWERS];
    uint64_t state = (uint64_t)sample;
    for (int64_t k = 0; k < d->count; k++) {
        const int64_t count = d->answers[k];
        int64_t parts[MOST_ANSWERS + 1];
        for (int64_t p = 0; p <= count; p++) {
            parts[p] = 1;
        }
        for (int64_t left = d->length[k] - count - 1; left > 0; left--) {
            parts[next_random(&state) % (uint64_t)(count + 1)]++;
        }
        for (int64_t p = 0; p < count; p++) {
            answers[k][p] = parts[p + 1];
        }
        questions[k] = (fm_question){parts[0], count, answers[k]};
    }
    return fm_mask_share_question(d->count, questions, false, 0, out);
}

static fm_status qk_sparse(const documents *d, int64_t tokens, fm_mask **out) {
    int64_t offset[MOST_DOCUMENTS], length[MOST_DOCUMENTS], spans = 0, at = 0;
    for (int64_t k = 0; k < d->count; k++) {
        if (d->hidden[k]) {
            offset[spans] = at;
            length[spans++] = d->length[k];
        }
        at += d->length[k];
    }
    return fm_mask_qk_sparse(tokens, tokens, spans, offset, length, out);
}

fm_status benchmark_mask_build(benchmark_mask kind, int64_t tokens, int sample, int64_t heads, fm_mask **out) {
    documents d;
    if (sample < 0 || sample >= BENCHMARK_SAMPLES || !load_documents(tokens, sample, &d)) {
        return FM_ERROR_ARGUMENT;
    }
    const int64_t window = tokens / 16;
    switch (kind) {
    case BENCHMARK_FULL: return fm_mask_full(tokens, tokens, out);
    case BENCHMARK_CAUSAL: return fm_mask_causal(tokens, tokens, out);
    case BENCHMARK_SLIDING_WINDOW: return fm_mask_sliding_window(tokens, tokens, window - 1, 0, out);
    case BENCHMARK_CAUSAL_DOCUMENT: return fm_mask_documents(d.count, d.length, true, 0, out);
    case BENCHMARK_DOCUMENT: return fm_mask_documents(d.count, d.length, false, 0, out);
    case BENCHMARK_SHARE_QUESTION: return share_question(&d, sample, out);
    case BENCHMARK_GLOBAL_SLIDING_WINDOW: return fm_mask_global_window(tokens, tokens, GLOBAL_TOKENS, window, window, out);
    case BENCHMARK_CAUSAL_BLOCKWISE: return fm_mask_causal_blockwise(d.count, d.length, out);
    case BENCHMARK_PREFIX_LM_DOCUMENT: return fm_mask_prefix_documents(d.count, d.prefix, d.length, 0, out);
    case BENCHMARK_PREFIX_LM_CAUSAL: return fm_mask_prefix_lm(tokens, tokens, tokens / 2, out);
    case BENCHMARK_QK_SPARSE: return qk_sparse(&d, tokens, out);
    case BENCHMARK_RANDOM_EVICTION: return fm_mask_random_eviction(tokens, heads, tokens / 2, (uint64_t)sample, out);
    case BENCHMARK_MASKS: break;
    }
    return FM_ERROR_ARGUMENT;
}

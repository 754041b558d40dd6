/* The twelve benchmark masks of FlashMask (https://arxiv.org/abs/2410.01359) from builders, against its vectors: for each key
 * column the rows [LTS, LTE) and [UTS, UTE) are masked, and with causal those above the diagonal. */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/expect.h"

enum { N = 8192, DOCUMENTS = 6, W = N / 16, GLOBAL = 16 };

/* Sample 4 of the published lists for 8K: prefix and length of each document, and which ones are hidden in QK-sparse. */
static const int64_t prefix[DOCUMENTS] = {310, 218, 156, 340, 138, 416};
static const int64_t length[DOCUMENTS] = {1858, 872, 529, 2059, 1089, 1785};
static const bool flagged[DOCUMENTS] = {false, true, false, false, true, false};

typedef struct vectors {
    bool causal;
    int64_t lts, lte, uts, ute;
} vectors;

static int64_t start_of[N], end_of[N], prefix_end_of[N]; /* of the document of a token */

static int lay_out(void **state) {
    int64_t at = 0;
    (void)state;
    for (int k = 0; k < DOCUMENTS; k++) {
        for (int64_t j = at; j < at + length[k]; j++) {
            start_of[j] = at;
            end_of[j] = at + length[k];
            prefix_end_of[j] = at + prefix[k];
        }
        at += length[k];
    }
    assert_int_equal(at, N);
    return 0;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static vectors full(int64_t j) { return (void)j, (vectors){.lts = N, .lte = N}; }
static vectors causal(int64_t j) { return (void)j, (vectors){.causal = true, .lts = N, .lte = N}; }
static vectors sliding_window(int64_t j) { return (vectors){.causal = true, .lts = least(j + W, N), .lte = N}; }
static vectors causal_document(int64_t j) { return (vectors){.causal = true, .lts = end_of[j], .lte = N}; }
static vectors document(int64_t j) { return (vectors){.lts = end_of[j], .lte = N, .ute = start_of[j]}; }

static vectors share_question(int64_t j) { /* the rest of a document in two halves: the answers */
    const int64_t half = (end_of[j] - prefix_end_of[j]) / 2, second = prefix_end_of[j] + half;
    return (vectors){.causal = true, .lts = j < prefix_end_of[j] || j >= second ? end_of[j] : second, .lte = N};
}

static vectors global_window(int64_t j) {
    const vectors v = {
        .lts = least(j + W + 1, N), .lte = N, .uts = j <= GLOBAL + W ? 0 : GLOBAL, .ute = j <= GLOBAL + W ? 0 : j - W};
    return j < GLOBAL ? full(j) : v;
}

static vectors causal_blockwise(int64_t j) {
    const int64_t last = N - length[DOCUMENTS - 1];
    return j >= last ? causal(j) : (vectors){.causal = true, .lts = end_of[j], .lte = last};
}

static vectors prefix_document(int64_t j) {
    return (vectors){.lts = end_of[j], .lte = N, .ute = j < prefix_end_of[j] ? start_of[j] : j};
}

static vectors prefix_causal(int64_t j) { return (vectors){.lts = N, .lte = N, .ute = j < N / 2 ? 0 : j}; }

static vectors qk_sparse(int64_t j) {
    bool hidden = false;
    for (int64_t k = 0, at = 0; k < DOCUMENTS; at += length[k++]) {
        hidden = hidden || (flagged[k] && at == start_of[j]);
    }
    return (vectors){.causal = true, .lts = j, .lte = hidden ? end_of[j] : j};
}

static void assert_benchmark(fm_mask *mask, vectors (*rule)(int64_t)) {
    for (int64_t j = 0; j < N; j++) {
        const vectors v = rule(j);
        fm_interval visible[FM_MAX_INTERVALS];
        int32_t count, changes = 0;
        succeed(fm_mask_column(mask, 0, 0, j, visible, &count));
        for (int64_t i = 0; i < N; i++) {
            const bool masked = (i >= v.lts && i < v.lte) || (i >= v.uts && i < v.ute) || (v.causal && i < j);
            bool seen = false;
            for (int32_t k = 0; k < count; k++) {
                seen = seen || (i >= visible[k].start && i < visible[k].end);
            }
            changes += seen == masked;
        }
        if (changes > 0) {
            fail_msg("key %lld differs in %d rows", (long long)j, changes);
        }
    }
    fm_mask_free(mask);
}

#define BENCHMARK(rule, function, ...)         \
    do {                                       \
        fm_mask *mask = NULL;                  \
        succeed(function(__VA_ARGS__, &mask)); \
        assert_benchmark(mask, rule);          \
    } while (0)

static void benchmark_masks_are_expressible(void **state) {
    int64_t offset[DOCUMENTS], spans[DOCUMENTS], answers[DOCUMENTS][2], hidden = 0;
    fm_question questions[DOCUMENTS];
    (void)state;
    for (int64_t k = 0, at = 0; k < DOCUMENTS; at += length[k++]) {
        const int64_t rest = length[k] - prefix[k];
        answers[k][0] = rest / 2;
        answers[k][1] = rest - rest / 2;
        questions[k] = (fm_question){prefix[k], 2, answers[k]};
        if (flagged[k]) {
            offset[hidden] = at;
            spans[hidden++] = length[k];
        }
    }
    BENCHMARK(full, fm_mask_full, N, N);
    BENCHMARK(causal, fm_mask_causal, N, N);
    BENCHMARK(sliding_window, fm_mask_sliding_window, N, N, W - 1, 0);
    BENCHMARK(causal_document, fm_mask_documents, DOCUMENTS, length, true, 0);
    BENCHMARK(document, fm_mask_documents, DOCUMENTS, length, false, 0);
    BENCHMARK(share_question, fm_mask_share_question, DOCUMENTS, questions, false, 0);
    BENCHMARK(global_window, fm_mask_global_window, N, N, GLOBAL, W, W);
    BENCHMARK(causal_blockwise, fm_mask_causal_blockwise, DOCUMENTS, length);
    BENCHMARK(prefix_document, fm_mask_prefix_documents, DOCUMENTS, prefix, length, 0);
    BENCHMARK(prefix_causal, fm_mask_prefix_lm, N, N, N / 2);
    BENCHMARK(qk_sparse, fm_mask_qk_sparse, N, N, hidden, offset, spans);
}

/* The twelfth is drawn: LTS = r for the key that row r evicts, N otherwise; each row from N / 2 on evicts one. */
static void random_eviction_has_one_vector(void **state) {
    static uint8_t evicts[N + 1];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_random_eviction(N, 1, N / 2, 2024, &mask));
    assert_int_equal(fm_mask_interval_count(mask), 1);
    for (int64_t j = 0; j < N; j++) {
        fm_interval v[FM_MAX_INTERVALS];
        int32_t count;
        succeed(fm_mask_column(mask, 0, 0, j, v, &count));
        assert_int_equal(count, 1);
        assert_int_equal(v[0].start, j);
        assert_true(v[0].end > j && (v[0].end == N || evicts[v[0].end] == 0));
        evicts[v[0].end] = 1;
    }
    for (int64_t row = 0; row < N; row++) {
        assert_int_equal(evicts[row], row >= N / 2);
    }
    fm_mask_free(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(benchmark_masks_are_expressible),
        cmocka_unit_test(random_eviction_has_one_vector),
    };
    return cmocka_run_group_tests(tests, lay_out, NULL);
}

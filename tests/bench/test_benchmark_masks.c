/* The benchmark masks against the vectors of the published benchmark, and their block sparsity against the published one. */
#include "bench/benchmark_masks.h"

#include <math.h>
#include <stdlib.h>

#include "support/cmocka_all.h"

enum { BLOCK = 128, LENGTHS = 2 };

/* The vectors of one mask as the published benchmark writes them; unused ones are NULL. */
typedef struct vectors {
    int64_t tokens;
    bool causal;
    int32_t count; /* vectors a column: 1, 2 or 4 */
    int32_t *lts, *lte, *uts, *ute;
} vectors;

static const double published[BENCHMARK_MASKS][LENGTHS] = {
    [BENCHMARK_SLIDING_WINDOW] = {0.9243, 0.9357},
    [BENCHMARK_CAUSAL_DOCUMENT] = {0.8625, 0.9478},
    [BENCHMARK_DOCUMENT] = {0.7405, 0.8994},
    [BENCHMARK_SHARE_QUESTION] = {0.9078, 0.9673},
    [BENCHMARK_GLOBAL_SLIDING_WINDOW] = {0.8354, 0.8680},
    [BENCHMARK_CAUSAL_BLOCKWISE] = {0.6732, 0.8730},
    [BENCHMARK_PREFIX_LM_DOCUMENT] = {0.8562, 0.9456},
    [BENCHMARK_PREFIX_LM_CAUSAL] = {0.3711, 0.3740},
    [BENCHMARK_QK_SPARSE] = {0.5200, 0.5155},
};

static int32_t *column_values(int64_t tokens, int32_t value) {
    int32_t *v = malloc((size_t)tokens * sizeof *v);
    assert_non_null(v);
    for (int64_t j = 0; j < tokens; j++) {
        v[j] = value;
    }
    return v;
}

static vectors open_vectors(int64_t tokens, bool causal, int32_t count) {
    const int32_t n = (int32_t)tokens;
    return (vectors){.tokens = tokens,
                     .causal = causal,
                     .count = count,
                     .lts = column_values(tokens, n),
                     .lte = causal && count == 2 ? column_values(tokens, n)
                            : count == 4         ? column_values(tokens, n)
                                                 : NULL,
                     .uts = count == 4 ? column_values(tokens, 0) : NULL,
                     .ute = !causal ? column_values(tokens, 0) : NULL};
}

static void close_vectors(vectors *v) {
    free(v->lts);
    free(v->lte);
    free(v->uts);
    free(v->ute);
}

static void write_windows(vectors *v, benchmark_mask kind) {
    const int32_t n = (int32_t)v->tokens, w = n / 16, g = 16;
    for (int32_t j = 0; j < n; j++) {
        if (kind == BENCHMARK_SLIDING_WINDOW) {
            v->lts[j] = j + w < n ? j + w : n;
        } else if (kind == BENCHMARK_PREFIX_LM_CAUSAL) {
            v->ute[j] = j < n / 2 ? 0 : j;
        } else if (j >= g) {
            v->lts[j] = j + w + 1 < n ? j + w + 1 : n;
            v->uts[j] = j <= g + w ? 0 : g;
            v->ute[j] = j <= g + w ? 0 : j - w;
        }
    }
}

static void write_documents(vectors *v, benchmark_mask kind, int sample) {
    const benchmark_list *list = &benchmark_lists[v->tokens == 8192 ? 0 : 1][sample];
    int32_t start = 0;
    for (int32_t k = 0; k < list->documents; k++) {
        const benchmark_document *d = &list->document[k];
        const int32_t end = start + d->tokens, last = list->document[list->documents - 1].tokens;
        for (int32_t j = start; j < end; j++) {
            switch (kind) {
            case BENCHMARK_CAUSAL_DOCUMENT: v->lts[j] = end; break;
            case BENCHMARK_DOCUMENT:
                v->lts[j] = end;
                v->ute[j] = start;
                break;
            case BENCHMARK_PREFIX_LM_DOCUMENT:
                v->lts[j] = end;
                v->ute[j] = j - start < d->prefix ? start : j;
                break;
            case BENCHMARK_CAUSAL_BLOCKWISE:
                v->lts[j] = k + 1 < list->documents ? end : (int32_t)v->tokens;
                v->lte[j] = k + 1 < list->documents ? (int32_t)v->tokens - last : (int32_t)v->tokens;
                break;
            default:                             /* QK-sparse */
                v->lts[j] = d->hidden ? j : end; /* [end, end) is empty */
                if (v->lte != NULL) {
                    v->lte[j] = end;
                }
                break;
            }
        }
        start = end;
    }
}

/* Share question: its answer lengths are drawn, so the vectors are read back from the mask. */
static void read_share_question(vectors *v, const fm_mask *mask) {
    assert_int_equal(fm_mask_to_startend_row_indices(mask, 1, true, v->lts, v->tokens), FM_OK);
}

static vectors make_vectors(benchmark_mask kind, int64_t tokens, int sample, const fm_mask *mask) {
    const bool causal = kind == BENCHMARK_SLIDING_WINDOW || kind == BENCHMARK_CAUSAL_DOCUMENT ||
                        kind == BENCHMARK_SHARE_QUESTION || kind == BENCHMARK_CAUSAL_BLOCKWISE || kind == BENCHMARK_QK_SPARSE;
    const int32_t count = kind == BENCHMARK_GLOBAL_SLIDING_WINDOW                                        ? 4
                          : kind == BENCHMARK_CAUSAL_BLOCKWISE || kind == BENCHMARK_QK_SPARSE || !causal ? 2
                                                                                                         : 1;
    vectors v = open_vectors(tokens, causal, count);
    if (kind == BENCHMARK_SHARE_QUESTION) {
        read_share_question(&v, mask);
    } else if (benchmark_mask_has_samples(kind)) {
        write_documents(&v, kind, sample);
    } else {
        write_windows(&v, kind);
    }
    return v;
}

static void extremes(const int32_t *v, int64_t first, int64_t absent, int64_t *least, int64_t *most) {
    *least = *most = v != NULL ? v[first] : absent;
    for (int64_t j = first; v != NULL && j < first + BLOCK; j++) {
        *least = v[j] < *least ? v[j] : *least;
        *most = v[j] > *most ? v[j] : *most;
    }
}

/* The published rule: a block is skipped if it lies above the diagonal of a causal mask or one masked interval, judged by the
 * extremes of its bounds over the block's columns, covers all its rows. */
static double minmax_sparsity(const vectors *v) {
    const int64_t blocks = v->tokens / BLOCK;
    int64_t skipped = 0;
    for (int64_t c = 0; c < blocks; c++) {
        int64_t lts_least, lts_most, lte_least, lte_most, uts_least, uts_most, ute_least, ute_most;
        extremes(v->lts, c * BLOCK, 0, &lts_least, &lts_most);
        extremes(v->lte, c * BLOCK, v->tokens, &lte_least, &lte_most);
        extremes(v->uts, c * BLOCK, 0, &uts_least, &uts_most);
        extremes(v->ute, c * BLOCK, 0, &ute_least, &ute_most);
        for (int64_t r = 0; r < blocks; r++) {
            const int64_t row0 = r * BLOCK, row1 = row0 + BLOCK;
            skipped += (v->causal && c > r) || (row0 >= lts_most && row1 <= lte_least) || (row0 >= uts_most && row1 <= ute_least);
        }
    }
    return (double)skipped / (double)(blocks * blocks);
}

static void assert_same_mask(const vectors *v, const fm_mask *mask) {
    const fm_mask_shape shape = {1, 1, v->tokens, v->tokens};
    int32_t *packed = malloc((size_t)(v->tokens * v->count) * sizeof *packed);
    assert_non_null(packed);
    for (int64_t j = 0; j < v->tokens; j++) {
        int32_t *column = packed + j * v->count;
        column[0] = v->lts[j];
        if (v->count == 2) {
            column[1] = v->causal ? v->lte[j] : v->ute[j];
        } else if (v->count == 4) {
            column[1] = v->lte[j];
            column[2] = v->uts[j];
            column[3] = v->ute[j];
        }
    }
    fm_mask *same = NULL;
    assert_int_equal(fm_mask_from_startend_row_indices(shape, v->count, v->causal, packed, &same), FM_OK);
    assert_true(fm_mask_equal(same, mask));
    fm_mask_free(same);
    free(packed);
}

static double exact_sparsity(const fm_mask *mask) {
    fm_plan *plan = NULL;
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    fm_plan_stats stats = FM_PLAN_STATS_INIT;
    options.block_m = options.block_n = BLOCK;
    assert_int_equal(fm_plan_create(mask, &options, &plan), FM_OK);
    assert_int_equal(fm_plan_get_stats(plan, &stats), FM_OK);
    fm_plan_free(plan);
    return (double)stats.skipped / (double)stats.tiles;
}

static void sparsity_is_the_published_one_or_better(void **state) {
    (void)state;
    for (int length = 0; length < LENGTHS; length++) {
        const int64_t tokens = length == 0 ? 8192 : 32768;
        for (int kind = 0; kind < BENCHMARK_MASKS; kind++) {
            if (published[kind][length] == 0.0) {
                continue; /* full and causal by formula, random eviction by its own draw */
            }
            double rule = 0.0, exact = 0.0;
            for (int sample = 0; sample < BENCHMARK_SAMPLES; sample++) {
                fm_mask *mask = NULL;
                assert_int_equal(benchmark_mask_build((benchmark_mask)kind, tokens, sample, 1, &mask), FM_OK);
                vectors v = make_vectors((benchmark_mask)kind, tokens, sample, mask);
                assert_same_mask(&v, mask);
                const double one_rule = minmax_sparsity(&v), one_exact = exact_sparsity(mask);
                assert_true(one_exact >= one_rule);
                rule += one_rule / BENCHMARK_SAMPLES;
                exact += one_exact / BENCHMARK_SAMPLES;
                close_vectors(&v);
                fm_mask_free(mask);
            }
            print_message("%7lld %-22s published %.4f, min/max rule %.4f, exact %.4f\n", (long long)tokens,
                          benchmark_mask_name((benchmark_mask)kind), published[kind][length], rule, exact);
            const double tolerance = kind == BENCHMARK_SHARE_QUESTION ? 0.002 : 0.000051;
            assert_true(fabs(rule - published[kind][length]) <= tolerance);
        }
    }
}

static void every_mask_builds_at_every_length(void **state) {
    (void)state;
    static const int64_t lengths[] = {4096, 8192, 32768, 131072, 1048576};
    for (int i = 0; i < 5; i++) {
        for (int kind = 0; kind < BENCHMARK_MASKS; kind++) {
            fm_mask *mask = NULL;
            assert_int_equal(benchmark_mask_build((benchmark_mask)kind, lengths[i], 4, 1, &mask), FM_OK);
            const fm_mask_shape shape = fm_mask_get_shape(mask);
            assert_int_equal(shape.rows, lengths[i]);
            assert_int_equal(shape.columns, lengths[i]);
            assert_false(fm_mask_has_fallback(mask));
            fm_mask_free(mask);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sparsity_is_the_published_one_or_better),
                                       cmocka_unit_test(every_mask_builds_at_every_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* QK-sparse, hash-sparse, random eviction and random pairs, against the words of their contracts. */
#include <flashmask/masks.h>

#include <stdio.h>

#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

enum { DRAWS = 400, LONGEST = 70, MOST_SPANS = 6 };

typedef struct parameters {
    int64_t Sq, Sk, spans, offset[MOST_SPANS], length[MOST_SPANS];
    int32_t bucket[300];
} parameters;

static bool qk_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    const int64_t place = i + p->Sk - p->Sq;
    (void)b, (void)h;
    for (int64_t k = 0; k < p->spans; k++) {
        const int64_t end = p->offset[k] + p->length[k];
        if (j >= p->offset[k] && j < end && place < end) {
            return false;
        }
    }
    return j <= place;
}

static void qk_sparse_follows_its_contract(void **state) {
    test_random r = {21};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        parameters p = {.Sq = random_integer(&r, 1, LONGEST), .Sk = random_integer(&r, 1, LONGEST)};
        fm_mask *mask = NULL;
        for (int64_t at = 0; p.spans < MOST_SPANS && random_chance(&r, 0.7); p.spans++) { /* some empty, some that touch */
            p.offset[p.spans] = random_chance(&r, 0.3) ? at : random_integer(&r, at, p.Sk);
            p.length[p.spans] = random_integer(&r, 0, (p.Sk - p.offset[p.spans] + 1) / 2);
            at = p.offset[p.spans] + p.length[p.spans];
        }
        succeed(fm_mask_qk_sparse(p.Sq, p.Sk, p.spans, p.offset, p.length, &mask));
        assert_true(fm_mask_interval_count(mask) <= 1);
        assert_mask_follows(mask, qk_rule, &p);
    }
}

static bool hash_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const parameters *p = v;
    (void)b, (void)h;
    return j <= i && p->bucket[i] == p->bucket[j];
}

/* Few and many buckets, long and short runs, the extreme bucket values: intervals and bitmaps. */
static void hash_sparse_follows_its_contract(void **state) {
    test_random r = {22};
    int bitmaps = 0;
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        parameters p = {0};
        fm_mask *mask = NULL;
        const int64_t length = random_integer(&r, 0, k % 20 == 0 ? 300 : LONGEST), buckets = random_integer(&r, 1, 8);
        const double stay = random_chance(&r, 0.5) ? 0.9 : 0.3;
        for (int64_t i = 0; i < length; i++) {
            const int64_t drawn = random_integer(&r, 0, buckets - 1);
            p.bucket[i] = i > 0 && random_chance(&r, stay) ? p.bucket[i - 1]
                          : drawn == 0                     ? INT32_MIN
                          : drawn == 1                     ? INT32_MAX
                                                           : (int32_t)(drawn - 4);
        }
        succeed(fm_mask_hash_sparse(length, p.bucket, NULL, &mask));
        bitmaps += fm_mask_has_fallback(mask);
        assert_mask_follows(mask, hash_rule, &p);
    }
    assert_in_range(bitmaps, DRAWS / 10, DRAWS * 9 / 10);
}

/* Row at which each key of one head is evicted; `length` for never. Every key is seen from its own row on until then. */
static void read_evictions(const fm_mask *mask, int64_t head, int64_t *evicted) {
    for (int64_t j = 0; j < fm_mask_get_shape(mask).columns; j++) {
        fm_interval v[FM_MAX_INTERVALS];
        int32_t count;
        succeed(fm_mask_column(mask, 0, head, j, v, &count));
        assert_int_equal(count, 1);
        assert_int_equal(v[0].start, j);
        evicted[j] = v[0].end;
    }
}

static void every_row_from_start_on_evicts_one_earlier_key(void **state) {
    test_random r = {23};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const int64_t length = random_integer(&r, 1, LONGEST), heads = random_integer(&r, 1, 3);
        const int64_t start = random_integer(&r, 0, length + 1);
        int64_t evicted[LONGEST];
        fm_mask *mask = NULL;
        succeed(fm_mask_random_eviction(length, heads, start, random_bits(&r), &mask));
        for (int64_t h = 0; h < heads; h++) {
            int evictions[LONGEST + 1] = {0};
            read_evictions(mask, h, evicted);
            for (int64_t j = 0; j < length; j++) {
                assert_in_range(evicted[j], j + 1, length);
                evictions[evicted[j]]++;
            }
            for (int64_t row = 0; row < length; row++) {
                assert_int_equal(evictions[row], row >= start && row > 0);
            }
        }
        fm_mask_free(mask);
    }
}

/* Draws depend on the seed alone, heads differ, and more heads do not change the first. */
static void eviction_depends_on_seed_and_head(void **state) {
    fm_mask *a = NULL, *b = NULL, *other = NULL, *more = NULL;
    int64_t first[64], second[64], of_more[64];
    (void)state;
    succeed(fm_mask_random_eviction(64, 2, 32, 7, &a));
    succeed(fm_mask_random_eviction(64, 2, 32, 7, &b));
    succeed(fm_mask_random_eviction(64, 2, 32, 8, &other));
    succeed(fm_mask_random_eviction(64, 5, 32, 7, &more));
    assert_true(fm_mask_equal(a, b));
    assert_false(fm_mask_equal(a, other));
    read_evictions(a, 0, first);
    read_evictions(a, 1, second);
    read_evictions(more, 1, of_more);
    assert_memory_not_equal(first, second, sizeof first);
    assert_memory_equal(second, of_more, sizeof second);
    fm_mask_free(a);
    fm_mask_free(b);
    fm_mask_free(other);
    fm_mask_free(more);
}

/* One row evicts one of 8 keys: over 8,000 seeds each is near 1,000; 5 standard deviations are 148. */
static void eviction_is_uniform(void **state) {
    int hits[9] = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 8000; seed++) {
        fm_mask *mask = NULL;
        int64_t evicted[9] = {0};
        succeed(fm_mask_random_eviction(9, 1, 8, seed, &mask));
        read_evictions(mask, 0, evicted);
        for (int j = 0; j < 9; j++) {
            hits[j] += evicted[j] == 8;
        }
        fm_mask_free(mask);
    }
    for (int j = 0; j < 8; j++) {
        assert_in_range(hits[j], 1000 - 148, 1000 + 148);
    }
}

static void random_sparse_has_its_density(void **state) {
    const double densities[] = {0, 0.01, 0.1, 0.5, 0.99, 1};
    const int64_t rows = 300, columns = 517;
    (void)state;
    for (int k = 0; k < 6; k++) {
        fm_mask *mask = NULL, *again = NULL, *other = NULL;
        static uint8_t visible[300 * 517];
        int64_t pairs = 0;
        succeed(fm_mask_random_sparse(rows, columns, densities[k], 5, NULL, &mask));
        succeed(fm_mask_random_sparse(rows, columns, densities[k], 5, NULL, &again));
        succeed(fm_mask_random_sparse(rows, columns, densities[k], 6, NULL, &other));
        dense_of_mask(mask, visible);
        for (int64_t i = 0; i < rows * columns; i++) {
            pairs += visible[i];
        }
        const double n = (double)(rows * columns), deviation = (double)pairs - densities[k] * n;
        assert_true(deviation * deviation <= 25 * n * densities[k] * (1 - densities[k]));
        assert_true(fm_mask_equal(mask, again));
        assert_int_equal(fm_mask_equal(mask, other), densities[k] == 0 || densities[k] == 1);
        assert_int_equal(fm_mask_has_fallback(mask), densities[k] > 0 && densities[k] < 1);
        fm_mask_free(mask);
        fm_mask_free(again);
        fm_mask_free(other);
    }
}

/* 0 1 0 1 ...: 2^28 pairs in 2,048 runs a key; equal blocks are one, so 16,384 tokens take their index and a few blocks. */
static void regular_buckets_share_their_blocks(void **state) {
    static int32_t bucket[16384];
    fm_mask *mask = NULL;
    (void)state;
    for (int i = 0; i < 16384; i++) {
        bucket[i] = i % 2;
    }
    succeed(fm_mask_hash_sparse(16384, bucket, NULL, &mask));
    assert_int_equal(fm_mask_fallback_bytes(mask), (128 + 128 * 128) * 4 + 2 * 2048); /* on the diagonal and below it */
    int64_t pairs;
    succeed(fm_mask_visible_pairs(mask, &pairs));
    assert_int_equal(pairs, 2 * (int64_t)8192 * 8193 / 2);
    fm_mask_free(mask);
}

/* The refusal names the very bytes that are enough. */
static void fallback_limit_is_exact(void **state) {
    fm_mask_options options = FM_MASK_OPTIONS_INIT;
    fm_mask *mask = NULL, *same = NULL, *refused = NULL;
    char words[64];
    (void)state;
    succeed(fm_mask_random_sparse(1000, 900, 0.3, 1, NULL, &mask));
    options.fallback_limit = fm_mask_fallback_bytes(mask);
    succeed(fm_mask_random_sparse(1000, 900, 0.3, 1, &options, &same));
    assert_true(fm_mask_equal(mask, same));
    snprintf(words, sizeof words, "needs %lld bytes", (long long)options.fallback_limit);
    options.fallback_limit--;
    refuse(fm_mask_random_sparse(1000, 900, 0.3, 1, &options, &refused), FM_ERROR_LIMIT, words);
    options.fallback_limit = 0; /* over from the first stripe on: the rest is counted only */
    refuse(fm_mask_random_sparse(1000, 900, 0.3, 1, &options, &refused), FM_ERROR_LIMIT, words);
    assert_null(refused);
    fm_mask_free(mask);
    fm_mask_free(same);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qk_sparse_follows_its_contract),
        cmocka_unit_test(hash_sparse_follows_its_contract),
        cmocka_unit_test(every_row_from_start_on_evicts_one_earlier_key),
        cmocka_unit_test(eviction_depends_on_seed_and_head),
        cmocka_unit_test(eviction_is_uniform),
        cmocka_unit_test(random_sparse_has_its_density),
        cmocka_unit_test(regular_buckets_share_their_blocks),
        cmocka_unit_test(fallback_limit_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

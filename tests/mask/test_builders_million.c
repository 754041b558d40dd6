/* Every builder at N = 1,048,576: time, and bytes per key. The bounds on time are loose (a busy machine, a debug build); a
 * quadratic builder would miss them by orders of magnitude. */
#include <flashmask/masks.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"

enum { N = 1 << 20, SECONDS = 20 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Checks what was built since `start` and frees it. intervals: M that the mask needs. */
static void check_million(const char *name, double start, fm_mask *mask, int32_t intervals, int64_t pairs) {
    const double seconds = now() - start;
    const fm_mask_shape s = fm_mask_get_shape(mask);
    int64_t counted = -1;
    print_message("%-32s %6.3f s  %lld bytes\n", name, seconds, (long long)fm_mask_bytes(mask));
    assert_int_equal(s.rows, N);
    assert_int_equal(s.columns, N);
    assert_int_equal(fm_mask_interval_count(mask), intervals);
    assert_int_equal(fm_mask_bytes(mask) - fm_mask_fallback_bytes(mask), s.batch * s.heads * N * 8 * intervals);
    succeed(fm_mask_visible_pairs(mask, &counted));
    if (pairs >= 0) {
        assert_int_equal(counted, pairs);
    }
    assert_true(seconds < SECONDS);
    fm_mask_free(mask);
}

#define MILLION(intervals, pairs, function, ...)                       \
    do {                                                               \
        fm_mask *mask_ = NULL;                                         \
        const double start_ = now();                                   \
        succeed(function(__VA_ARGS__, &mask_));                        \
        assert_false(fm_mask_has_fallback(mask_));                     \
        check_million(#function, start_, mask_, (intervals), (pairs)); \
    } while (0)

static int64_t triangle(int64_t n) { return n * (n + 1) / 2; }

static int64_t lengths[4096], halves[4096], offsets[4096];

static int fill_lengths(void **state) {
    (void)state;
    for (int k = 0; k < 4096; k++) {
        lengths[k] = N / 4096;
        halves[k] = lengths[k] / 2;
        offsets[k] = k * lengths[k];
    }
    return 0;
}

static void windows_of_a_million_are_linear(void **state) {
    const int64_t w = 4096, left[] = {w - 1, -1}, right[] = {0, 0}, pads[] = {1000};
    (void)state;
    MILLION(1, (int64_t)N * N, fm_mask_full, N, N);
    MILLION(1, triangle(N), fm_mask_causal, N, N);
    MILLION(1, triangle(N) - triangle(N - w), fm_mask_sliding_window, N, N, w - 1, 0);
    MILLION(1, -1, fm_mask_sink_window, N, N, 4, w);
    MILLION(2, -1, fm_mask_global_window, N, N, 16, w, w);
    MILLION(1, triangle(N) + triangle(N / 2 - 1), fm_mask_prefix_lm, N, N, N / 2);
    MILLION(1, 2 * triangle(N) - triangle(N - w), fm_mask_head_windows, N, N, 2, left, right);
    MILLION(1, (int64_t)(N - 2000) * (N - 2000), fm_mask_padding, 1, N, N, pads, pads);
}

/* 4,096 documents. https://github.com/pytorch/pytorch/issues/134756: building the mask took N x N */
static void documents_of_a_million_are_linear(void **state) {
    const int64_t length = N / 4096;
    (void)state;
    MILLION(1, 4096 * triangle(length), fm_mask_documents, 4096, lengths, true, 0);
    MILLION(1, 4096 * length * length, fm_mask_documents, 4096, lengths, false, 0);
    MILLION(1, -1, fm_mask_documents_sink_window, 4096, lengths, 4, 64, 0);
    MILLION(1, 4096 * (triangle(length) + triangle(length / 2 - 1)), fm_mask_prefix_documents, 4096, halves, lengths, 0);
    MILLION(2, -1, fm_mask_causal_blockwise, 4096, lengths);
    MILLION(1, 4096 * (triangle(length) + triangle(length / 2 - 1)), fm_mask_image_spans, 4096, lengths, 4096, offsets, halves);
    MILLION(1, triangle(N) - 4096 * triangle(length / 2), fm_mask_qk_sparse, N, N, 4096, offsets, halves);
    MILLION(1, -1, fm_mask_random_eviction, N, 1, N / 2, 1);
}

static void questions_and_trees_of_a_million_are_linear(void **state) {
    int64_t *parent = malloc(N * sizeof *parent), *ones = malloc(N * sizeof *ones);
    fm_question *questions = malloc(4096 * sizeof *questions);
    const int64_t answers[] = {64, 64};
    (void)state;
    for (int64_t k = 0; k < 4096; k++) {
        questions[k] = (fm_question){halves[k], 2, answers};
    }
    for (int64_t k = 0; k < N; k++) { /* one chain, the deepest tree there is, from its end up */
        parent[k] = k < N - 1 ? k + 1 : -1;
        ones[k] = 1;
    }
    MILLION(1, 4096 * (triangle(128) + 128 * 128 + 2 * triangle(64)), fm_mask_share_question, 4096, questions, false, 0);
    MILLION(1, triangle(N), fm_mask_prefix_tree, N, parent, ones, NULL);
    for (int64_t k = 0; k < N; k++) { /* a binary heap's tree */
        parent[k] = k == 0 ? -1 : (k - 1) / 2;
    }
    MILLION(1, -1, fm_mask_prefix_tree, N, parent, ones, NULL);
    free(parent);
    free(ones);
    free(questions);
}

static void sorted_buckets_of_a_million_are_near_linear(void **state) {
    int32_t *bucket = malloc(N * sizeof *bucket);
    fm_mask *mask = NULL;
    (void)state;
    for (int i = 0; i < N; i++) { /* 4 runs of 256 tokens each */
        bucket[i] = i / 256 % 1024;
    }
    MILLION(4, 1024 * triangle(1024), fm_mask_hash_sparse, N, bucket, NULL);
    for (int i = 0; i < N; i++) { /* 8 runs: half of the stripes are bitmaps */
        bucket[i] = i / 256 % 512;
    }
    const double start = now();
    succeed(fm_mask_hash_sparse(N, bucket, NULL, &mask));
    assert_true(fm_mask_has_fallback(mask));
    check_million("fm_mask_hash_sparse, bitmaps", start, mask, 4, 512 * triangle(2048));
    free(bucket);
}

/* Random buckets would take 70 GB: the refusal comes when 4 GiB are counted, of 8,192 stripes after some 300. */
static void random_buckets_of_a_million_are_refused_early(void **state) {
    int32_t *bucket = malloc(N * sizeof *bucket);
    fm_mask_options options = FM_MASK_OPTIONS_INIT;
    fm_mask *mask = NULL;
    test_random r = {1};
    (void)state;
    for (int i = 0; i < N; i++) {
        bucket[i] = (int32_t)random_integer(&r, 0, 1);
    }
    options.fallback_limit = 1000;
    const clock_t start = clock();
    refuse(fm_mask_hash_sparse(N, bucket, &options, &mask), FM_ERROR_LIMIT, "fallback: needs at least 42949");
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%-32s %6.3f s  %s\n", "fm_mask_hash_sparse, refused", seconds, fm_error_message());
    assert_non_null(strstr(fm_error_message(), " bytes, the limit is 1000"));
    assert_null(mask);
    assert_true(seconds < SECONDS);
    free(bucket);
}

static void blocks_of_a_million_cost_what_is_visible(void **state) {
    const int64_t blocks = N / 1024;
    uint8_t *keep = calloc((size_t)(blocks * blocks), 1);
    fm_mask *mask = NULL;
    (void)state;
    for (int64_t i = 0; i < blocks * blocks; i++) { /* 8 blocks a column, in stripes of rows */
        keep[i] = i / blocks % 128 == 0;
    }
    double start = now();
    succeed(fm_mask_blocks((fm_mask_shape){1, 1, N, N}, 1024, keep, NULL, &mask));
    check_million("fm_mask_blocks", start, mask, 0, (int64_t)N * 8 * 1024);
    start = now();
    succeed(fm_mask_bigbird(N, N, 128, 2, 1, 3, 1, NULL, &mask));
    check_million("fm_mask_bigbird", start, mask, 4, -1);
    free(keep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_a_million_are_linear),
        cmocka_unit_test(documents_of_a_million_are_linear),
        cmocka_unit_test(questions_and_trees_of_a_million_are_linear),
        cmocka_unit_test(sorted_buckets_of_a_million_are_near_linear),
        cmocka_unit_test(random_buckets_of_a_million_are_refused_early),
        cmocka_unit_test(blocks_of_a_million_cost_what_is_visible),
    };
    return cmocka_run_group_tests(tests, fill_lengths, NULL);
}

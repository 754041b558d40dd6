/* What builders refuse, by which name, and what they accept at the edges. */
#include <flashmask/masks.h>

#include <math.h>

#include "support/cmocka_all.h"
#include "support/expect.h"

#define TOO_LONG ((int64_t)INT32_MAX + 1)

static fm_mask *const UNTOUCHED = (fm_mask *)16;

/* Refused as an argument whose message contains words; out is left alone. */
#define REFUSED(words, call)                        \
    do {                                            \
        fm_mask *mask = UNTOUCHED;                  \
        refuse((call), FM_ERROR_ARGUMENT, (words)); \
        assert_ptr_equal(mask, UNTOUCHED);          \
    } while (0)

/* Accepted; a mask of size x size. */
#define ACCEPTED(size, call)                                       \
    do {                                                           \
        fm_mask *mask = NULL;                                      \
        succeed(call);                                             \
        assert_int_equal(fm_mask_get_shape(mask).rows, (size));    \
        assert_int_equal(fm_mask_get_shape(mask).columns, (size)); \
        fm_mask_free(mask);                                        \
    } while (0)

static const int64_t one[] = {1}, two_four[] = {2, 4}, minus[] = {2, -1}, huge[] = {INT32_MAX, 1}, wide[] = {TOO_LONG},
                     far[] = {INT64_MAX, INT64_MAX};

static void extents_out_of_range_are_refused(void **state) {
    const int64_t bad[] = {-1, INT64_MIN, TOO_LONG, INT64_MAX};
    (void)state;
    for (int k = 0; k < 4; k++) {
        REFUSED("Sq: is ", fm_mask_full(bad[k], 4, &mask));
        REFUSED("Sk: is ", fm_mask_full(4, bad[k], &mask));
        REFUSED("Sq: is ", fm_mask_causal(bad[k], 4, &mask));
        REFUSED("Sk: is ", fm_mask_sliding_window(4, bad[k], 1, 1, &mask));
        REFUSED("Sq: is ", fm_mask_sink_window(bad[k], 4, 1, 1, &mask));
        REFUSED("Sk: is ", fm_mask_global_window(4, bad[k], 1, 1, 1, &mask));
        REFUSED("Sk: is ", fm_mask_prefix_lm(4, bad[k], 1, &mask));
        REFUSED("Sq: is ", fm_mask_prefix_lm(bad[k], 4, 1, &mask));
        REFUSED("Sq: is ", fm_mask_qk_sparse(bad[k], 4, 0, NULL, NULL, &mask));
        REFUSED("Sk: is ", fm_mask_qk_sparse(4, bad[k], 0, NULL, NULL, &mask));
        REFUSED("Sq: is ", fm_mask_padding(1, bad[k], 4, one, one, &mask));
        REFUSED("Sk: is ", fm_mask_padding(1, 4, bad[k], one, one, &mask));
        REFUSED("Sq: is ", fm_mask_bigbird(bad[k], 4, 16, 1, 1, 1, 1, NULL, &mask));
        REFUSED("Sk: is ", fm_mask_bigbird(4, bad[k], 16, 1, 1, 1, 1, NULL, &mask));
        REFUSED("Sq: is ", fm_mask_random_sparse(bad[k], 4, 0.5, 1, NULL, &mask));
        REFUSED("Sk: is ", fm_mask_random_sparse(4, bad[k], 0.5, 1, NULL, &mask));
        REFUSED("Sk: is ", fm_mask_head_windows(4, bad[k], 1, one, one, &mask));
        REFUSED("length: is ", fm_mask_hash_sparse(bad[k], (const int32_t[]){1}, NULL, &mask));
        REFUSED("length: is ", fm_mask_random_eviction(bad[k], 1, 1, 1, &mask));
        REFUSED("shape.rows: is ", fm_mask_blocks((fm_mask_shape){1, 1, bad[k], 4}, 16, (const uint8_t *)"", NULL, &mask));
        REFUSED("heads: is ", fm_mask_head_windows(4, 4, bad[k], one, one, &mask));
        REFUSED("heads: is ", fm_mask_random_eviction(4, bad[k], 1, 1, &mask));
        REFUSED("batch: is ", fm_mask_padding(bad[k], 4, 4, one, one, &mask));
    }
    REFUSED("heads: is 0", fm_mask_head_windows(4, 4, 0, one, one, &mask));
    REFUSED("heads: is 0", fm_mask_random_eviction(4, 0, 1, 1, &mask));
    REFUSED("batch: is 0", fm_mask_padding(0, 4, 4, one, one, &mask));
}

static void reaches_below_zero_are_refused(void **state) {
    (void)state;
    REFUSED("left: is -2", fm_mask_sliding_window(4, 4, -2, 1, &mask));
    REFUSED("right: is -2", fm_mask_sliding_window(4, 4, 1, -2, &mask));
    REFUSED("left[0]: is -2", fm_mask_head_windows(4, 4, 1, (const int64_t[]){-2}, one, &mask));
    REFUSED("right[1]: is -9", fm_mask_head_windows(4, 4, 2, two_four, (const int64_t[]){-1, -9}, &mask));
    REFUSED("left: is -2", fm_mask_global_window(4, 4, 1, -2, 1, &mask));
    REFUSED("right: is -2", fm_mask_global_window(4, 4, 1, 1, -2, &mask));
    REFUSED("global: is -1", fm_mask_global_window(4, 4, -1, 1, 1, &mask));
    REFUSED("sink: is -1", fm_mask_sink_window(4, 4, -1, 1, &mask));
    REFUSED("window: is -1", fm_mask_sink_window(4, 4, 1, -1, &mask));
    REFUSED("sink: is -1", fm_mask_documents_sink_window(1, one, -1, 1, 0, &mask));
    REFUSED("window: is -1", fm_mask_documents_sink_window(1, one, 1, -1, 0, &mask));
    REFUSED("start: is -1", fm_mask_random_eviction(4, 1, -1, 1, &mask));
    REFUSED("global: is -1", fm_mask_bigbird(4, 4, 16, -1, 1, 1, 1, NULL, &mask));
    REFUSED("window: is -1", fm_mask_bigbird(4, 4, 16, 1, -1, 1, 1, NULL, &mask));
    REFUSED("random: is -1", fm_mask_bigbird(4, 4, 16, 1, 1, -1, 1, NULL, &mask));
    REFUSED("prefix: is -1", fm_mask_prefix_lm(4, 4, -1, &mask));
    REFUSED("prefix: is 5, needs 0 .. Sk (4)", fm_mask_prefix_lm(9, 4, 5, &mask));
}

/* Every list of documents checks its lengths: REFUSED for n, lengths and padding that a builder is called with. */
#define REFUSES_BAD_DOCUMENTS(BUILD)                                            \
    do {                                                                        \
        REFUSED("lengths[1]: is -1", BUILD(2, minus, 0));                       \
        REFUSED("lengths[1]: is 1 after 2147483647 tokens", BUILD(2, huge, 0)); \
        REFUSED("lengths[0]: is 2147483648 after 0 tokens", BUILD(1, wide, 0)); \
        REFUSED("lengths[0]: is 9223372036854775807", BUILD(2, far, 0));        \
        REFUSED("n: is -1", BUILD(-1, one, 0));                                 \
        REFUSED("n: is 2147483648", BUILD(TOO_LONG, one, 0));                   \
        REFUSED("lengths: is NULL", BUILD(2, NULL, 0));                         \
    } while (0)
#define REFUSES_BAD_PADDING(BUILD)                                                       \
    do {                                                                                 \
        REFUSED("padding: is -1", BUILD(2, two_four, -1));                               \
        REFUSED("padding: is 2147483647 after 6 tokens", BUILD(2, two_four, INT32_MAX)); \
        REFUSED("padding: is 9223372036854775807", BUILD(0, NULL, INT64_MAX));           \
    } while (0)
#define CAUSAL(n, lengths, padding) fm_mask_documents(n, lengths, true, padding, &mask)
#define BOTH_WAYS(n, lengths, padding) fm_mask_documents(n, lengths, false, padding, &mask)
#define SINK_WINDOW(n, lengths, padding) fm_mask_documents_sink_window(n, lengths, 1, 2, padding, &mask)
#define PREFIX(n, lengths, padding) fm_mask_prefix_documents(n, two_four, lengths, padding, &mask)
#define BLOCKWISE(n, lengths, padding) fm_mask_causal_blockwise(n, lengths, &mask)
#define IMAGES(n, lengths, padding) fm_mask_image_spans(n, lengths, 0, NULL, NULL, &mask)

static void lengths_that_are_no_lengths_are_refused(void **state) {
    (void)state;
    REFUSES_BAD_DOCUMENTS(CAUSAL);
    REFUSES_BAD_DOCUMENTS(BOTH_WAYS);
    REFUSES_BAD_DOCUMENTS(SINK_WINDOW);
    REFUSES_BAD_DOCUMENTS(PREFIX);
    REFUSES_BAD_DOCUMENTS(BLOCKWISE);
    REFUSES_BAD_DOCUMENTS(IMAGES);
    REFUSES_BAD_PADDING(CAUSAL);
    REFUSES_BAD_PADDING(BOTH_WAYS);
    REFUSES_BAD_PADDING(SINK_WINDOW);
    REFUSES_BAD_PADDING(PREFIX);
    REFUSED("prefix[1]: is 5, needs 0 .. lengths[1] (4)",
            fm_mask_prefix_documents(2, (const int64_t[]){2, 5}, two_four, 0, &mask));
    REFUSED("prefix[0]: is -1", fm_mask_prefix_documents(2, (const int64_t[]){-1, 5}, two_four, 0, &mask));
    REFUSED("prefix: is NULL", fm_mask_prefix_documents(2, NULL, two_four, 0, &mask));
}

static void broken_questions_are_refused(void **state) {
    const fm_question good = {2, 2, two_four};
    (void)state;
#define REFUSES_SECOND(words, ...)                                             \
    do {                                                                       \
        const fm_question questions[] = {good, {__VA_ARGS__}};                 \
        REFUSED(words, fm_mask_share_question(2, questions, false, 0, &mask)); \
    } while (0)
    REFUSES_SECOND("questions[1].length: is -1", -1, 0, NULL);
    REFUSES_SECOND("questions[1].length: is 2147483647 after 8 tokens", INT32_MAX, 0, NULL);
    REFUSES_SECOND("questions[1].answers: is -1", 1, -1, NULL);
    REFUSES_SECOND("questions[1].answers: is 2147483648", 1, TOO_LONG, one);
    REFUSES_SECOND("questions[1].answer_lengths: is NULL", 1, 2, NULL);
    REFUSES_SECOND("questions[1].answer_lengths[1]: is -1 after 11 tokens", 1, 2, minus);
    REFUSES_SECOND("questions[1].answer_lengths[0]: is 2147483647 after 9 tokens", 1, 2, huge);
    REFUSED("questions: is NULL", fm_mask_share_question(1, NULL, false, 0, &mask));
    REFUSED("n: is -1", fm_mask_share_question(-1, &good, false, 0, &mask));
    REFUSED("padding: is -1", fm_mask_share_question(1, &good, false, -1, &mask));
    REFUSED("padding: is 2147483647 after 8", fm_mask_share_question(1, &good, false, INT32_MAX, &mask));
}

static void spans_that_overlap_descend_leave_or_cross_are_refused(void **state) {
    const struct {
        int64_t offset[2], length[2];
        const char *words;
    } cases[] = {
        {{0, 2}, {3, 1}, "offset[1]: is 2, needs 3 (end of the span before)"}, /* overlap */
        {{3, 0}, {2, 1}, "offset[1]: is 0, needs 5"},                          /* descend */
        {{-1, 2}, {1, 1}, "offset[0]: is -1"},
        {{0, 7}, {1, 0}, "offset[1]: is 7"},
        {{0, 4}, {1, 3}, "length[1]: is 3, needs 0 .. 2"}, /* leave */
        {{0, 4}, {1, -1}, "length[1]: is -1"},
        {{0, INT64_MAX}, {1, 1}, "offset[1]: is 9223372036854775807"},
        {{0, 4}, {1, INT64_MAX}, "length[1]: is 9223372036854775807"},
    };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        REFUSED(cases[k].words, fm_mask_qk_sparse(6, 6, 2, cases[k].offset, cases[k].length, &mask));
        REFUSED(cases[k].words, fm_mask_image_spans(1, (const int64_t[]){6}, 2, cases[k].offset, cases[k].length, &mask));
    }
    REFUSED("length[0]: is 2, so span [1, 3) crosses the end of its document at 2",
            fm_mask_image_spans(2, two_four, 1, one, (const int64_t[]){2}, &mask));
    REFUSED("spans: is -1", fm_mask_qk_sparse(6, 6, -1, one, one, &mask));
    REFUSED("offset: is NULL", fm_mask_qk_sparse(6, 6, 1, NULL, one, &mask));
    REFUSED("length: is NULL", fm_mask_qk_sparse(6, 6, 1, one, NULL, &mask));
    REFUSED("spans: is -1", fm_mask_image_spans(1, two_four, -1, one, one, &mask));
    REFUSED("offset: is NULL", fm_mask_image_spans(1, two_four, 1, NULL, one, &mask));
    REFUSED("length: is NULL", fm_mask_image_spans(1, two_four, 1, one, NULL, &mask));
}

static void pads_past_the_tokens_are_refused(void **state) {
    (void)state;
    REFUSED("left_pad[0]: is -1", fm_mask_padding(1, 4, 4, (const int64_t[]){-1}, one, &mask));
    REFUSED("left_pad[0]: is 5, needs 0 .. 4", fm_mask_padding(1, 4, 4, (const int64_t[]){5}, one, &mask));
    REFUSED("right_pad[1]: is 4, needs 0 .. 0",
            fm_mask_padding(2, 4, 3, (const int64_t[]){1, 4}, (const int64_t[]){3, 4}, &mask));
    REFUSED("right_pad[0]: is -1", fm_mask_padding(1, 4, 4, one, (const int64_t[]){-1}, &mask));
    REFUSED("right_pad[0]: is 9223372036854775807", fm_mask_padding(1, 4, 4, one, far, &mask));
    REFUSED("left_pad: is NULL", fm_mask_padding(1, 4, 4, NULL, one, &mask));
    REFUSED("right_pad: is NULL", fm_mask_padding(1, 4, 4, one, NULL, &mask));
    ACCEPTED(4, fm_mask_padding(1, 4, 4, (const int64_t[]){1}, (const int64_t[]){3}, &mask)); /* nothing is left */
}

static void blocks_densities_and_options_are_checked(void **state) {
    const fm_mask_shape shape = {1, 1, 40, 40};
    const uint8_t keep[9] = {1, 0, 1, 1, 1, 0, 0, 1, 1};
    const int64_t bad[] = {0, -16, 8, 17, 24, TOO_LONG, INT64_MIN};
    const fm_mask_options unset = {0}, negative = {sizeof negative, -2};
    (void)state;
    for (int k = 0; k < 7; k++) {
        REFUSED("block: is ", fm_mask_blocks(shape, bad[k], keep, NULL, &mask));
        REFUSED("block: is ", fm_mask_bigbird(40, 40, bad[k], 1, 1, 1, 1, NULL, &mask));
    }
    REFUSED("keep: is NULL", fm_mask_blocks(shape, 16, NULL, NULL, &mask));
    REFUSED("density: is nan", fm_mask_random_sparse(4, 4, NAN, 1, NULL, &mask));
    REFUSED("density: is -", fm_mask_random_sparse(4, 4, -1e-300, 1, NULL, &mask));
    REFUSED("density: is 1", fm_mask_random_sparse(4, 4, nextafter(1, 2), 1, NULL, &mask));
    REFUSED("density: is inf", fm_mask_random_sparse(4, 4, INFINITY, 1, NULL, &mask));
    REFUSED("bucket: is NULL", fm_mask_hash_sparse(4, NULL, NULL, &mask));
    REFUSED("options.size", fm_mask_blocks(shape, 16, keep, &unset, &mask));
    REFUSED("options.size", fm_mask_bigbird(40, 40, 16, 1, 1, 1, 1, &unset, &mask));
    REFUSED("options.size", fm_mask_hash_sparse(0, NULL, &unset, &mask));
    REFUSED("options.fallback_limit", fm_mask_random_sparse(4, 4, 0.5, 1, &negative, &mask));
}

static void null_out_is_refused(void **state) {
    const fm_question question = {1, 0, NULL};
    const fm_mask_shape shape = {1, 1, 4, 4};
    (void)state;
    const fm_status statuses[] = {
        fm_mask_full(4, 4, NULL),
        fm_mask_causal(4, 4, NULL),
        fm_mask_sliding_window(4, 4, 1, 1, NULL),
        fm_mask_sink_window(4, 4, 1, 1, NULL),
        fm_mask_documents_sink_window(1, one, 1, 1, 0, NULL),
        fm_mask_global_window(4, 4, 1, 1, 1, NULL),
        fm_mask_documents(1, one, true, 0, NULL),
        fm_mask_prefix_lm(4, 4, 1, NULL),
        fm_mask_prefix_documents(1, one, one, 0, NULL),
        fm_mask_share_question(1, &question, false, 0, NULL),
        fm_mask_causal_blockwise(1, one, NULL),
        fm_mask_qk_sparse(4, 4, 1, one, one, NULL),
        fm_mask_hash_sparse(1, (const int32_t[]){1}, NULL, NULL),
        fm_mask_random_eviction(4, 1, 1, 1, NULL),
        fm_mask_head_windows(4, 4, 1, one, one, NULL),
        fm_mask_padding(1, 4, 4, one, one, NULL),
        fm_mask_blocks(shape, 16, (const uint8_t *)"", NULL, NULL),
        fm_mask_bigbird(4, 4, 16, 1, 1, 1, 1, NULL, NULL),
        fm_mask_image_spans(1, one, 0, NULL, NULL, NULL),
        fm_mask_random_sparse(4, 4, 0.5, 1, NULL, NULL),
    };
    for (size_t k = 0; k < sizeof statuses / sizeof *statuses; k++) {
        assert_int_equal(statuses[k], FM_ERROR_ARGUMENT);
    }
    assert_string_equal(fm_error_message(), "out: is NULL");
    REFUSED("left: is NULL", fm_mask_head_windows(4, 4, 1, NULL, one, &mask));
    REFUSED("right: is NULL", fm_mask_head_windows(4, 4, 1, one, NULL, &mask));
}

static void nothing_is_a_mask_too(void **state) {
    (void)state;
    ACCEPTED(0, fm_mask_full(0, 0, &mask));
    ACCEPTED(0, fm_mask_causal(0, 0, &mask));
    ACCEPTED(0, fm_mask_sliding_window(0, 0, -1, 3, &mask));
    ACCEPTED(0, fm_mask_sink_window(0, 0, 1, 1, &mask));
    ACCEPTED(0, fm_mask_global_window(0, 0, 1, 1, 1, &mask));
    ACCEPTED(0, fm_mask_prefix_lm(0, 0, 0, &mask));
    ACCEPTED(0, fm_mask_documents(0, NULL, true, 0, &mask));
    ACCEPTED(0, fm_mask_documents(1, (const int64_t[]){0}, false, 0, &mask));
    ACCEPTED(5, fm_mask_documents(0, NULL, true, 5, &mask));
    ACCEPTED(5, fm_mask_documents_sink_window(0, NULL, 1, 1, 5, &mask));
    ACCEPTED(5, fm_mask_prefix_documents(0, NULL, NULL, 5, &mask));
    ACCEPTED(5, fm_mask_share_question(0, NULL, true, 5, &mask));
    ACCEPTED(0, fm_mask_causal_blockwise(0, NULL, &mask));
    ACCEPTED(2, fm_mask_causal_blockwise(3, (const int64_t[]){0, 2, 0}, &mask));
    ACCEPTED(0, fm_mask_prefix_tree(0, NULL, NULL, NULL, &mask));
    ACCEPTED(0, fm_mask_qk_sparse(0, 0, 0, NULL, NULL, &mask));
    ACCEPTED(0, fm_mask_hash_sparse(0, NULL, NULL, &mask));
    ACCEPTED(0, fm_mask_random_eviction(0, 1, 0, 1, &mask));
    ACCEPTED(0, fm_mask_head_windows(0, 0, 1, one, one, &mask));
    ACCEPTED(0, fm_mask_padding(1, 0, 0, (const int64_t[]){0}, (const int64_t[]){0}, &mask));
    ACCEPTED(0, fm_mask_blocks((fm_mask_shape){2, 2, 0, 0}, 16, NULL, NULL, &mask));
    ACCEPTED(0, fm_mask_bigbird(0, 0, 16, 1, 1, 1, 1, NULL, &mask));
    ACCEPTED(0, fm_mask_image_spans(0, NULL, 0, NULL, NULL, &mask));
    ACCEPTED(0, fm_mask_random_sparse(0, 0, 0.5, 1, NULL, &mask));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extents_out_of_range_are_refused),
        cmocka_unit_test(reaches_below_zero_are_refused),
        cmocka_unit_test(lengths_that_are_no_lengths_are_refused),
        cmocka_unit_test(broken_questions_are_refused),
        cmocka_unit_test(spans_that_overlap_descend_leave_or_cross_are_refused),
        cmocka_unit_test(pads_past_the_tokens_are_refused),
        cmocka_unit_test(blocks_densities_and_options_are_checked),
        cmocka_unit_test(null_out_is_refused),
        cmocka_unit_test(nothing_is_a_mask_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Document ids and position ids, and a million tokens of either. */
#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DRAWS = 10000, MOST = 40, MOST_PAIRS = 3 * MOST * MOST };

/* Equal ids, not the padding id, and for causal a key not after its row. */
static void ids_truth(int64_t batch, int64_t length, const int32_t *ids, int32_t padding, bool causal, uint8_t *visible) {
    for (int64_t k = 0; k < batch * length * length; k++) {
        const int64_t b = k / length / length, i = k / length % length, j = k % length;
        const int32_t id = ids[b * length + i];
        visible[k] = id == ids[b * length + j] && (padding == -1 || id != padding) && (!causal || j <= i);
    }
}

/* Runs of a few tokens, or of many, of a few ids that return; returns whether the mask needed the fallback. */
static bool check_document_ids(test_random *r, int64_t batch, int64_t length, double change, uint8_t *visible) {
    const int64_t kinds = random_integer(r, 1, 9);
    const int32_t padding = (int32_t)random_integer(r, -2, 1);
    const bool causal = random_chance(r, 0.5);
    int32_t *ids = malloc((size_t)(batch * length) * sizeof *ids);
    assert_non_null(ids);
    for (int64_t t = 0; t < batch * length; t++) {
        const bool repeats = t % length > 0 && !random_chance(r, change);
        ids[t] = repeats ? ids[t - 1] : (int32_t)random_integer(r, padding == -2 ? -1 : 0, kinds);
        ids[t] = ids[t] == -1 ? -2 : ids[t]; /* the one negative id that is legal there */
    }
    fm_mask *mask = NULL;
    succeed(fm_mask_from_document_ids(batch, length, ids, padding, causal, NULL, &mask));
    ids_truth(batch, length, ids, padding, causal, visible);
    assert_conversion(mask, (fm_mask_shape){batch, 1, length, length}, visible);
    const bool with_fallback = fm_mask_has_fallback(mask);
    fm_mask_free(mask);
    free(ids);
    return with_fallback;
}

static void document_ids_are_exact(void **state) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {1100};
    int with_fallback = 0;
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int64_t batch = random_integer(&r, 1, 3), length = random_integer(&r, 1, MOST);
        with_fallback += check_document_ids(&r, batch, length, random_chance(&r, 0.5) ? 0.1 : 0.9, visible);
    }
    assert_true(with_fallback > 500);
}

static void document_ids_are_exact_across_stripes(void **state) {
    enum { LENGTH = 700 };
    static uint8_t visible[2 * LENGTH * LENGTH];
    test_random r = {1150};
    int with_fallback = 0;
    (void)state;
    for (int draw = 0; draw < 200; draw++) { /* runs of about 300, 60 and 15 tokens */
        const double change[] = {0.003, 0.015, 0.06};
        const int64_t batch = random_integer(&r, 1, 2), length = random_integer(&r, 128, LENGTH);
        with_fallback += check_document_ids(&r, batch, length, change[draw % 3], visible);
    }
    assert_true(with_fallback > 40 && with_fallback < 160);
}

/* https://github.com/hiyouga/LlamaFactory/pull/7318 */
static void padding_id_0_sees_nothing(void **state) {
    const int32_t ids[7] = {1, 1, 1, 2, 2, 0, 0}, bad[2] = {0, -5}, one = -1;
    uint8_t visible[49];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_from_document_ids(1, 7, ids, 0, true, NULL, &mask));
    ids_truth(1, 7, ids, 0, true, visible);
    assert_conversion(mask, (fm_mask_shape){1, 1, 7, 7}, visible);
    assert_int_equal(visible[5 * 7 + 5], 0);
    fm_mask_free(mask);
    mask = NULL;
    refuse(fm_mask_from_document_ids(1, 2, bad, 0, true, NULL, &mask), FM_ERROR_ARGUMENT, "token 1 (batch item 0) is -5");
    refuse(fm_mask_from_document_ids(1, 1, &one, -1, true, NULL, &mask), FM_ERROR_ARGUMENT, "token 0");
    refuse(fm_mask_from_document_ids(1, 7, NULL, 0, true, NULL, &mask), FM_ERROR_ARGUMENT, "ids: is NULL");
    refuse(fm_mask_from_document_ids(1, -7, ids, 0, true, NULL, &mask), FM_ERROR_ARGUMENT, "shape.rows");
    refuse(fm_mask_from_document_ids(1, 7, ids, 0, true, NULL, NULL), FM_ERROR_ARGUMENT, "out");
    assert_null(mask);
    succeed(fm_mask_from_document_ids(2, 0, NULL, 0, true, NULL, &mask));
    fm_mask_free(mask);
}

/* Two documents by turns, 200 and 160 tokens at a time: columns of 6 runs, in stripes that one document fills. */
static void long_runs_that_return_are_exact(void **state) {
    enum { LENGTH = 2100 };
    uint8_t *visible = malloc(LENGTH * LENGTH);
    int32_t ids[LENGTH];
    (void)state;
    assert_non_null(visible);
    for (int32_t t = 0; t < LENGTH; t++) {
        ids[t] = t % 360 >= 200;
    }
    for (int causal = 0; causal <= 1; causal++) {
        fm_mask *mask = NULL;
        succeed(fm_mask_from_document_ids(1, LENGTH, ids, -1, causal, NULL, &mask));
        ids_truth(1, LENGTH, ids, -1, causal, visible);
        assert_conversion(mask, (fm_mask_shape){1, 1, LENGTH, LENGTH}, visible);
        assert_true(fm_mask_has_fallback(mask));
        assert_int_equal(fm_mask_interval_count(mask), causal ? 4 : 0);
        fm_mask_free(mask);
    }
    free(visible);
}

/* Two documents by turns, token by token: every column has up to 32,768 intervals, which the columns of a document share. It
 * takes 0.15 s; the bound leaves room for sanitizers, one step per interval of every column took 10 s. */
static void interleaved_documents_cost_no_more_than_their_bitmap(void **state) {
    enum { LENGTH = 65536, BLOCKS = LENGTH / 128 };
    int32_t *ids = malloc(LENGTH * sizeof *ids);
    fm_mask *mask = NULL;
    int64_t pairs;
    (void)state;
    assert_non_null(ids);
    for (int32_t t = 0; t < LENGTH; t++) {
        ids[t] = t % 2;
    }
    const clock_t start = clock();
    succeed(fm_mask_from_document_ids(1, LENGTH, ids, -1, true, NULL, &mask));
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%.2f s\n", seconds);
    assert_true(seconds < 5);
    assert_int_equal(fm_mask_visible_pairs(mask, &pairs), FM_OK);
    assert_int_equal(pairs, 2 * ((int64_t)LENGTH / 2) * (LENGTH / 2 + 1) / 2);
    assert_int_equal(fm_mask_fallback_bytes(mask), (BLOCKS + BLOCKS * BLOCKS) * 4 + 2 * 2048); /* diagonal and below */
    fm_mask_free(mask);
    free(ids);
}

/* Padding by the contract's words, token by token. */
static void position_padding(const int32_t *ids, int64_t length, bool *padding) {
    int64_t tail = 1, head = 1;
    memset(padding, 0, (size_t)length * sizeof *padding);
    while (tail < length && ids[length - 1 - tail] == ids[length - 1]) {
        tail++;
    }
    while (head < length && ids[head] == ids[0]) {
        head++;
    }
    for (int64_t t = 0; t < length; t++) {
        const bool in_tail = tail >= 2 && t >= length - tail, in_head = head >= 2 && t < head;
        const bool ends_a_document = t > 0 && t == length - tail && ids[t] - 1 == ids[t - 1];
        const bool begins_a_document = t + 1 < length && t == head - 1 && ids[t] + 1 == ids[t + 1];
        padding[t] = (in_tail && !ends_a_document) || (in_head && !begins_a_document);
    }
}

static void position_ids_are_exact(void **state) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {1200};
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int64_t batch = random_integer(&r, 1, 3), length = random_integer(&r, 1, MOST);
        const bool causal = random_chance(&r, 0.5), padded = random_chance(&r, 0.7);
        int32_t ids[3 * MOST];
        for (int64_t b = 0; b < batch; b++) {
            int32_t *item = ids + b * length;
            int32_t document[MOST];
            bool padding[MOST] = {false};
            const int64_t left = random_integer(&r, 0, length), right = random_integer(&r, 0, length);
            for (int64_t t = 0; t < length; t++) {
                const bool pads = t > 0 && ((left < length / 4 && t < left) || (right > length / 2 && t > right));
                item[t] = pads                               ? item[t - 1]
                          : t > 0 && !random_chance(&r, 0.2) ? item[t - 1] + 1
                                                             : (int32_t)random_integer(&r, 0, 3);
            }
            if (padded) {
                position_padding(item, length, padding);
            }
            for (int64_t t = 0; t < length; t++) {
                document[t] = t > 0 && item[t] == item[t - 1] + 1 && !padding[t - 1] ? document[t - 1] : (int32_t)t;
                document[t] = padding[t] ? -1 : document[t];
            }
            ids_truth(1, length, document, -2, causal, visible + b * length * length);
            for (int64_t k = 0; k < length * length; k++) {
                visible[b * length * length + k] &= document[k % length] >= 0;
            }
        }
        fm_mask *mask = NULL;
        succeed(fm_mask_from_position_ids(batch, length, ids, causal, padded, &mask));
        assert_conversion(mask, (fm_mask_shape){batch, 1, length, length}, visible);
        fm_mask_free(mask);
    }
}

static void check_positions(int64_t length, const int32_t *ids, bool padding, int64_t documents, const int32_t *cu) {
    const fm_mask_shape shape = {1, 1, length, length};
    fm_mask *mask = NULL;
    uint8_t *visible = malloc((size_t)(length * length));
    int32_t *document = malloc((size_t)length * sizeof *document);
    assert_non_null(visible);
    assert_non_null(document);
    for (int64_t t = 0; t < length; t++) {
        document[t] = -1;
        for (int64_t d = 0; d < documents; d++) {
            document[t] = t >= cu[d] && t < cu[d + 1] ? (int32_t)d : document[t];
        }
    }
    ids_truth(1, length, document, -2, true, visible);
    for (int64_t k = 0; k < length * length; k++) {
        visible[k] &= document[k % length] >= 0;
    }
    succeed(fm_mask_from_position_ids(1, length, ids, true, padding, &mask));
    assert_conversion(mask, shape, visible);
    fm_mask_free(mask);
    free(document);
    free(visible);
}

static void reported_position_ids_are_read_right(void **state) {
    int32_t tail[64] = {0}, left[8] = {0, 0, 0, 1, 2, 3, 4, 5}, ones[6] = {0, 1, 2, 2, 2, 2}, last[3] = {INT32_MAX, 0, 1};
    (void)state;
    for (int32_t t = 0; t < 10; t++) {
        tail[t] = t;
    }
    /* https://github.com/axolotl-ai-cloud/axolotl/pull/2739 */
    check_positions(64, tail, true, 1, (const int32_t[]){0, 10});
    /* https://github.com/huggingface/transformers/pull/47525 */
    check_positions(5, (const int32_t[]){2, 3, 4, 2, 3}, false, 2, (const int32_t[]){0, 3, 5});
    check_positions(5, (const int32_t[]){2, 3, 4, 2, 3}, true, 2, (const int32_t[]){0, 3, 5});
    /* https://github.com/huggingface/transformers/issues/29075: left padding, the last 0 begins the document */
    check_positions(8, left, true, 1, (const int32_t[]){2, 8});
    check_positions(6, ones, true, 1, (const int32_t[]){0, 3});
    check_positions(3, last, true, 2, (const int32_t[]){0, 1, 3});
    check_positions(1, (const int32_t[]){0}, true, 1, (const int32_t[]){0, 1});
    check_positions(2, (const int32_t[]){0, 0}, true, 0, (const int32_t[]){0});
    const int32_t bad[2] = {0, -1};
    fm_mask *mask = NULL;
    refuse(fm_mask_from_position_ids(1, 2, bad, true, false, &mask), FM_ERROR_ARGUMENT, "token 1 (batch item 0) is -1");
    refuse(fm_mask_from_position_ids(1, 2, NULL, true, false, &mask), FM_ERROR_ARGUMENT, "ids: is NULL");
    assert_null(mask);
    succeed(fm_mask_from_position_ids(3, 0, NULL, true, true, &mask));
    fm_mask_free(mask);
}

/* https://github.com/axolotl-ai-cloud/axolotl/pull/2739, https://github.com/ByteDance-Seed/VeOmni/pull/746: a long tail of zeros, as
 * padding or as so many documents. */
static void many_zeros_are_padding_or_documents(void **state) {
    enum { LENGTH = 131072 };
    int32_t *ids = calloc(LENGTH, sizeof *ids);
    (void)state;
    assert_non_null(ids);
    for (int padding = 0; padding <= 1; padding++) {
        fm_mask *mask = NULL;
        int64_t pairs = -1;
        succeed(fm_mask_from_position_ids(1, LENGTH, ids, true, padding, &mask));
        assert_int_equal(fm_mask_visible_pairs(mask, &pairs), FM_OK);
        assert_int_equal(pairs, padding ? 0 : LENGTH);
        assert_int_equal(fm_mask_bytes(mask), padding ? 0 : 8 * LENGTH);
        fm_mask_free(mask);
    }
    free(ids);
}

/* https://github.com/pytorch/pytorch/issues/134756: a million tokens, 4096 documents. 8 MB and
 * some 5 ms; the bound leaves room for slow machines and sanitizers, a quadratic method would take hours. */
static void a_million_tokens_take_milliseconds_and_8_mb(void **state) {
    enum { LENGTH = 1048576, DOCUMENTS = 4096 };
    int32_t *ids = malloc(LENGTH * sizeof *ids), *positions = malloc(LENGTH * sizeof *positions), cu[DOCUMENTS + 1];
    double best[3] = {1e9, 1e9, 1e9};
    (void)state;
    assert_non_null(ids);
    assert_non_null(positions);
    for (int32_t d = 0; d <= DOCUMENTS; d++) { /* lengths 1 .. 511, all different neighbours */
        cu[d] = d % 2 == 0 ? 256 * (d - d % 2) : 256 * (d - 1) + 1 + d / 2 % 511;
    }
    for (int32_t d = 0; d < DOCUMENTS; d++) {
        for (int32_t t = cu[d]; t < cu[d + 1]; t++) {
            ids[t] = d;
            positions[t] = t - cu[d];
        }
    }
    for (int round = 0; round < 5; round++) {
        fm_mask *masks[3] = {NULL};
        for (int n = 0; n < 3; n++) {
            const clock_t start = clock();
            assert_int_equal(n == 0   ? fm_mask_from_cu_seqlens(cu, NULL, DOCUMENTS, true, LENGTH, LENGTH, &masks[0])
                             : n == 1 ? fm_mask_from_document_ids(1, LENGTH, ids, -1, true, NULL, &masks[1])
                                      : fm_mask_from_position_ids(1, LENGTH, positions, true, false, &masks[2]),
                             FM_OK);
            const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            best[n] = seconds < best[n] ? seconds : best[n];
        }
        assert_true(fm_mask_equal(masks[0], masks[1]) && fm_mask_equal(masks[0], masks[2]));
        assert_int_equal(fm_mask_bytes(masks[0]), 8 * LENGTH);
        for (int n = 0; n < 3; n++) {
            fm_mask_free(masks[n]);
        }
    }
    print_message("lengths %.1f ms, document ids %.1f ms, position ids %.1f ms\n", 1e3 * best[0], 1e3 * best[1], 1e3 * best[2]);
    assert_true(best[0] < 0.25 && best[1] < 0.25 && best[2] < 0.25);
    free(ids);
    free(positions);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(document_ids_are_exact),
        cmocka_unit_test(document_ids_are_exact_across_stripes),
        cmocka_unit_test(padding_id_0_sees_nothing),
        cmocka_unit_test(long_runs_that_return_are_exact),
        cmocka_unit_test(interleaved_documents_cost_no_more_than_their_bitmap),
        cmocka_unit_test(position_ids_are_exact),
        cmocka_unit_test(reported_position_ids_are_read_right),
        cmocka_unit_test(many_zeros_are_padding_or_documents),
        cmocka_unit_test(a_million_tokens_take_milliseconds_and_8_mb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

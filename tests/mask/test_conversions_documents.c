/* Cumulative lengths, both ways. */
#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

#include <stdlib.h>
#include <string.h>

enum { DRAWS = 10000, MOST = 40, MOST_PAIRS = MOST * MOST };

/* Ascends from 0 in steps of 0 .. step, ends at or below the length. */
static void random_cumulative(test_random *r, int64_t documents, int64_t least, int64_t length, int32_t *cu) {
    cu[0] = 0;
    for (int64_t d = 0; d < documents; d++) {
        const int64_t left = length - cu[d] - least * (documents - d - 1);
        const int64_t most = left < 3 * length / (documents + 1) + least ? left : 3 * length / (documents + 1) + least;
        cu[d + 1] = cu[d] + (int32_t)random_integer(r, least, most);
    }
}

/* By the definition: row and key of one document, and inside it local key <= local row + (keys - rows). */
static void cumulative_truth(const int32_t *q, const int32_t *k, int64_t documents, bool causal, int64_t Sq, int64_t Sk,
                             uint8_t *visible) {
    memset(visible, 0, (size_t)(Sq * Sk));
    for (int64_t d = 0; d < documents; d++) {
        const int64_t rows = q[d + 1] - q[d], keys = k[d + 1] - k[d];
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < keys; j++) {
                visible[(q[d] + i) * Sk + k[d] + j] = !causal || j <= i + (keys - rows);
            }
        }
    }
}

static void cu_seqlens_are_exact_and_round_trip(void **state) {
    static uint8_t visible[MOST_PAIRS];
    test_random r = {900};
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int64_t Sq = random_integer(&r, 1, MOST), Sk = random_integer(&r, 1, MOST), documents = random_integer(&r, 0, 8);
        const bool causal = random_chance(&r, 0.5);
        int32_t q[9], k[9], back_q[MOST + MOST + 1], back_k[MOST + MOST + 1];
        int64_t found = -1;
        random_cumulative(&r, documents, 0, Sq, q);
        random_cumulative(&r, documents, 0, Sk, k);
        fm_mask *mask = NULL, *again = NULL;
        succeed(fm_mask_from_cu_seqlens(q, k, documents, causal, Sq, Sk, &mask));
        cumulative_truth(q, k, documents, causal, Sq, Sk, visible);
        assert_conversion(mask, (fm_mask_shape){1, 1, Sq, Sk}, visible);
        succeed(fm_mask_to_cu_seqlens(mask, causal, back_q, back_k, MOST + MOST + 1, &found));
        succeed(fm_mask_from_cu_seqlens(back_q, back_k, found, causal, Sq, Sk, &again));
        assert_true(fm_mask_equal(mask, again));
        fm_mask_free(mask);
        fm_mask_free(again);
    }
}

static void documents_with_rows_and_keys_come_back_as_they_were(void **state) {
    test_random r = {1000};
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const int64_t documents = random_integer(&r, 1, 8), Sq = random_integer(&r, documents, MOST);
        const int64_t Sk = random_integer(&r, documents, MOST);
        const bool causal = random_chance(&r, 0.5);
        int32_t q[9], k[9], back_q[9], back_k[9];
        int64_t found = -1;
        fm_mask *mask = NULL;
        random_cumulative(&r, documents, 1, Sq, q);
        random_cumulative(&r, documents, 1, Sk, k);
        succeed(fm_mask_from_cu_seqlens(q, k, documents, causal, Sq, Sk, &mask));
        succeed(fm_mask_to_cu_seqlens(mask, causal, back_q, back_k, documents + 1, &found));
        assert_int_equal(found, documents);
        assert_memory_equal(q, back_q, (size_t)(documents + 1) * sizeof *q);
        assert_memory_equal(k, back_k, (size_t)(documents + 1) * sizeof *k);
        fm_mask_free(mask);
    }
}

static void check_cumulative(const int32_t *q, const int32_t *k, int64_t documents, int64_t Sq, int64_t Sk) {
    for (int causal = 0; causal <= 1; causal++) {
        uint8_t *visible = malloc((size_t)(Sq * Sk));
        fm_mask *mask = NULL;
        assert_non_null(visible);
        succeed(fm_mask_from_cu_seqlens(q, k, documents, causal, Sq, Sk, &mask));
        cumulative_truth(q, k != NULL ? k : q, documents, causal, Sq, Sk, visible);
        assert_conversion(mask, (fm_mask_shape){1, 1, Sq, Sk}, visible);
        fm_mask_free(mask);
        free(visible);
    }
}

static void reported_lengths_are_ordinary(void **state) {
    (void)state;
    /* https://github.com/pytorch/pytorch/pull/186786: tokens past the last document see nothing */
    check_cumulative((const int32_t[]){0, 144, 432, 944}, NULL, 3, 946, 946);
    /* https://github.com/Dao-AILab/flash-attention/issues/2562: documents without rows */
    check_cumulative((const int32_t[]){0, 0, 3, 5, 5}, (const int32_t[]){0, 2, 4, 6, 9}, 4, 5, 9);
    check_cumulative((const int32_t[]){0, 0, 1208, 2048, 2048}, (const int32_t[]){0, 2538, 4280, 5120, 8192}, 4, 2048, 8192);
    /* https://github.com/Dao-AILab/flash-attention/issues/1254 */
    check_cumulative((const int32_t[]){0, 0, 0, 7}, (const int32_t[]){0, 0, 1, 14}, 3, 7, 14);
    /* https://github.com/Dao-AILab/flash-attention/issues/1537: lengths 0 and 1 only */
    check_cumulative((const int32_t[]){0, 1, 1, 2}, (const int32_t[]){0, 3, 3, 8}, 3, 2, 8);
    /* https://github.com/zhuzilin/ring-flash-attention/issues/51: lengths that share no divisor */
    check_cumulative((const int32_t[]){0, 1, 3, 6, 11}, NULL, 4, 11, 11);
}

static void bad_cumulative_lengths_are_refused(void **state) {
    const int32_t good[] = {0, 2, 4}, first[] = {1, 2, 4}, falls[] = {0, 3, 2}, low[] = {0, INT32_MIN, 4};
    const int32_t past[] = {0, 2, INT32_MAX};
    fm_mask *mask = NULL;
    (void)state;
    refuse(fm_mask_from_cu_seqlens(first, NULL, 2, true, 4, 4, &mask), FM_ERROR_ARGUMENT, "cu_q[0]: is 1");
    refuse(fm_mask_from_cu_seqlens(good, falls, 2, true, 4, 4, &mask), FM_ERROR_ARGUMENT, "cu_k[2]: is 2 after 3");
    refuse(fm_mask_from_cu_seqlens(low, NULL, 2, true, 4, 4, &mask), FM_ERROR_ARGUMENT, "cu_q[1]");
    refuse(fm_mask_from_cu_seqlens(past, NULL, 2, true, 4, 4, &mask), FM_ERROR_ARGUMENT, "cu_q[2]: is 2147483647");
    refuse(fm_mask_from_cu_seqlens(good, NULL, 2, true, 4, 3, &mask), FM_ERROR_ARGUMENT, "cu_k[2]: is 4");
    refuse(fm_mask_from_cu_seqlens(good, NULL, -1, true, 4, 4, &mask), FM_ERROR_ARGUMENT, "documents: is -1");
    refuse(fm_mask_from_cu_seqlens(NULL, good, 2, true, 4, 4, &mask), FM_ERROR_ARGUMENT, "cu_q");
    refuse(fm_mask_from_cu_seqlens(good, NULL, 2, true, INT64_MAX, 4, &mask), FM_ERROR_ARGUMENT, "shape.rows");
    assert_null(mask);
    succeed(fm_mask_from_cu_seqlens(good, NULL, 0, true, 0, 0, &mask));
    fm_mask_free(mask);
}

static void masks_that_are_not_documents_are_refused(void **state) {
    const struct {
        const char *pairs; /* 3 x 3, by rows */
        bool causal;
        const char *message;
    } cases[] = {
        {"x..xx.xx.", false, "column 1"},
        {"x.xx.xx.x", false, "column 2 "},
        {"xx.xx.xx.", true, "column 2: keys 0 .. 1"},
        {"x.....x..", false, "column 0"},
        {"..x.x.x..", true, "column 1 "},
        {"x..x..xxx", true, "column 1: keys 0 .. 0"},
        {"x..x..x..", true, "column 1: keys 0 .. 0"},
        {".xx.xx.xx", true, "column 2: keys 1 .. 2"},
    };
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        uint8_t dense[9];
        int32_t q[7] = {7}, k[7] = {7};
        int64_t documents = 7;
        fm_mask *mask = NULL;
        for (int i = 0; i < 9; i++) {
            dense[i] = cases[n].pairs[i] == 'x';
        }
        succeed(fm_mask_from_dense((fm_mask_shape){1, 1, 3, 3}, dense, NULL, &mask));
        refuse(fm_mask_to_cu_seqlens(mask, cases[n].causal, q, k, 7, &documents), FM_ERROR_CANNOT_EXPRESS, cases[n].message);
        assert_int_equal(q[0] + k[0] + documents, 21);
        fm_mask_free(mask);
    }
}

static void too_little_room_and_several_heads_are_refused(void **state) {
    const int32_t cu[] = {0, 2, 4};
    int32_t q[3] = {7}, k[3] = {7};
    int64_t documents = 7;
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_from_cu_seqlens(cu, NULL, 2, true, 4, 4, &mask));
    refuse(fm_mask_to_cu_seqlens(mask, true, q, k, 2, &documents), FM_ERROR_ARGUMENT, "2 documents need 3");
    assert_int_equal(q[0] + k[0] + documents, 21);
    fm_mask_free(mask);
    succeed(fm_mask_from_intervals((fm_mask_shape){2, 1, 4, 4}, 0, NULL, &mask));
    refuse(fm_mask_to_cu_seqlens(mask, true, q, k, 3, &documents), FM_ERROR_CANNOT_EXPRESS, "2 batch items");
    fm_mask_free(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cu_seqlens_are_exact_and_round_trip),
        cmocka_unit_test(documents_with_rows_and_keys_come_back_as_they_were),
        cmocka_unit_test(reported_lengths_are_ordinary),
        cmocka_unit_test(bad_cumulative_lengths_are_refused),
        cmocka_unit_test(masks_that_are_not_documents_are_refused),
        cmocka_unit_test(too_little_room_and_several_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

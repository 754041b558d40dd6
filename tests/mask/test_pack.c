#include "support/cmocka_all.h"
#include "support/random.h"

#include <flashmask/masks.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static fm_packing *pack(int64_t n, const int64_t *lengths, int64_t capacity, fm_pack_policy policy, fm_pack_overlong overlong) {
    fm_packing *packing = NULL;
    assert_int_equal(fm_pack_lengths(n, lengths, capacity, policy, overlong, &packing), FM_OK);
    assert_non_null(packing);
    assert_int_equal(fm_packing_capacity(packing), capacity);
    return packing;
}

static int64_t tokens_in(const fm_piece *pieces, int64_t count) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++) {
        tokens += pieces[i].length;
    }
    return tokens;
}

/* Sequences that exist are not empty and not too full, pieces ascend in each, and every token of every document is in
 * exactly one piece. */
static void assert_complete(const fm_packing *packing, int64_t n, const int64_t *lengths) {
    const int64_t capacity = fm_packing_capacity(packing);
    int64_t *seen = calloc((size_t)n + 1, sizeof *seen), *sum_of_starts = calloc((size_t)n + 1, sizeof *sum_of_starts);
    int64_t *pieces_of = calloc((size_t)n + 1, sizeof *pieces_of);
    assert_non_null(seen);
    assert_non_null(sum_of_starts);
    assert_non_null(pieces_of);
    for (int64_t s = 0; s < fm_packing_sequence_count(packing); s++) {
        const fm_piece *pieces;
        int64_t count;
        assert_int_equal(fm_packing_sequence(packing, s, &pieces, &count), FM_OK);
        assert_in_range(tokens_in(pieces, count), 1, capacity);
        for (int64_t i = 0; i < count; i++) {
            const fm_piece p = pieces[i];
            assert_in_range(p.document, 0, n - 1);
            assert_in_range(p.length, 1, lengths[p.document] - p.start);
            assert_int_equal(p.start % capacity, 0); /* pieces of `capacity` and a rest: equal starts would be equal pieces */
            assert_int_equal(p.length, lengths[p.document] - p.start < capacity ? lengths[p.document] - p.start : capacity);
            assert_true(i == 0 || pieces[i - 1].document < p.document);
            seen[p.document] += p.length;
            sum_of_starts[p.document] += p.start / capacity;
            pieces_of[p.document]++;
        }
    }
    for (int64_t d = 0; d < n; d++) {
        assert_int_equal(seen[d], lengths[d]);
        assert_int_equal(sum_of_starts[d], pieces_of[d] * (pieces_of[d] - 1) / 2); /* 0 + 1 + 2 + ... */
    }
    free(seen);
    free(sum_of_starts);
    free(pieces_of);
}

/* Best-fit decreasing as its definition says it, in O(n^2): returns the number of sequences. */
static int64_t plain_best_fit(int64_t n, const int64_t *lengths, int64_t capacity, int64_t *sequence_of) {
    int64_t *room = calloc((size_t)n + 1, sizeof *room), sequences = 0;
    bool *placed = calloc((size_t)n + 1, sizeof *placed);
    assert_non_null(room);
    assert_non_null(placed);
    for (int64_t round = 0; round < n; round++) {
        int64_t longest = -1, best = -1;
        for (int64_t d = 0; d < n; d++) {
            if (!placed[d] && (longest < 0 || lengths[d] > lengths[longest])) {
                longest = d;
            }
        }
        for (int64_t s = 0; s < sequences; s++) {
            if (room[s] >= lengths[longest] && (best < 0 || room[s] < room[best])) {
                best = s;
            }
        }
        if (best < 0) {
            best = sequences++;
            room[best] = capacity;
        }
        placed[longest] = true;
        room[best] -= lengths[longest];
        sequence_of[longest] = best;
    }
    free(room);
    free(placed);
    return sequences;
}

static void best_fit_is_what_its_definition_says(void **state) {
    (void)state;
    test_random random = {1};
    for (int i = 0; i < 300; i++) {
        int64_t lengths[200], expected[200];
        const int64_t n = random_integer(&random, 0, 200), capacity = random_integer(&random, 1, i % 2 ? 20 : 2000);
        for (int64_t d = 0; d < n; d++) {
            lengths[d] = random_integer(&random, 1, capacity);
        }
        fm_packing *packing = pack(n, lengths, capacity, FM_PACK_BEST_FIT, FM_PACK_REFUSE);
        assert_int_equal(fm_packing_sequence_count(packing), plain_best_fit(n, lengths, capacity, expected));
        for (int64_t s = 0; s < fm_packing_sequence_count(packing); s++) {
            const fm_piece *pieces;
            int64_t count;
            assert_int_equal(fm_packing_sequence(packing, s, &pieces, &count), FM_OK);
            for (int64_t k = 0; k < count; k++) {
                assert_int_equal(expected[pieces[k].document], s);
            }
        }
        fm_packing_free(packing);
    }
}

static void every_token_is_placed_once(void **state) {
    (void)state;
    test_random random = {2};
    for (int i = 0; i < 2000; i++) {
        int64_t lengths[120];
        const int64_t n = random_integer(&random, 0, 120), capacity = random_integer(&random, 1, 300);
        for (int64_t d = 0; d < n; d++) {
            lengths[d] = random_integer(&random, 0, random_chance(&random, 0.1) ? 5 * capacity : capacity);
        }
        for (int policy = FM_PACK_BEST_FIT; policy <= FM_PACK_ARRIVAL; policy++) {
            fm_packing *packing = pack(n, lengths, capacity, (fm_pack_policy)policy, FM_PACK_SPLIT);
            assert_complete(packing, n, lengths);
            fm_packing_free(packing);
        }
    }
}

static void assert_sequence(const fm_packing *packing, int64_t sequence, int64_t count, const fm_piece *expected) {
    const fm_piece *pieces;
    int64_t given;
    assert_int_equal(fm_packing_sequence(packing, sequence, &pieces, &given), FM_OK);
    assert_int_equal(given, count);
    assert_memory_equal(pieces, expected, (size_t)count * sizeof *expected);
}

static void best_fit_fills_the_fullest_sequence_first(void **state) {
    (void)state;
    /* 7 and 6 open two; 4 goes to the 6; 3 to the 7; 2 opens a third */
    static const int64_t lengths[] = {3, 6, 7, 2, 4};
    fm_packing *packing = pack(5, lengths, 10, FM_PACK_BEST_FIT, FM_PACK_REFUSE);
    assert_int_equal(fm_packing_sequence_count(packing), 3);
    assert_sequence(packing, 0, 2, (const fm_piece[]){{0, 0, 3}, {2, 0, 7}});
    assert_sequence(packing, 1, 2, (const fm_piece[]){{1, 0, 6}, {4, 0, 4}});
    assert_sequence(packing, 2, 1, (const fm_piece[]){{3, 0, 2}});
    fm_packing_free(packing);
}

static void arrival_order_never_goes_back(void **state) {
    (void)state;
    static const int64_t lengths[] = {3, 6, 0, 7, 2, 1, 10};
    fm_packing *packing = pack(7, lengths, 10, FM_PACK_ARRIVAL, FM_PACK_REFUSE);
    assert_int_equal(fm_packing_sequence_count(packing), 3);
    assert_sequence(packing, 0, 2, (const fm_piece[]){{0, 0, 3}, {1, 0, 6}});
    assert_sequence(packing, 1, 3, (const fm_piece[]){{3, 0, 7}, {4, 0, 2}, {5, 0, 1}});
    assert_sequence(packing, 2, 1, (const fm_piece[]){{6, 0, 10}});
    fm_packing_free(packing);
}

static void long_documents_are_cut_into_full_pieces_and_a_rest(void **state) {
    (void)state;
    static const int64_t lengths[] = {2, 25};
    fm_packing *best = pack(2, lengths, 10, FM_PACK_BEST_FIT, FM_PACK_SPLIT);
    assert_int_equal(fm_packing_sequence_count(best), 3);
    assert_sequence(best, 0, 1, (const fm_piece[]){{1, 0, 10}});
    assert_sequence(best, 1, 1, (const fm_piece[]){{1, 10, 10}});
    assert_sequence(best, 2, 2, (const fm_piece[]){{0, 0, 2}, {1, 20, 5}});
    fm_packing *arrival = pack(2, lengths, 10, FM_PACK_ARRIVAL, FM_PACK_SPLIT);
    assert_int_equal(fm_packing_sequence_count(arrival), 4);
    assert_sequence(arrival, 0, 1, (const fm_piece[]){{0, 0, 2}});
    assert_sequence(arrival, 3, 1, (const fm_piece[]){{1, 20, 5}});
    fm_packing_free(best);
    fm_packing_free(arrival);
}

static void nothing_packs_into_no_sequence(void **state) {
    (void)state;
    static const int64_t zeros[] = {0, 0, 0};
    for (int policy = FM_PACK_BEST_FIT; policy <= FM_PACK_ARRIVAL; policy++) {
        fm_packing *none = pack(0, NULL, 10, (fm_pack_policy)policy, FM_PACK_REFUSE);
        fm_packing *empty = pack(3, zeros, 10, (fm_pack_policy)policy, FM_PACK_REFUSE);
        assert_int_equal(fm_packing_sequence_count(none), 0);
        assert_int_equal(fm_packing_sequence_count(empty), 0);
        fm_packing_free(none);
        fm_packing_free(empty);
    }
    assert_int_equal(fm_packing_sequence_count(NULL), 0);
    assert_int_equal(fm_packing_capacity(NULL), 0);
    fm_packing_free(NULL);
}

static void wrong_arguments_are_named(void **state) {
    (void)state;
    static const int64_t lengths[] = {3, 11, -4}, huge[] = {5, INT64_MAX}, sums[] = {INT32_MAX, 1};
    static const struct {
        int64_t n;
        const int64_t *lengths;
        int64_t capacity;
        int policy, overlong;
        fm_status status;
        const char *message;
    } cases[] = {
        {-1, lengths, 10, 0, 0, FM_ERROR_ARGUMENT, "n: is -1, needs 0 or more"},
        {1, NULL, 10, 0, 0, FM_ERROR_ARGUMENT, "lengths: is NULL"},
        {1, lengths, 0, 0, 0, FM_ERROR_ARGUMENT, "capacity: is 0, needs 1 .. 2^31 - 1"},
        {1, lengths, -5, 0, 0, FM_ERROR_ARGUMENT, "capacity: is -5, needs 1 .. 2^31 - 1"},
        {1, lengths, INT64_C(1) << 31, 0, 0, FM_ERROR_ARGUMENT, "capacity: is 2147483648, needs 1 .. 2^31 - 1"},
        {1, lengths, 10, 2, 0, FM_ERROR_ARGUMENT, "policy: is 2, needs FM_PACK_BEST_FIT or FM_PACK_ARRIVAL"},
        {1, lengths, 10, 0, 9, FM_ERROR_ARGUMENT, "overlong: is 9, needs FM_PACK_REFUSE or FM_PACK_SPLIT"},
        {3, lengths, 10, 0, 0, FM_ERROR_ARGUMENT, "lengths[1]: is 11, capacity is 10 (FM_PACK_SPLIT cuts longer documents)"},
        {3, lengths, 10, 1, 1, FM_ERROR_ARGUMENT, "lengths[2]: is -4, needs 0 or more"},
        {2, huge, 10, 0, 0, FM_ERROR_ARGUMENT,
         "lengths[1]: is 9223372036854775807, capacity is 10 (FM_PACK_SPLIT cuts longer documents)"},
        {2, huge, 10, 0, 1, FM_ERROR_LIMIT,
         "lengths[1]: is 9223372036854775807, with it there are more than 2^31 - 1 pieces of at most 10 tokens"},
        {2, huge, INT32_MAX, 0, 1, FM_ERROR_LIMIT,
         "lengths[1]: is 9223372036854775807, with it there are more than 2^31 - 1 pieces of at most 2147483647 tokens"},
        {2, sums, 1, 1, 1, FM_ERROR_LIMIT, "lengths[1]: is 1, with it there are more than 2^31 - 1 pieces of at most 1 tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fm_packing *packing = NULL;
        assert_int_equal(fm_pack_lengths(cases[i].n, cases[i].lengths, cases[i].capacity, (fm_pack_policy)cases[i].policy,
                                         (fm_pack_overlong)cases[i].overlong, &packing),
                         cases[i].status);
        assert_string_equal(fm_error_message(), cases[i].message);
        assert_null(packing);
    }
    assert_int_equal(fm_pack_lengths(1, lengths, 10, FM_PACK_BEST_FIT, FM_PACK_REFUSE, NULL), FM_ERROR_ARGUMENT);
    assert_string_equal(fm_error_message(), "out: is NULL");
}

static void the_sequence_accessor_checks_its_arguments(void **state) {
    (void)state;
    static const int64_t lengths[] = {3, 9};
    fm_packing *packing = pack(2, lengths, 10, FM_PACK_BEST_FIT, FM_PACK_REFUSE);
    const fm_piece *pieces = NULL;
    int64_t count = -1;
    assert_int_equal(fm_packing_sequence(packing, 2, &pieces, &count), FM_ERROR_ARGUMENT);
    assert_string_equal(fm_error_message(), "sequence: is 2, the packing has 2");
    assert_int_equal(fm_packing_sequence(packing, -1, &pieces, &count), FM_ERROR_ARGUMENT);
    assert_string_equal(fm_error_message(), "sequence: is -1, the packing has 2");
    assert_int_equal(fm_packing_sequence(NULL, 0, &pieces, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_packing_sequence(packing, 0, NULL, &count), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_packing_sequence(packing, 0, &pieces, NULL), FM_ERROR_ARGUMENT);
    assert_null(pieces);
    assert_int_equal(count, -1);
    fm_packing_free(packing);
}

static void documents_of_the_largest_lengths_pack(void **state) {
    (void)state;
    static const int64_t lengths[] = {INT32_MAX, INT32_MAX - 1, 1, INT64_C(3) * INT32_MAX + 5};
    fm_packing *packing = pack(4, lengths, INT32_MAX, FM_PACK_BEST_FIT, FM_PACK_SPLIT);
    assert_int_equal(fm_packing_sequence_count(packing), 6);
    assert_complete(packing, 4, lengths);
    fm_packing_free(packing);
}

/* Short documents of skewed lengths, as chats are: nearly every sequence is full but for the last. */
static void short_documents_leave_less_than_a_hundredth_empty(void **state) {
    (void)state;
    enum { DOCUMENTS = 20000 };
    test_random random = {8};
    int64_t *lengths = calloc(DOCUMENTS, sizeof *lengths), tokens = 0;
    assert_non_null(lengths);
    for (int64_t d = 0; d < DOCUMENTS; d++) {
        const int64_t magnitude = random_integer(&random, 3, 10);
        lengths[d] = random_integer(&random, INT64_C(1) << magnitude, INT64_C(2) << magnitude);
        tokens += lengths[d];
    }
    for (int64_t capacity = 8192; capacity <= 32768; capacity *= 4) {
        fm_packing *packing = pack(DOCUMENTS, lengths, capacity, FM_PACK_BEST_FIT, FM_PACK_REFUSE);
        const int64_t sequences = fm_packing_sequence_count(packing);
        assert_complete(packing, DOCUMENTS, lengths);
        assert_true((double)tokens >= 0.99 * (double)(sequences * capacity));
        assert_int_equal(sequences, (tokens + capacity - 1) / capacity); /* no packing has fewer */
        fm_packing_free(packing);
    }
    free(lengths);
}

static double processor_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Documents of about half the capacity keep many sequences open, the worst case for the search. */
static void a_million_documents_pack_in_seconds(void **state) {
    (void)state;
    enum { DOCUMENTS = 1000000 };
    test_random random = {9};
    int64_t *lengths = calloc(DOCUMENTS, sizeof *lengths);
    assert_non_null(lengths);
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t d = 0; d < DOCUMENTS; d++) {
            lengths[d] = kind == 0 ? random_integer(&random, 1, 1 << 20) : kind == 1 ? 1 + d % 4096 : (1 << 19) + d % (1 << 19);
        }
        const double start = processor_seconds();
        fm_packing *packing = pack(DOCUMENTS, lengths, 1 << 20, FM_PACK_BEST_FIT, FM_PACK_REFUSE);
        const double seconds = processor_seconds() - start;
        assert_complete(packing, DOCUMENTS, lengths);
        fm_packing_free(packing);
        print_message("%d documents, kind %d: %.2f s\n", DOCUMENTS, kind, seconds);
        assert_true(seconds < 10.0); /* takes below one; quadratic time would take hours */
    }
    free(lengths);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_fit_is_what_its_definition_says),
        cmocka_unit_test(every_token_is_placed_once),
        cmocka_unit_test(best_fit_fills_the_fullest_sequence_first),
        cmocka_unit_test(arrival_order_never_goes_back),
        cmocka_unit_test(long_documents_are_cut_into_full_pieces_and_a_rest),
        cmocka_unit_test(nothing_packs_into_no_sequence),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(the_sequence_accessor_checks_its_arguments),
        cmocka_unit_test(documents_of_the_largest_lengths_pack),
        cmocka_unit_test(short_documents_leave_less_than_a_hundredth_empty),
        cmocka_unit_test(a_million_documents_pack_in_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

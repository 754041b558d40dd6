/* Packed questions, and what stands beside packed tokens: ids, positions, labels, masks. */
#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

#include <flashmask/masks.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ANSWERS = 3, MOST_DOCUMENTS = 24, MOST_CAPACITY = 64 };

/* A random input and its packing. */
typedef struct pack_case {
    bool is_questions;
    int64_t n, capacity;
    int64_t lengths[MOST_DOCUMENTS]; /* of documents, or of questions with their answers */
    fm_question questions[MOST_DOCUMENTS];
    int64_t answers[MOST_DOCUMENTS][MOST_ANSWERS];
    fm_packing *packing;
} pack_case;

/* Any part may be empty. */
static void draw_question(test_random *random, pack_case *c, int64_t k) {
    fm_question *q = &c->questions[k];
    int64_t left = random_integer(random, 0, c->capacity);
    *q = (fm_question){.length = random_integer(random, 0, left),
                       .answers = random_integer(random, 0, MOST_ANSWERS),
                       .answer_lengths = c->answers[k]};
    left -= q->length;
    c->lengths[k] = q->length;
    for (int64_t a = 0; a < q->answers; a++) {
        c->answers[k][a] = random_chance(random, 0.2) ? 0 : random_integer(random, 0, left);
        left -= c->answers[k][a];
        c->lengths[k] += c->answers[k][a];
    }
}

static void draw_case(test_random *random, bool is_questions, pack_case *c) {
    const fm_pack_policy policy = random_chance(random, 0.5) ? FM_PACK_BEST_FIT : FM_PACK_ARRIVAL;
    *c = (pack_case){.is_questions = is_questions, .capacity = random_integer(random, 1, MOST_CAPACITY)};
    c->n = random_integer(random, 1, MOST_DOCUMENTS);
    for (int64_t k = 0; k < c->n; k++) {
        c->lengths[k] = random_integer(random, 0, random_chance(random, 0.1) ? 3 * c->capacity : c->capacity / 2);
        if (is_questions) {
            draw_question(random, c, k);
        }
    }
    succeed(is_questions ? fm_pack_questions(c->n, c->questions, c->capacity, policy, &c->packing)
                         : fm_pack_lengths(c->n, c->lengths, c->capacity, policy, FM_PACK_SPLIT, &c->packing));
}

/* Which piece and which part of it a token is in; part 0 is the question or the document, part 1 the first answer. */
typedef struct token {
    int32_t piece, part; /* piece -1: padding */
} token;

/* One sequence: its tokens as a plain walk over the pieces finds them, and the library's arrays. */
typedef struct sequence {
    const pack_case *c;
    token tokens[MOST_CAPACITY];
    int32_t document_ids[MOST_CAPACITY], position_ids[MOST_CAPACITY], predicted_by[MOST_CAPACITY];
    uint8_t labels[MOST_CAPACITY];
} sequence;

static void read_sequence(const pack_case *c, int64_t s, sequence *out) {
    const fm_piece *pieces;
    int64_t count, t = 0;
    memset(out, 0x55, sizeof *out);
    out->c = c;
    succeed(fm_packing_sequence(c->packing, s, &pieces, &count));
    for (int64_t k = 0; k < count; k++) {
        const fm_question *q = &c->questions[pieces[k].document];
        const int64_t parts = c->is_questions ? 1 + q->answers : 1;
        for (int64_t part = 0; part < parts; part++) {
            const int64_t length = !c->is_questions ? pieces[k].length : part == 0 ? q->length : q->answer_lengths[part - 1];
            for (int64_t i = 0; i < length; i++) {
                out->tokens[t++] = (token){(int32_t)k, (int32_t)part};
            }
        }
    }
    for (; t < c->capacity; t++) {
        out->tokens[t] = (token){-1, 0};
    }
    fm_packed_arrays arrays = FM_PACKED_ARRAYS_INIT;
    arrays.document_ids = out->document_ids;
    arrays.position_ids = out->position_ids;
    arrays.predicted_by = out->predicted_by;
    arrays.labels = out->labels;
    succeed(fm_packing_arrays(c->packing, s, &arrays));
}

static bool sees_causally(const void *parameters, int64_t b, int64_t h, int64_t i, int64_t j) {
    const sequence *s = (const sequence *)parameters + b;
    const token row = s->tokens[i], key = s->tokens[j];
    (void)h;
    return row.piece >= 0 && row.piece == key.piece && j <= i && (key.part == 0 || key.part == row.part);
}

static bool sees_both_ways(const void *parameters, int64_t b, int64_t h, int64_t i, int64_t j) {
    const sequence *s = (const sequence *)parameters + b;
    const token row = s->tokens[i], key = s->tokens[j];
    return sees_causally(parameters, b, h, i, j) || (row.piece >= 0 && row.piece == key.piece && row.part == 0 && key.part == 0);
}

/* What token t sees of its sequence, but for itself. */
static int64_t context(const sequence *s, int64_t t, bool seen[MOST_CAPACITY]) {
    int64_t count = 0;
    for (int64_t j = 0; j < s->c->capacity; j++) {
        seen[j] = j != t && sees_causally(s, 0, 0, t, j);
        count += seen[j];
    }
    return count;
}

/* A token is predicted by the one that has seen exactly what the token itself sees before it, and stands as many tokens from
 * its start as it sees. */
static void assert_arrays(const sequence *s) {
    bool before[MOST_CAPACITY], predictor[MOST_CAPACITY];
    for (int64_t t = 0; t < s->c->capacity; t++) {
        const int64_t seen = context(s, t, before);
        assert_int_equal(s->document_ids[t], s->tokens[t].piece);
        assert_int_equal(s->position_ids[t], seen);
        if (seen == 0) {
            assert_int_equal(s->predicted_by[t], -1);
        } else {
            assert_in_range(s->predicted_by[t], 0, t - 1);
            context(s, s->predicted_by[t], predictor);
            predictor[s->predicted_by[t]] = true;
            assert_memory_equal(predictor, before, (size_t)s->c->capacity * sizeof *before);
        }
        assert_int_equal(s->labels[t], seen > 0 && (!s->c->is_questions || s->tokens[t].part > 0));
    }
}

static void arrays_and_masks_follow_the_tokens(void **state) {
    (void)state;
    test_random random = {1};
    sequence *sequences = calloc(4 * MOST_DOCUMENTS, sizeof *sequences); /* no document has more than 4 pieces */
    assert_non_null(sequences);
    for (int i = 0; i < 400; i++) {
        pack_case c;
        draw_case(&random, i % 2 == 0, &c);
        const int64_t count = fm_packing_sequence_count(c.packing);
        for (int64_t s = 0; s < count; s++) {
            read_sequence(&c, s, &sequences[s]);
            assert_arrays(&sequences[s]);
        }
        for (int causal = 0; causal < 2 && count > 0; causal++) {
            const int64_t first = random_integer(&random, 0, count - 1), items = random_integer(&random, 1, count - first);
            fm_mask *mask;
            succeed(fm_packing_mask(c.packing, first, items, causal == 1, &mask));
            assert_int_equal(fm_mask_get_shape(mask).batch, items);
            assert_int_equal(fm_mask_get_shape(mask).rows, c.capacity);
            assert_mask_follows(mask, causal == 1 ? sees_causally : sees_both_ways, sequences + first);
        }
        fm_packing_free(c.packing);
    }
    free(sequences);
}

/* The mask of a document or question that is alone. */
static fm_mask *lone_mask(const pack_case *c, const fm_piece *piece, bool causal) {
    fm_mask *mask;
    succeed(c->is_questions ? fm_mask_share_question(1, &c->questions[piece->document], !causal, 0, &mask)
                            : fm_mask_documents(1, &piece->length, causal, 0, &mask));
    return mask;
}

/* https://github.com/MeetKai/functionary/issues/265: packed documents must be as if each were alone. */
static void assert_made_of_lone_masks(const pack_case *c, int64_t s, bool causal) {
    const fm_piece *pieces;
    fm_mask *packed;
    int64_t count, pairs, start = 0, all_pairs;
    succeed(fm_packing_sequence(c->packing, s, &pieces, &count));
    succeed(fm_packing_mask(c->packing, s, 1, causal, &packed));
    succeed(fm_mask_visible_pairs(packed, &all_pairs));
    uint8_t *dense = calloc((size_t)(c->capacity * c->capacity), 1), *alone = calloc((size_t)(c->capacity * c->capacity), 1);
    assert_true(dense != NULL && alone != NULL);
    dense_of_mask(packed, dense);
    for (int64_t k = 0; k < count; k++) {
        const int64_t length = pieces[k].length;
        fm_mask *mask = lone_mask(c, &pieces[k], causal);
        dense_of_mask(mask, alone);
        for (int64_t i = 0; i < length; i++) {
            assert_memory_equal(dense + (start + i) * c->capacity + start, alone + i * length, (size_t)length);
        }
        succeed(fm_mask_visible_pairs(mask, &pairs));
        all_pairs -= pairs;
        start += length;
        fm_mask_free(mask);
    }
    assert_int_equal(all_pairs, 0); /* nothing is visible outside of the documents */
    free(dense);
    free(alone);
    fm_mask_free(packed);
}

static void packed_masks_are_the_masks_of_lone_documents(void **state) {
    (void)state;
    test_random random = {2};
    for (int i = 0; i < 100; i++) {
        pack_case c;
        draw_case(&random, i % 2 == 0, &c);
        for (int64_t s = 0; s < fm_packing_sequence_count(c.packing); s++) {
            assert_made_of_lone_masks(&c, s, i % 4 < 2);
        }
        fm_packing_free(c.packing);
    }
}

/* Equal ids at either end mean padding, so that single tokens there cannot be told from it, nor one token of padding from a
 * document. */
static bool positions_tell_documents(const pack_case *c, int64_t s, bool *has_padding) {
    const fm_piece *pieces;
    int64_t count, padding = c->capacity;
    succeed(fm_packing_sequence(c->packing, s, &pieces, &count));
    for (int64_t k = 0; k < count; k++) {
        padding -= pieces[k].length;
    }
    *has_padding = padding > 0;
    return padding == 0 || (padding > 1 && pieces[0].length > 1 && pieces[count - 1].length > 1);
}

static void ids_give_the_mask_of_the_documents(void **state) {
    (void)state;
    test_random random = {3};
    int64_t by_positions = 0, sequences = 0;
    for (int i = 0; i < 300; i++) {
        const int32_t padding_id = MOST_DOCUMENTS * 4;
        pack_case c;
        draw_case(&random, false, &c);
        for (int64_t s = 0; s < fm_packing_sequence_count(c.packing); s++, sequences++) {
            const bool causal = s % 2 == 0;
            bool has_padding;
            sequence packed;
            fm_mask *mask, *from_documents, *from_positions;
            read_sequence(&c, s, &packed);
            succeed(fm_packing_mask(c.packing, s, 1, causal, &mask));
            for (int64_t t = 0; t < c.capacity; t++) {
                packed.document_ids[t] = packed.document_ids[t] == -1 ? padding_id : packed.document_ids[t];
            }
            succeed(fm_mask_from_document_ids(1, c.capacity, packed.document_ids, padding_id, causal, NULL, &from_documents));
            assert_true(fm_mask_equal(mask, from_documents));
            fm_mask_free(from_documents);
            if (positions_tell_documents(&c, s, &has_padding)) {
                succeed(fm_mask_from_position_ids(1, c.capacity, packed.position_ids, causal, has_padding, &from_positions));
                assert_true(fm_mask_equal(mask, from_positions));
                fm_mask_free(from_positions);
                by_positions++;
            }
            fm_mask_free(mask);
        }
        fm_packing_free(c.packing);
    }
    assert_true(2 * by_positions > sequences);
}

static void the_example_of_the_header_is_right(void **state) {
    (void)state;
    const int64_t first[] = {2, 3}, second[] = {1};
    const fm_question questions[] = {{2, 2, first}, {1, 1, second}};
    static const int32_t documents[] = {0, 0, 0, 0, 0, 0, 0, 1, 1, -1}, positions[] = {0, 1, 2, 3, 2, 3, 4, 0, 1, 0};
    static const int32_t predicted_by[] = {-1, 0, 1, 2, 1, 4, 5, -1, 7, -1};
    static const uint8_t labels[] = {0, 0, 1, 1, 1, 1, 1, 0, 1, 0};
    int32_t ids[3][10];
    uint8_t counts[10];
    fm_packing *packing;
    succeed(fm_pack_questions(2, questions, 10, FM_PACK_BEST_FIT, &packing));
    assert_int_equal(fm_packing_sequence_count(packing), 1);
    fm_packed_arrays arrays = {sizeof arrays, ids[0], ids[1], ids[2], counts};
    succeed(fm_packing_arrays(packing, 0, &arrays));
    assert_memory_equal(ids[0], documents, sizeof documents);
    assert_memory_equal(ids[1], positions, sizeof positions);
    assert_memory_equal(ids[2], predicted_by, sizeof predicted_by);
    assert_memory_equal(counts, labels, sizeof labels);
    fm_packing_free(packing);
}

static void questions_are_placed_as_documents_of_their_sums(void **state) {
    (void)state;
    test_random random = {4};
    for (int i = 0; i < 200; i++) {
        const fm_pack_policy policy = i % 2 ? FM_PACK_BEST_FIT : FM_PACK_ARRIVAL;
        pack_case c;
        fm_packing *questions, *documents;
        draw_case(&random, true, &c);
        succeed(fm_pack_questions(c.n, c.questions, c.capacity, policy, &questions));
        succeed(fm_pack_lengths(c.n, c.lengths, c.capacity, policy, FM_PACK_REFUSE, &documents));
        assert_int_equal(fm_packing_sequence_count(questions), fm_packing_sequence_count(documents));
        for (int64_t s = 0; s < fm_packing_sequence_count(questions); s++) {
            const fm_piece *a, *b;
            int64_t count_a, count_b;
            succeed(fm_packing_sequence(questions, s, &a, &count_a));
            succeed(fm_packing_sequence(documents, s, &b, &count_b));
            assert_int_equal(count_a, count_b);
            assert_memory_equal(a, b, (size_t)count_a * sizeof *a);
        }
        fm_packing_free(questions);
        fm_packing_free(documents);
        fm_packing_free(c.packing);
    }
}

static void lengths_are_copied(void **state) {
    (void)state;
    int64_t answers[] = {2, 3};
    fm_question question = {2, 2, answers};
    int32_t positions[8];
    fm_packing *packing;
    succeed(fm_pack_questions(1, &question, 8, FM_PACK_BEST_FIT, &packing));
    answers[0] = answers[1] = question.length = 1;
    question.answer_lengths = NULL;
    fm_packed_arrays arrays = FM_PACKED_ARRAYS_INIT;
    arrays.position_ids = positions;
    succeed(fm_packing_arrays(packing, 0, &arrays));
    assert_memory_equal(positions, ((const int32_t[]){0, 1, 2, 3, 2, 3, 4, 0}), sizeof positions);
    fm_packing_free(packing);
}

/* An answer to nothing starts a text: no token predicts its first one. Nothing at all is in no sequence. */
static void empty_parts_are_legal(void **state) {
    (void)state;
    static const int64_t both[] = {2, 1}, hollow[] = {0, 2, 0}, none[] = {0, 0};
    static const fm_question questions[] = {{0, 2, both}, {3, 0, NULL}, {0, 0, NULL}, {1, 3, hollow}, {0, 2, none}};
    int32_t predicted_by[10], positions[10];
    uint8_t labels[10];
    const fm_piece *pieces;
    int64_t count;
    fm_packing *packing;
    succeed(fm_pack_questions(5, questions, 10, FM_PACK_ARRIVAL, &packing));
    assert_int_equal(fm_packing_sequence_count(packing), 1);
    succeed(fm_packing_sequence(packing, 0, &pieces, &count));
    assert_int_equal(count, 3);
    fm_packed_arrays arrays = {sizeof arrays, NULL, positions, predicted_by, labels};
    succeed(fm_packing_arrays(packing, 0, &arrays));
    assert_memory_equal(positions, ((const int32_t[]){0, 1, 0, 0, 1, 2, 0, 1, 2, 0}), sizeof positions);
    assert_memory_equal(predicted_by, ((const int32_t[]){-1, 0, -1, -1, 3, 4, -1, 6, 7, -1}), sizeof predicted_by);
    assert_memory_equal(labels, ((const uint8_t[]){0, 1, 0, 0, 0, 0, 0, 1, 1, 0}), sizeof labels);
    fm_packing_free(packing);
    succeed(fm_pack_questions(0, NULL, 10, FM_PACK_BEST_FIT, &packing));
    assert_int_equal(fm_packing_sequence_count(packing), 0);
    fm_packing_free(packing);
}

/* Each piece of a cut document counts from 0: it is a document of its own. */
static void pieces_of_a_cut_document_start_anew(void **state) {
    (void)state;
    const int64_t length = 6;
    int32_t positions[4], documents[4];
    fm_packing *packing;
    succeed(fm_pack_lengths(1, &length, 4, FM_PACK_BEST_FIT, FM_PACK_SPLIT, &packing));
    fm_packed_arrays arrays = {sizeof arrays, documents, positions, NULL, NULL};
    succeed(fm_packing_arrays(packing, 1, &arrays));
    assert_memory_equal(positions, ((const int32_t[]){0, 1, 0, 0}), sizeof positions);
    assert_memory_equal(documents, ((const int32_t[]){0, 0, -1, -1}), sizeof documents);
    fm_packing_free(packing);
}

static void wrong_questions_are_named(void **state) {
    (void)state;
    static const int64_t good[] = {2, 3}, negative[] = {2, -3}, huge[] = {INT64_C(1) << 31, 1};
    static const int64_t large[] = {INT32_MAX, INT32_MAX, INT32_MAX};
    static const fm_question bad[] = {{-1, 2, good},    {2, -1, good},         {2, 2, NULL},
                                      {2, 2, negative}, {2, 2, huge},          {INT64_MAX, 0, NULL},
                                      {6, 2, good},     {INT32_MAX, 3, large}, {2, INT64_MAX, good}};
    static const char *const messages[] = {"questions[1].length: is -1, needs 0 .. 2^31 - 1",
                                           "questions[1].answers: is -1, needs 0 .. 2^31 - 1",
                                           "questions[1].answer_lengths: is NULL, needs 2 entries",
                                           "questions[1].answer_lengths[1]: is -3, needs 0 .. 2^31 - 1",
                                           "questions[1].answer_lengths[0]: is 2147483648, needs 0 .. 2^31 - 1",
                                           "questions[1].length: is 9223372036854775807, needs 0 .. 2^31 - 1",
                                           "questions[1]: is 11 tokens with its answers, capacity is 10",
                                           "questions[1]: is 8589934588 tokens with its answers, capacity is 10",
                                           "questions[1].answers: is 9223372036854775807, needs 0 .. 2^31 - 1"};
    fm_packing *packing = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const fm_question questions[] = {{2, 2, good}, bad[i]};
        refuse(fm_pack_questions(2, questions, 10, FM_PACK_BEST_FIT, &packing), FM_ERROR_ARGUMENT, messages[i]);
    }
    const fm_question question = {2, 2, good};
    refuse(fm_pack_questions(-1, &question, 10, FM_PACK_BEST_FIT, &packing), FM_ERROR_ARGUMENT, "n: is -1");
    refuse(fm_pack_questions(1, NULL, 10, FM_PACK_BEST_FIT, &packing), FM_ERROR_ARGUMENT, "questions: is NULL");
    refuse(fm_pack_questions(1, &question, 0, FM_PACK_BEST_FIT, &packing), FM_ERROR_ARGUMENT, "capacity: is 0");
    refuse(fm_pack_questions(1, &question, 10, (fm_pack_policy)7, &packing), FM_ERROR_ARGUMENT, "policy: is 7");
    refuse(fm_pack_questions(1, &question, 10, FM_PACK_BEST_FIT, NULL), FM_ERROR_ARGUMENT, "out: is NULL");
    assert_null(packing);
}

static void wrong_sequences_are_named_and_nothing_is_written(void **state) {
    (void)state;
    static const int64_t lengths[] = {3, 9};
    int32_t ids[10] = {42};
    fm_mask *mask = NULL;
    fm_packing *packing;
    succeed(fm_pack_lengths(2, lengths, 10, FM_PACK_BEST_FIT, FM_PACK_REFUSE, &packing));
    fm_packed_arrays arrays = {sizeof arrays, ids, NULL, NULL, NULL}, other_size = {8, ids, NULL, NULL, NULL};
    refuse(fm_packing_arrays(packing, 2, &arrays), FM_ERROR_ARGUMENT, "sequence: is 2, the packing has 2");
    refuse(fm_packing_arrays(packing, -1, &arrays), FM_ERROR_ARGUMENT, "sequence: is -1, the packing has 2");
    refuse(fm_packing_arrays(packing, 0, &other_size), FM_ERROR_ARGUMENT, "out.size: is 8, needs 40");
    refuse(fm_packing_arrays(packing, 0, NULL), FM_ERROR_ARGUMENT, "out: is NULL");
    refuse(fm_packing_arrays(NULL, 0, &arrays), FM_ERROR_ARGUMENT, "packing: is NULL");
    refuse(fm_packing_mask(packing, 2, 1, true, &mask), FM_ERROR_ARGUMENT, "first_sequence: is 2, the packing has 2");
    refuse(fm_packing_mask(packing, -1, 1, true, &mask), FM_ERROR_ARGUMENT, "first_sequence: is -1, the packing has 2");
    refuse(fm_packing_mask(packing, 1, 2, true, &mask), FM_ERROR_ARGUMENT, "count: is 2, needs 1 .. 1");
    refuse(fm_packing_mask(packing, 0, 0, true, &mask), FM_ERROR_ARGUMENT, "count: is 0, needs 1 .. 2");
    refuse(fm_packing_mask(packing, 1, INT64_MAX, true, &mask), FM_ERROR_ARGUMENT, "count: is 9223372036854775807");
    refuse(fm_packing_mask(packing, 0, 1, true, NULL), FM_ERROR_ARGUMENT, "out: is NULL");
    refuse(fm_packing_mask(NULL, 0, 1, true, &mask), FM_ERROR_ARGUMENT, "packing: is NULL");
    assert_int_equal(ids[0], 42);
    assert_null(mask);
    fm_packing_free(packing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_and_masks_follow_the_tokens),
        cmocka_unit_test(packed_masks_are_the_masks_of_lone_documents),
        cmocka_unit_test(ids_give_the_mask_of_the_documents),
        cmocka_unit_test(the_example_of_the_header_is_right),
        cmocka_unit_test(questions_are_placed_as_documents_of_their_sums),
        cmocka_unit_test(lengths_are_copied),
        cmocka_unit_test(empty_parts_are_legal),
        cmocka_unit_test(pieces_of_a_cut_document_start_anew),
        cmocka_unit_test(wrong_questions_are_named),
        cmocka_unit_test(wrong_sequences_are_named_and_nothing_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

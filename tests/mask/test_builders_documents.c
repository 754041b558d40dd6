/* Builders of masks of packed documents, against the words of their contracts. */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/dense.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

enum { DRAWS = 400, MOST_PARTS = 12, LONGEST_PART = 12, MOST_TOKENS = MOST_PARTS * (2 * LONGEST_PART) };

/* Every token's place, written down token by token as the documents are laid out. */
typedef struct layout {
    int64_t n, lengths[MOST_PARTS], prefix[MOST_PARTS], padding, tokens, sink, window;
    int64_t spans, offset[MOST_PARTS], span_length[MOST_PARTS];
    int document[MOST_TOKENS];  /* -1: padding */
    int part[MOST_TOKENS];      /* prefix 0 or rest 1; question 0 or answer 1, 2, ...; image span or -1 */
    int64_t place[MOST_TOKENS]; /* in its document */
    bool causal, bidirectional_question;
} layout;

static int64_t draw_length(test_random *r) { return random_chance(r, 0.2) ? 0 : random_integer(r, 1, LONGEST_PART); }

static void add_tokens(layout *t, int document, int part, int64_t count) {
    const int64_t start = t->tokens;
    for (int64_t k = 0; k < count; k++, t->tokens++) {
        const bool continues = k > 0 || (start > 0 && t->document[start - 1] == document);
        t->document[t->tokens] = document;
        t->part[t->tokens] = part;
        t->place[t->tokens] = continues ? t->place[t->tokens - 1] + 1 : 0;
    }
}

/* Zero documents, documents of no tokens and padding of none come up. */
static layout draw_documents(test_random *r) {
    layout t = {.n = random_integer(r, 0, 5), .causal = random_chance(r, 0.5)};
    for (int64_t k = 0; k < t.n; k++) {
        t.lengths[k] = draw_length(r);
        t.prefix[k] = random_integer(r, 0, t.lengths[k]);
        add_tokens(&t, (int)k, 0, t.prefix[k]);
        add_tokens(&t, (int)k, 1, t.lengths[k] - t.prefix[k]);
    }
    t.sink = random_integer(r, 0, 4);
    t.window = random_chance(r, 0.1) ? INT64_MAX : random_integer(r, 0, 6);
    return t;
}

static void pad(layout *t, test_random *r) {
    t->padding = random_chance(r, 0.5) ? 0 : random_integer(r, 1, 5);
    add_tokens(t, -1, 0, t->padding);
}

static bool same_document(const layout *t, int64_t i, int64_t j) {
    return t->document[i] >= 0 && t->document[i] == t->document[j];
}

static bool documents_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const layout *t = v;
    (void)b, (void)h;
    return same_document(t, i, j) && (!t->causal || j <= i);
}

static bool sink_window_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const layout *t = v;
    (void)b, (void)h;
    return same_document(t, i, j) && j <= i && (t->place[j] < t->sink || t->place[i] - t->place[j] < t->window);
}

static bool prefix_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const layout *t = v;
    (void)b, (void)h;
    return same_document(t, i, j) && (t->part[j] == 0 || j <= i);
}

static bool blockwise_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const layout *t = v;
    (void)b, (void)h;
    return j <= i && (t->document[i] == t->document[j] || t->document[i] == t->n - 1);
}

static void documents_follow_their_contracts(void **state) {
    test_random r = {11};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        layout t = draw_documents(&r);
        fm_mask *mask = NULL;
        succeed(fm_mask_causal_blockwise(t.n, t.lengths, &mask));
        assert_int_equal(fm_mask_get_shape(mask).rows, t.tokens);
        assert_mask_follows(mask, blockwise_rule, &t);
        pad(&t, &r);
        succeed(fm_mask_documents(t.n, t.lengths, t.causal, t.padding, &mask));
        assert_int_equal(fm_mask_get_shape(mask).rows, t.tokens);
        assert_int_equal(fm_mask_get_shape(mask).columns, t.tokens);
        assert_mask_follows(mask, documents_rule, &t);
        succeed(fm_mask_documents_sink_window(t.n, t.lengths, t.sink, t.window, t.padding, &mask));
        assert_mask_follows(mask, sink_window_rule, &t);
        succeed(fm_mask_prefix_documents(t.n, t.prefix, t.lengths, t.padding, &mask));
        assert_int_equal(fm_mask_get_shape(mask).rows, t.tokens);
        assert_mask_follows(mask, prefix_rule, &t);
    }
}

/* Questions of up to 4 answers; any part may have no tokens. */
static int64_t draw_questions(test_random *r, layout *t, fm_question questions[4], int64_t answers[4][4]) {
    const int64_t n = random_integer(r, 0, 4);
    *t = (layout){.bidirectional_question = random_chance(r, 0.5)};
    for (int64_t k = 0; k < n; k++) {
        questions[k] = (fm_question){draw_length(r), random_integer(r, 0, 4), answers[k]};
        add_tokens(t, (int)k, 0, questions[k].length);
        for (int64_t a = 0; a < questions[k].answers; a++) {
            answers[k][a] = draw_length(r);
            add_tokens(t, (int)k, (int)a + 1, answers[k][a]);
        }
        if (questions[k].answers == 0) {
            questions[k].answer_lengths = NULL;
        }
    }
    return n;
}

static bool question_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const layout *t = v;
    (void)b, (void)h;
    if (!same_document(t, i, j)) {
        return false;
    }
    if (t->part[j] == 0 && t->part[i] == 0) {
        return t->bidirectional_question || j <= i;
    }
    return t->part[j] == 0 || (t->part[j] == t->part[i] && j <= i);
}

/* https://github.com/huggingface/trl/issues/3549 */
static void share_question_follows_its_contract(void **state) {
    test_random r = {12};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        layout t;
        fm_question questions[4];
        int64_t answers[4][4];
        fm_mask *mask = NULL;
        const int64_t n = draw_questions(&r, &t, questions, answers);
        pad(&t, &r);
        succeed(fm_mask_share_question(n, n > 0 ? questions : NULL, t.bidirectional_question, t.padding, &mask));
        assert_int_equal(fm_mask_get_shape(mask).rows, t.tokens);
        assert_true(fm_mask_interval_count(mask) <= 1);
        assert_mask_follows(mask, question_rule, &t);
    }
}

static void assert_questions_equal_documents(const fm_question *question, const int64_t *lengths, int64_t documents) {
    fm_mask *shared = NULL, *plain = NULL;
    succeed(fm_mask_share_question(1, question, false, 0, &shared));
    succeed(fm_mask_documents(documents, lengths, true, 0, &plain));
    assert_true(fm_mask_equal(shared, plain));
    fm_mask_free(shared);
    fm_mask_free(plain);
}

/* Without a question the answers are documents; one answer and no answer are one causal document. */
static void share_question_of_one_part_is_causal_documents(void **state) {
    const int64_t answers[] = {2, 0, 4}, one = 3, zeros[] = {0, 0};
    (void)state;
    assert_questions_equal_documents(&(fm_question){0, 3, answers}, answers, 3);
    assert_questions_equal_documents(&(fm_question){4, 1, &one}, (int64_t[]){7}, 1);
    assert_questions_equal_documents(&(fm_question){5, 0, NULL}, (int64_t[]){5}, 1);
    assert_questions_equal_documents(&(fm_question){5, 2, zeros}, (int64_t[]){5}, 1);
    assert_questions_equal_documents(&(fm_question){0, 0, NULL}, NULL, 0);
}

/* P = 3, C = 2, R = 4: rows of [P|C|R] see what they see in [P|C] and in [P|R].
 * https://github.com/frankxwang/dpo-prefix-sharing/issues/2 */
static void shared_prompt_equals_two_separate_runs(void **state) {
    const int64_t answers[] = {2, 4}, total = 9;
    uint8_t visible[81], expected[81] = {0};
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_share_question(1, &(fm_question){3, 2, answers}, false, 0, &mask));
    dense_of_mask(mask, visible);
    const int64_t chosen[] = {0, 1, 2, 3, 4}, rejected[] = {0, 1, 2, 5, 6, 7, 8};
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j <= i; j++) {
            expected[chosen[i] * total + chosen[j]] = 1;
        }
    }
    for (int i = 0; i < 7; i++) {
        for (int j = 0; j <= i; j++) {
            expected[rejected[i] * total + rejected[j]] = 1;
        }
    }
    assert_memory_equal(visible, expected, sizeof expected);
    fm_mask_free(mask);
}

static bool image_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const layout *t = v;
    (void)b, (void)h;
    return same_document(t, i, j) && (j <= i || (t->part[i] >= 0 && t->part[i] == t->part[j]));
}

/* Documents of text and spans in turn; spans of no tokens and spans that touch come up. */
static layout draw_images(test_random *r) {
    layout t = {.n = random_integer(r, 0, 4)};
    for (int64_t k = 0; k < t.n; k++) {
        const int64_t start = t.tokens;
        for (int64_t s = random_integer(r, 0, 3); s > 0; s--) {
            add_tokens(&t, (int)k, -1, random_integer(r, 0, 4));
            t.offset[t.spans] = t.tokens;
            t.span_length[t.spans] = random_integer(r, 0, 5);
            add_tokens(&t, (int)k, (int)t.spans, t.span_length[t.spans]);
            t.spans++;
        }
        add_tokens(&t, (int)k, -1, random_integer(r, 0, 4));
        t.lengths[k] = t.tokens - start;
    }
    return t;
}

static void image_spans_follow_their_contract(void **state) {
    test_random r = {13};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const layout t = draw_images(&r);
        fm_mask *mask = NULL;
        succeed(fm_mask_image_spans(t.n, t.lengths, t.spans, t.offset, t.span_length, &mask));
        assert_int_equal(fm_mask_get_shape(mask).rows, t.tokens);
        assert_true(fm_mask_interval_count(mask) <= 1);
        assert_mask_follows(mask, image_rule, &t);
    }
}

/* Spans [2, 5) and [6, 9) of 10 tokens: image 1 must not see image 2. https://github.com/huggingface/transformers/issues/39389 */
static void one_image_does_not_see_the_next(void **state) {
    const int64_t length = 10, offset[] = {2, 6}, span[] = {3, 3};
    char picture[PICTURE_BYTES];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_image_spans(1, &length, 2, offset, span, &mask));
    picture_of_mask(mask, 0, 0, picture);
    assert_string_equal(picture, "x......... / xx........ / xxxxx..... / xxxxx..... / xxxxx..... / xxxxxx.... / xxxxxxxxx. / "
                                 "xxxxxxxxx. / xxxxxxxxx. / xxxxxxxxxx");
    fm_mask_free(mask);
}

/* No length has to divide by anything. https://github.com/zhuzilin/ring-flash-attention/issues/51 */
static void documents_of_any_length_are_accepted(void **state) {
    const int64_t lengths[] = {1, 2, 3, 5};
    char picture[PICTURE_BYTES];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_documents(4, lengths, true, 0, &mask));
    picture_of_mask(mask, 0, 0, picture);
    assert_string_equal(picture, "x.......... / .x......... / .xx........ / ...x....... / ...xx...... / ...xxx..... / "
                                 "......x.... / ......xx... / ......xxx.. / ......xxxx. / ......xxxxx");
    fm_mask_free(mask);
}

/* A sink for each document. https://github.com/mit-han-lab/duo-attention/issues/3 */
static void every_document_has_its_own_sink(void **state) {
    const int64_t lengths[] = {4, 5};
    char picture[PICTURE_BYTES];
    fm_mask *mask = NULL;
    (void)state;
    succeed(fm_mask_documents_sink_window(2, lengths, 1, 2, 1, &mask));
    picture_of_mask(mask, 0, 0, picture);
    assert_string_equal(picture, "x......... / xx........ / xxx....... / x.xx...... / ....x..... / ....xx.... / ....xxx... / "
                                 "....x.xx.. / ....x..xx. / ..........");
    fm_mask_free(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_follow_their_contracts),
        cmocka_unit_test(share_question_follows_its_contract),
        cmocka_unit_test(share_question_of_one_part_is_causal_documents),
        cmocka_unit_test(shared_prompt_equals_two_separate_runs),
        cmocka_unit_test(image_spans_follow_their_contract),
        cmocka_unit_test(one_image_does_not_see_the_next),
        cmocka_unit_test(documents_of_any_length_are_accepted),
        cmocka_unit_test(every_document_has_its_own_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

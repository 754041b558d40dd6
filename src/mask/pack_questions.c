/* Packing of questions with their answers. */
#include "mask/pack.h"

#include <stdlib.h>

#include "core/memory.h"
#include "mask/builders.h"

/* *tokens: question and answers, below 2^62 + 2^31. */
static fm_status check_question(int64_t k, const fm_question *q, int64_t capacity, int64_t *tokens) {
    FM_CHECK(q->length >= 0 && q->length <= INT32_MAX, FM_ERROR_ARGUMENT, "questions[%lld].length: is %lld, needs 0 .. 2^31 - 1",
             (long long)k, (long long)q->length);
    FM_CHECK(q->answers >= 0 && q->answers <= INT32_MAX, FM_ERROR_ARGUMENT,
             "questions[%lld].answers: is %lld, needs 0 .. 2^31 - 1", (long long)k, (long long)q->answers);
    FM_CHECK(q->answers == 0 || q->answer_lengths != NULL, FM_ERROR_ARGUMENT,
             "questions[%lld].answer_lengths: is NULL, needs %lld entries", (long long)k, (long long)q->answers);
    *tokens = q->length;
    for (int64_t a = 0; a < q->answers; a++) {
        FM_CHECK(q->answer_lengths[a] >= 0 && q->answer_lengths[a] <= INT32_MAX, FM_ERROR_ARGUMENT,
                 "questions[%lld].answer_lengths[%lld]: is %lld, needs 0 .. 2^31 - 1", (long long)k, (long long)a,
                 (long long)q->answer_lengths[a]);
        *tokens += q->answer_lengths[a];
    }
    FM_CHECK(*tokens <= capacity, FM_ERROR_ARGUMENT,
             "questions[%lld]: is %lld tokens with its answers, capacity is %lld (questions are not cut)", (long long)k,
             (long long)*tokens, (long long)capacity);
    return FM_OK;
}

/* tokens[n], and how many questions have some. */
static fm_status measure(int64_t n, const fm_question *questions, int64_t capacity, int64_t *tokens, int64_t *pieces) {
    *pieces = 0;
    for (int64_t k = 0; k < n; k++) {
        FM_TRY(check_question(k, &questions[k], capacity, &tokens[k]));
        *pieces += tokens[k] > 0;
    }
    return FM_OK;
}

static fm_status keep_questions(int64_t n, const fm_question *questions, fm_packing *packing) {
    int64_t answers = 0;
    for (int64_t k = 0; k < n; k++) {
        answers += questions[k].answers;
    }
    FM_TRY(fm_allocate("packed questions", n, sizeof *packing->questions, (void **)&packing->questions));
    FM_TRY(fm_allocate("packed answers", answers, sizeof *packing->answer_lengths, (void **)&packing->answer_lengths));
    int64_t *kept = packing->answer_lengths;
    for (int64_t k = 0; k < n; k++) {
        packing->questions[k] = questions[k];
        packing->questions[k].answer_lengths = kept;
        for (int64_t a = 0; a < questions[k].answers; a++) {
            *kept++ = questions[k].answer_lengths[a];
        }
    }
    return FM_OK;
}

fm_status fm_pack_questions(int64_t n, const fm_question *questions, int64_t capacity, fm_pack_policy policy, fm_packing **out) {
    fm_packing *packing = NULL;
    int64_t *tokens = NULL, pieces;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_array("n", "questions", n, questions));
    FM_TRY(fm_pack_check(capacity, policy));
    FM_TRY(fm_allocate("question lengths", n, sizeof *tokens, (void **)&tokens));
    FM_TRY_DONE(measure(n, questions, capacity, tokens, &pieces));
    FM_TRY_DONE(fm_pack_place(n, tokens, capacity, policy, pieces, &packing));
    FM_TRY_DONE(keep_questions(n, questions, packing));
    *out = packing;
    packing = NULL;
done:
    free(tokens);
    fm_packing_free(packing);
    return status;
}

/* What a training loop needs beside the tokens of a packed sequence: ids, positions, labels, the mask. */
#include "mask/pack.h"

#include <stdlib.h>

#include "core/memory.h"

/* A piece as a question: a document is one without answers. */
static fm_question piece_parts(const fm_packing *packing, const fm_piece *piece) {
    return packing->questions != NULL ? packing->questions[piece->document] : (fm_question){.length = piece->length};
}

/* Neighbouring tokens that continue each other. */
typedef struct part {
    int64_t length;
    int32_t document, position; /* position: of its first token */
    int32_t predictor;          /* of its first token, or -1 */
    bool is_learnt;
} part;

static void write_part(const fm_packed_arrays *out, int64_t start, const part *p) {
    for (int64_t i = 0; i < p->length; i++) {
        const int64_t t = start + i;
        const int32_t predictor = i == 0 ? p->predictor : (int32_t)(t - 1);
        if (out->document_ids != NULL) {
            out->document_ids[t] = p->document;
        }
        if (out->position_ids != NULL) {
            out->position_ids[t] = p->position + (int32_t)i;
        }
        if (out->predicted_by != NULL) {
            out->predicted_by[t] = predictor;
        }
        if (out->labels != NULL) {
            out->labels[t] = p->is_learnt && predictor >= 0;
        }
    }
}

/* Returns the token after the question and its answers. */
static int64_t write_question(const fm_packed_arrays *out, int64_t start, int32_t document, const fm_question *q,
                              bool is_learnt) {
    write_part(out, start, &(part){q->length, document, 0, -1, is_learnt});
    const int32_t length = (int32_t)q->length, last = q->length > 0 ? (int32_t)start + length - 1 : -1;
    start += q->length;
    for (int64_t a = 0; a < q->answers; a++) {
        write_part(out, start, &(part){q->answer_lengths[a], document, length, last, true});
        start += q->answer_lengths[a];
    }
    return start;
}

fm_status fm_packing_arrays(const fm_packing *packing, int64_t sequence, const fm_packed_arrays *out) {
    const fm_piece *pieces;
    int64_t count, token = 0;
    fm_clear_error();
    FM_REQUIRE(packing);
    FM_REQUIRE(out);
    FM_CHECK(out->size == sizeof *out, FM_ERROR_ARGUMENT, "out.size: is %zu, needs %zu (start from FM_PACKED_ARRAYS_INIT)",
             out->size, sizeof *out);
    FM_TRY(fm_packing_sequence(packing, sequence, &pieces, &count));
    for (int64_t k = 0; k < count; k++) {
        const fm_question q = piece_parts(packing, &pieces[k]);
        token = write_question(out, token, (int32_t)k, &q, packing->questions == NULL);
    }
    for (; token < packing->capacity; token++) { /* a part of one token each: positions do not count up */
        write_part(out, token, &(part){1, -1, 0, -1, false});
    }
    return FM_OK;
}

static fm_status sequence_mask(const fm_packing *packing, int64_t sequence, bool causal, fm_mask **out) {
    const fm_piece *pieces;
    fm_question *questions;
    int64_t count, padding = packing->capacity;
    FM_TRY(fm_packing_sequence(packing, sequence, &pieces, &count));
    FM_TRY(fm_allocate("questions of a sequence", count, sizeof *questions, (void **)&questions));
    for (int64_t k = 0; k < count; k++) {
        questions[k] = piece_parts(packing, &pieces[k]);
        padding -= pieces[k].length;
    }
    const fm_status status = fm_mask_share_question(count, questions, !causal, padding, out);
    free(questions);
    return status;
}

fm_status fm_packing_mask(const fm_packing *packing, int64_t first_sequence, int64_t count, bool causal, fm_mask **out) {
    fm_mask **masks = NULL;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(packing);
    FM_REQUIRE(out);
    FM_CHECK(first_sequence >= 0 && first_sequence < packing->sequences, FM_ERROR_ARGUMENT,
             "first_sequence: is %lld, the packing has %lld", (long long)first_sequence, (long long)packing->sequences);
    FM_CHECK(count >= 1 && count <= packing->sequences - first_sequence, FM_ERROR_ARGUMENT,
             "count: is %lld, needs 1 .. %lld: the packing has %lld sequences", (long long)count,
             (long long)(packing->sequences - first_sequence), (long long)packing->sequences);
    if (count == 1) { /* saves the copy */
        return sequence_mask(packing, first_sequence, causal, out);
    }
    FM_TRY(fm_allocate("masks of sequences", count, sizeof(fm_mask *), (void **)&masks));
    for (int64_t k = 0; k < count; k++) {
        FM_TRY_DONE(sequence_mask(packing, first_sequence + k, causal, &masks[k]));
    }
    FM_TRY_DONE(fm_mask_stack_batch((const fm_mask *const *)masks, count, out));
done:
    for (int64_t k = 0; k < count; k++) {
        fm_mask_free(masks[k]);
    }
    free(masks);
    return status;
}

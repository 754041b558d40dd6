/* Masks of packed documents. Documents follow each other from token 0; Sq = Sk. */
#include "mask/builders.h"

/* A writer for documents of these lengths, of at most max_intervals. */
static fm_status open_documents(fm_mask_writer *writer, int64_t n, const int64_t *lengths, int64_t padding,
                                int64_t max_intervals) {
    int64_t total;
    FM_TRY(fm_check_documents(n, lengths, padding, &total));
    return fm_builder_open(writer, 1, total, total, max_intervals);
}

fm_status fm_mask_documents(int64_t n, const int64_t *lengths, bool causal, int64_t padding, fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(open_documents(&writer, n, lengths, padding, 1));
    fm_status status = FM_OK;
    for (int64_t k = 0, start = 0, end; k < n; k++, start = end) {
        end = start + lengths[k];
        FM_TRY_DONE(causal ? fm_write_window(&writer, 0, start, end, FM_CAUSAL, end)
                           : fm_write_rows(&writer, 0, start, end, start, end));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_documents_sink_window(int64_t n, const int64_t *lengths, int64_t sink, int64_t window, int64_t padding,
                                        fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_reach("sink", sink, &sink));
    FM_TRY(fm_check_reach("window", window, &window));
    FM_TRY(open_documents(&writer, n, lengths, padding, 1));
    fm_status status = FM_OK;
    for (int64_t k = 0, start = 0, end; k < n; k++, start = end) {
        end = start + lengths[k];
        const int64_t sink_end = sink < lengths[k] ? start + sink : end;
        FM_TRY_DONE(fm_write_window(&writer, 0, start, sink_end, FM_CAUSAL, end));
        FM_TRY_DONE(fm_write_window(&writer, 0, sink_end, end, (fm_window){window - 1, 0, 0}, end));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_prefix_documents(int64_t n, const int64_t *prefix, const int64_t *lengths, int64_t padding, fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_array("n", "prefix", n, prefix));
    FM_TRY(open_documents(&writer, n, lengths, padding, 1));
    fm_status status = FM_OK;
    for (int64_t k = 0, start = 0, end; k < n; k++, start = end) {
        end = start + lengths[k];
        if (prefix[k] < 0 || prefix[k] > lengths[k]) {
            status = fm_fail(FM_ERROR_ARGUMENT, "prefix[%lld]: is %lld, needs 0 .. lengths[%lld] (%lld)", (long long)k,
                             (long long)prefix[k], (long long)k, (long long)lengths[k]);
            goto done;
        }
        FM_TRY_DONE(fm_write_rows(&writer, 0, start, start + prefix[k], start, end));
        FM_TRY_DONE(fm_write_window(&writer, 0, start + prefix[k], end, FM_CAUSAL, end));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

fm_status fm_mask_causal_blockwise(int64_t n, const int64_t *lengths, fm_mask **out) {
    fm_mask_writer writer;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(open_documents(&writer, n, lengths, 0, 2));
    const int64_t total = writer.shape.columns, last = n > 0 ? total - lengths[n - 1] : 0;
    fm_status status = FM_OK;
    for (int64_t k = 0, start = 0, end; k < n; k++, start = end) {
        end = start + lengths[k];
        for (int64_t j = start; j < end; j++) {
            const fm_interval visible[] = {{(int32_t)j, (int32_t)end}, {(int32_t)(j > last ? j : last), (int32_t)total}};
            FM_TRY_DONE(fm_mask_writer_column(&writer, 0, 0, j, visible, 2));
        }
    }
done:
    return fm_builder_finish(&writer, status, out);
}

/* Checks the questions and adds up their parts. */
static fm_status check_questions(int64_t n, const fm_question *questions, int64_t padding, int64_t *total) {
    *total = 0;
    FM_TRY(fm_check_array("n", "questions", n, questions));
    for (int64_t k = 0; k < n; k++) {
        const fm_question *q = &questions[k];
        FM_CHECK(fm_add_length(q->length, total), FM_ERROR_ARGUMENT,
                 "questions[%lld].length: is %lld after %lld tokens, needs 0 or more and 2^31 - 1 tokens or fewer in all",
                 (long long)k, (long long)q->length, (long long)*total);
        FM_CHECK(q->answers >= 0 && q->answers <= INT32_MAX, FM_ERROR_ARGUMENT,
                 "questions[%lld].answers: is %lld, needs 0 .. 2^31 - 1", (long long)k, (long long)q->answers);
        FM_CHECK(q->answers == 0 || q->answer_lengths != NULL, FM_ERROR_ARGUMENT,
                 "questions[%lld].answer_lengths: is NULL, needs %lld entries", (long long)k, (long long)q->answers);
        for (int64_t a = 0; a < q->answers; a++) {
            FM_CHECK(fm_add_length(q->answer_lengths[a], total), FM_ERROR_ARGUMENT,
                     "questions[%lld].answer_lengths[%lld]: is %lld after %lld tokens, needs 0 or more and 2^31 - 1 tokens or "
                     "fewer in all",
                     (long long)k, (long long)a, (long long)q->answer_lengths[a], (long long)*total);
        }
    }
    FM_CHECK(fm_add_length(padding, total), FM_ERROR_ARGUMENT,
             "padding: is %lld after %lld tokens, needs 0 or more and 2^31 - 1 tokens or fewer in all", (long long)padding,
             (long long)*total);
    return FM_OK;
}

/* One question and its answers from token `start` on; *end is the token after them. */
static fm_status write_question(fm_mask_writer *writer, const fm_question *q, bool bidirectional, int64_t start, int64_t *end) {
    int64_t answer = start + q->length;
    *end = answer;
    for (int64_t a = 0; a < q->answers; a++) {
        *end += q->answer_lengths[a];
    }
    FM_TRY(bidirectional ? fm_write_rows(writer, 0, start, answer, start, *end)
                         : fm_write_window(writer, 0, start, answer, FM_CAUSAL, *end));
    for (int64_t a = 0; a < q->answers; a++) {
        const int64_t answer_end = answer + q->answer_lengths[a];
        FM_TRY(fm_write_window(writer, 0, answer, answer_end, FM_CAUSAL, answer_end));
        answer = answer_end;
    }
    return FM_OK;
}

fm_status fm_mask_share_question(int64_t n, const fm_question *questions, bool bidirectional_question, int64_t padding,
                                 fm_mask **out) {
    fm_mask_writer writer;
    int64_t total;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(check_questions(n, questions, padding, &total));
    FM_TRY(fm_builder_open(&writer, 1, total, total, 1));
    fm_status status = FM_OK;
    for (int64_t k = 0, start = 0, end; k < n; k++, start = end) {
        FM_TRY_DONE(write_question(&writer, &questions[k], bidirectional_question, start, &end));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

/* The document [start, end) and its spans, from *span on; *span becomes the first one past it. */
static fm_status write_image_document(fm_mask_writer *writer, int64_t start, int64_t end, const fm_spans *spans, int64_t *span) {
    int64_t text = start;
    for (; *span < spans->count && spans->offset[*span] < end; (*span)++) {
        const int64_t image = spans->offset[*span], image_end = image + spans->length[*span];
        FM_CHECK(image_end <= end, FM_ERROR_ARGUMENT,
                 "length[%lld]: is %lld, so span [%lld, %lld) crosses the end of its document at %lld", (long long)*span,
                 (long long)spans->length[*span], (long long)image, (long long)image_end, (long long)end);
        FM_TRY(fm_write_window(writer, 0, text, image, FM_CAUSAL, end));
        FM_TRY(fm_write_rows(writer, 0, image, image_end, image, end));
        text = image_end;
    }
    return fm_write_window(writer, 0, text, end, FM_CAUSAL, end);
}

fm_status fm_mask_image_spans(int64_t n, const int64_t *lengths, int64_t spans, const int64_t *offset, const int64_t *length,
                              fm_mask **out) {
    const fm_spans images = {spans, offset, length};
    fm_mask_writer writer;
    int64_t total;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_check_documents(n, lengths, 0, &total));
    FM_TRY(fm_check_spans(&images, total));
    FM_TRY(fm_builder_open(&writer, 1, total, total, 1));
    fm_status status = FM_OK;
    for (int64_t k = 0, start = 0, end, span = 0; k < n; k++, start = end) {
        end = start + lengths[k];
        FM_TRY_DONE(write_image_document(&writer, start, end, &images, &span));
    }
done:
    return fm_builder_finish(&writer, status, out);
}

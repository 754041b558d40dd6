#include "mask/builders.h"

fm_status fm_check_extent(const char *name, int64_t value) {
    FM_CHECK(value >= 0 && value <= INT32_MAX, FM_ERROR_ARGUMENT, "%s: is %lld, needs 0 .. 2^31 - 1", name, (long long)value);
    return FM_OK;
}

fm_status fm_check_reach(const char *name, int64_t value, int64_t *clamped) {
    FM_CHECK(value >= 0, FM_ERROR_ARGUMENT, "%s: is %lld, needs 0 or more", name, (long long)value);
    *clamped = value < INT32_MAX ? value : INT32_MAX;
    return FM_OK;
}

fm_status fm_check_array(const char *count_name, const char *array_name, int64_t n, const void *array) {
    FM_TRY(fm_check_extent(count_name, n));
    FM_CHECK(n == 0 || array != NULL, FM_ERROR_ARGUMENT, "%s: is NULL, needs %lld entries", array_name, (long long)n);
    return FM_OK;
}

bool fm_add_length(int64_t length, int64_t *total) {
    if (length < 0 || length > INT32_MAX - *total) {
        return false;
    }
    *total += length;
    return true;
}

fm_status fm_check_documents(int64_t n, const int64_t *lengths, int64_t padding, int64_t *total) {
    *total = 0;
    FM_TRY(fm_check_array("n", "lengths", n, lengths));
    for (int64_t k = 0; k < n; k++) {
        FM_CHECK(fm_add_length(lengths[k], total), FM_ERROR_ARGUMENT,
                 "lengths[%lld]: is %lld after %lld tokens, needs 0 or more and 2^31 - 1 tokens or fewer in all", (long long)k,
                 (long long)lengths[k], (long long)*total);
    }
    FM_CHECK(fm_add_length(padding, total), FM_ERROR_ARGUMENT,
             "padding: is %lld after %lld tokens, needs 0 or more and 2^31 - 1 tokens or fewer in all", (long long)padding,
             (long long)*total);
    return FM_OK;
}

fm_status fm_check_spans(const fm_spans *spans, int64_t total) {
    FM_TRY(fm_check_array("spans", "offset", spans->count, spans->offset));
    FM_TRY(fm_check_array("spans", "length", spans->count, spans->length));
    for (int64_t k = 0, end = 0; k < spans->count; k++) {
        const int64_t offset = spans->offset[k], length = spans->length[k];
        FM_CHECK(offset >= end && offset <= total, FM_ERROR_ARGUMENT,
                 "offset[%lld]: is %lld, needs %lld (end of the span before) .. %lld (end of the tokens)", (long long)k,
                 (long long)offset, (long long)end, (long long)total);
        FM_CHECK(length >= 0 && length <= total - offset, FM_ERROR_ARGUMENT,
                 "length[%lld]: is %lld, needs 0 .. %lld for a span at %lld of %lld tokens", (long long)k, (long long)length,
                 (long long)(total - offset), (long long)offset, (long long)total);
        end = offset + length;
    }
    return FM_OK;
}

fm_status fm_write_window(fm_mask_writer *writer, int64_t head, int64_t first, int64_t last, fm_window window, int64_t end) {
    for (int64_t j = first; j < last; j++) {
        const fm_interval rows = fm_window_rows(&window, j, end);
        FM_TRY(fm_mask_writer_interval(writer, 0, head, j, rows.start, rows.end));
    }
    return FM_OK;
}

fm_status fm_write_rows(fm_mask_writer *writer, int64_t head, int64_t first, int64_t last, int64_t start, int64_t end) {
    const fm_interval rows = {(int32_t)start, (int32_t)end};
    return fm_mask_writer_columns(writer, 0, head, first, last - first, &rows, 1);
}

fm_status fm_builder_open(fm_mask_writer *writer, int64_t heads, int64_t Sq, int64_t Sk, int64_t max_intervals) {
    FM_TRY(fm_check_extent("Sq", Sq));
    FM_TRY(fm_check_extent("Sk", Sk));
    FM_CHECK(heads >= 1 && heads <= INT32_MAX, FM_ERROR_ARGUMENT, "heads: is %lld, needs 1 .. 2^31 - 1", (long long)heads);
    return fm_mask_writer_open(writer, (fm_mask_shape){1, heads, Sq, Sk}, max_intervals, NULL);
}

fm_status fm_builder_finish(fm_mask_writer *writer, fm_status status, fm_mask **out) {
    if (status == FM_OK) {
        status = fm_mask_writer_finish(writer, out);
    }
    fm_mask_writer_close(writer);
    return status;
}

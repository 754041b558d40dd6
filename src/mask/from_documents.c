/* Masks of documents that follow each other: cumulative lengths and position ids. */
#include "mask/convert.h"
#include "mask/writer.h"

/* Keys [key0, key1) are seen by rows [row0, row1); with causal bottom-right: key key1 - 1 - n from row row1 - 1 - n on. */
typedef struct document {
    int64_t row0, row1, key0, key1;
} document;

static fm_status write_document(fm_mask_writer *writer, int64_t b, const document *d, bool causal) {
    for (int64_t key = d->key0; key < d->key1; key++) {
        const int64_t diagonal = d->row1 - (d->key1 - key);
        FM_TRY(fm_mask_writer_interval(writer, b, 0, key, causal && diagonal > d->row0 ? diagonal : d->row0, d->row1));
    }
    return FM_OK;
}

static fm_status check_cumulative(const char *name, const int32_t *cu, int64_t documents, int64_t length) {
    FM_CHECK(cu[0] == 0, FM_ERROR_ARGUMENT, "%s[0]: is %d, needs 0", name, cu[0]);
    for (int64_t d = 0; d < documents; d++) {
        FM_CHECK(cu[d] <= cu[d + 1], FM_ERROR_ARGUMENT, "%s[%lld]: is %d after %d, needs entries that do not descend", name,
                 (long long)d + 1, cu[d + 1], cu[d]);
    }
    FM_CHECK(cu[documents] <= length, FM_ERROR_ARGUMENT, "%s[%lld]: is %d, needs at most %lld", name, (long long)documents,
             cu[documents], (long long)length);
    return FM_OK;
}

fm_status fm_mask_from_cu_seqlens(const int32_t *cu_q, const int32_t *cu_k, int64_t documents, bool causal, int64_t Sq,
                                  int64_t Sk, fm_mask **out) {
    fm_mask_writer writer;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(cu_q);
    FM_REQUIRE(out);
    cu_k = cu_k != NULL ? cu_k : cu_q;
    const fm_mask_shape shape = {1, 1, Sq, Sk};
    FM_TRY(fm_mask_shape_check(shape));
    FM_CHECK(documents >= 0, FM_ERROR_ARGUMENT, "documents: is %lld, needs 0 or more", (long long)documents);
    FM_TRY(check_cumulative("cu_q", cu_q, documents, Sq));
    FM_TRY(check_cumulative("cu_k", cu_k, documents, Sk));
    FM_TRY(fm_mask_writer_open(&writer, shape, 1, NULL));
    for (int64_t d = 0; d < documents; d++) {
        const document whole = {cu_q[d], cu_q[d + 1], cu_k[d], cu_k[d + 1]};
        FM_TRY_DONE(write_document(&writer, 0, &whole, causal));
    }
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    fm_mask_writer_close(&writer);
    return status;
}

static bool continues(const int32_t *ids, int64_t i) { return (int64_t)ids[i] == (int64_t)ids[i - 1] + 1; }

/* The tokens that are not padding: [*first, *last). */
static void strip_padding(const int32_t *ids, int64_t length, int64_t *first, int64_t *last) {
    int64_t head = 0, tail = length;
    while (head < length && ids[head] == ids[0]) {
        head++;
    }
    while (tail > 0 && ids[tail - 1] == ids[length - 1]) {
        tail--;
    }
    if (head < 2) {
        head = 0;
    } else if (head < length && continues(ids, head)) {
        head--; /* the last of the equal ids begins the first document */
    }
    if (length - tail < 2) {
        tail = length;
    } else if (tail > 0 && continues(ids, tail)) {
        tail++; /* the first of the equal ids ends the last document */
    }
    *first = head;
    *last = tail;
}

static fm_status write_positions(fm_mask_writer *writer, int64_t b, const int32_t *ids, bool causal, bool padding) {
    int64_t first = 0, last = writer->shape.columns;
    if (padding) {
        strip_padding(ids, last, &first, &last);
    }
    for (int64_t start = first, end; start < last; start = end) {
        for (end = start + 1; end < last && continues(ids, end); end++) {
        }
        const document whole = {start, end, start, end};
        FM_TRY(write_document(writer, b, &whole, causal));
    }
    return FM_OK;
}

fm_status fm_mask_from_position_ids(int64_t batch, int64_t length, const int32_t *ids, bool causal, bool padding, fm_mask **out) {
    const fm_mask_shape shape = {batch, 1, length, length};
    fm_mask_writer writer;
    int64_t count;
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(fm_array_count("ids", shape, 1, length, &count));
    FM_TRY(fm_array_check_input("ids", ids, count));
    for (int64_t i = 0; i < count; i++) {
        FM_CHECK(ids[i] >= 0, FM_ERROR_ARGUMENT, "ids: position of token %lld (batch item %lld) is %d, needs 0 or more",
                 (long long)(i % length), (long long)(i / length), ids[i]);
    }
    FM_TRY(fm_mask_writer_open(&writer, shape, 1, NULL));
    for (int64_t b = 0; count > 0 && b < batch; b++) {
        FM_TRY_DONE(write_positions(&writer, b, ids + b * length, causal, padding));
    }
    FM_TRY_DONE(fm_mask_writer_finish(&writer, out));
done:
    fm_mask_writer_close(&writer);
    return status;
}

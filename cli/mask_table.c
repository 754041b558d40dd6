#include "mask_table.h"

#include "npy.h"
#include "random.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- sizes --------------------------------------------------------------------------------------------------------- */

static int64_t columns_of(const fm_mask_context *c) { return c->seq != 0 ? c->seq : c->rows != 0 ? c->rows : FM_DEFAULT_SEQ; }
static int64_t rows_of(const fm_mask_context *c) { return c->rows != 0 ? c->rows : columns_of(c); }

static bool must_be_square(const char *subject, const fm_mask_context *c, int64_t length) {
    if (c->rows != 0 && c->rows != length) {
        return fm_cli_fail("%s: is square with %" PRId64 " keys; %" PRId64 " query rows do not fit", subject, length, c->rows);
    }
    return true;
}

/* Tokens from `total` up to --seq are padding, where the mask has padding. */
static bool fit(const char *subject, const fm_mask_context *c, int64_t total, bool pads, int64_t *padding) {
    const int64_t length = c->seq != 0 ? c->seq : total;
    if (total > length || (total < length && !pads)) {
        return fm_cli_fail("%s: lengths sum to %" PRId64 ", but there are %" PRId64 " keys%s", subject, total, c->seq,
                           pads ? "" : " and this mask takes no padding");
    }
    *padding = length - total;
    return must_be_square(subject, c, length);
}

static int64_t total_of(const fm_records *records) {
    int64_t total = 0;
    for (int64_t r = 0; r < records->count; r++) {
        total += fm_records_sum(records, r);
    }
    return total;
}

/* Every record has `fields` fields; column f of the records goes to columns[f], which the caller frees also on failure. */
static bool split(const char *subject, const fm_records *records, int64_t fields, const char *form, int64_t *columns[]) {
    for (int64_t f = 0; f < fields; f++) {
        columns[f] = fm_cli_allocate(records->count, sizeof *columns[f]);
        if (columns[f] == NULL) {
            return false;
        }
    }
    for (int64_t r = 0; r < records->count; r++) {
        if (fm_records_fields(records, r) != fields) {
            return fm_cli_fail("%s: entry %" PRId64 ": %s needs %" PRId64 " numbers, has %" PRId64, subject, r, form, fields,
                               fm_records_fields(records, r));
        }
        for (int64_t f = 0; f < fields; f++) {
            columns[f][r] = fm_records_field(records, r, f);
        }
    }
    return true;
}

static int64_t sum_of(int64_t count, const int64_t *values) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum;
}

/* ---- one key after another ----------------------------------------------------------------------------------------- */

static bool build_full(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    (void)v;
    return fm_cli_ok(fm_mask_full(rows_of(c), columns_of(c), out), subject);
}

static bool build_causal(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    (void)v;
    return fm_cli_ok(fm_mask_causal(rows_of(c), columns_of(c), out), subject);
}

/* Keys: window, left, right. */
static bool build_sliding_window(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    if (v[0].given ? v[1].given || v[2].given : !v[1].given || !v[2].given) {
        return fm_cli_fail("%s: needs window=W, or left=L and right=R", subject);
    }
    const int64_t left = v[0].given ? v[0].number - 1 : v[1].number, right = v[0].given ? 0 : v[2].number;
    return fm_cli_ok(fm_mask_sliding_window(rows_of(c), columns_of(c), left, right, out), subject);
}

static bool build_sink_window(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    return fm_cli_ok(fm_mask_sink_window(rows_of(c), columns_of(c), v[0].number, v[1].number, out), subject);
}

static bool build_global_window(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    return fm_cli_ok(fm_mask_global_window(rows_of(c), columns_of(c), v[0].number, v[1].number, v[2].number, out), subject);
}

static bool build_prefix_lm(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    return fm_cli_ok(fm_mask_prefix_lm(rows_of(c), columns_of(c), v[0].number, out), subject);
}

/* Keys: start. The benchmark starts in the middle. */
static bool build_random_eviction(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const int64_t length = columns_of(c), start = v[0].given ? v[0].number : length / 2;
    return must_be_square(subject, c, length) &&
           fm_cli_ok(fm_mask_random_eviction(length, c->heads != 0 ? c->heads : 1, start, c->seed, out), subject);
}

static bool build_bigbird(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const int64_t block = v[3].given ? v[3].number : 64;
    return fm_cli_ok(fm_mask_bigbird(rows_of(c), columns_of(c), block, v[0].number, v[1].number, v[2].number, c->seed, NULL, out),
                     subject);
}

static bool build_random_sparse(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    return fm_cli_ok(fm_mask_random_sparse(rows_of(c), columns_of(c), v[0].share, c->seed, NULL, out), subject);
}

/* ---- documents ----------------------------------------------------------------------------------------------------- */

static bool build_documents(const char *subject, const fm_mask_context *c, const fm_records *records, bool causal,
                            fm_mask **out) {
    int64_t padding = 0;
    int64_t *lengths = fm_records_sums(records);
    const bool ok = lengths != NULL && fit(subject, c, total_of(records), true, &padding) &&
                    fm_cli_ok(fm_mask_documents(records->count, lengths, causal, padding, out), subject);
    free(lengths);
    return ok;
}

static bool build_document(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    return build_documents(subject, c, &v[0].records, false, out);
}

static bool build_causal_document(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    return build_documents(subject, c, &v[0].records, true, out);
}

/* Keys: lengths, file, sink, window. */
static bool build_document_sink_window(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t padding = 0;
    int64_t *lengths = fm_records_sums(records);
    const bool ok =
        lengths != NULL && fit(subject, c, total_of(records), true, &padding) &&
        fm_cli_ok(fm_mask_documents_sink_window(records->count, lengths, v[2].number, v[3].number, padding, out), subject);
    free(lengths);
    return ok;
}

static bool build_causal_blockwise(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t padding = 0;
    int64_t *lengths = fm_records_sums(records);
    const bool ok = lengths != NULL && fit(subject, c, total_of(records), false, &padding) &&
                    fm_cli_ok(fm_mask_causal_blockwise(records->count, lengths, out), subject);
    free(lengths);
    return ok;
}

/* Records: prefix, length. */
static bool build_prefix_document(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t *columns[2] = {NULL, NULL}, padding = 0;
    const bool ok = split(subject, records, 2, "PREFIX/LENGTH", columns) &&
                    fit(subject, c, sum_of(records->count, columns[1]), true, &padding) &&
                    fm_cli_ok(fm_mask_prefix_documents(records->count, columns[0], columns[1], padding, out), subject);
    free(columns[0]);
    free(columns[1]);
    return ok;
}

/* Records: a question and its answers. */
static bool build_share_question(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t padding = 0;
    fm_question *questions = fm_cli_allocate(records->count, sizeof *questions);
    for (int64_t r = 0; questions != NULL && r < records->count; r++) {
        const int64_t fields = fm_records_fields(records, r);
        if (fields == 0) {
            continue; /* an empty JSON array: no question, no answer */
        }
        const int64_t *first = records->values + records->first[r];
        questions[r] = (fm_question){.length = first[0], .answers = fields - 1, .answer_lengths = first + 1};
    }
    const bool ok = questions != NULL && fit(subject, c, total_of(records), true, &padding) &&
                    fm_cli_ok(fm_mask_share_question(records->count, questions, v[2].number != 0, padding, out), subject);
    free(questions);
    return ok;
}

/* Records: parent, length. */
static bool build_prefix_tree(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t *columns[2] = {NULL, NULL}, padding = 0;
    const bool ok = split(subject, records, 2, "PARENT/LENGTH", columns) &&
                    fit(subject, c, sum_of(records->count, columns[1]), false, &padding) &&
                    fm_cli_ok(fm_mask_prefix_tree(records->count, columns[0], columns[1], NULL, out), subject);
    free(columns[0]);
    free(columns[1]);
    return ok;
}

/* Keys: lengths, file, spans. */
static bool build_image_spans(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records, *spans = &v[2].records;
    int64_t *columns[2] = {NULL, NULL}, padding = 0;
    int64_t *lengths = fm_records_sums(records);
    const bool ok = lengths != NULL && fit(subject, c, total_of(records), false, &padding) &&
                    split(subject, spans, 2, "OFFSET/LENGTH", columns) &&
                    fm_cli_ok(fm_mask_image_spans(records->count, lengths, spans->count, columns[0], columns[1], out), subject);
    free(lengths);
    free(columns[0]);
    free(columns[1]);
    return ok;
}

/* ---- other lists --------------------------------------------------------------------------------------------------- */

static bool build_qk_sparse(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *spans = &v[0].records;
    int64_t *columns[2] = {NULL, NULL};
    const bool ok = split(subject, spans, 2, "OFFSET/LENGTH", columns) &&
                    fm_cli_ok(fm_mask_qk_sparse(rows_of(c), columns_of(c), spans->count, columns[0], columns[1], out), subject);
    free(columns[0]);
    free(columns[1]);
    return ok;
}

/* Keys: buckets. Each token draws one of them. */
static bool build_hash_sparse(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const int64_t length = columns_of(c);
    fm_random random = {.state = c->seed};
    int32_t *bucket = fm_cli_allocate(length, sizeof *bucket);
    for (int64_t i = 0; bucket != NULL && i < length; i++) {
        bucket[i] = (int32_t)fm_random_below(&random, v[0].number);
    }
    const bool ok = bucket != NULL && must_be_square(subject, c, length) &&
                    fm_cli_ok(fm_mask_hash_sparse(length, bucket, NULL, out), subject);
    free(bucket);
    return ok;
}

/* Records: left, right of each head. */
static bool build_head_windows(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t *columns[2] = {NULL, NULL};
    const bool ok =
        split(subject, records, 2, "LEFT/RIGHT", columns) &&
        fm_cli_ok(fm_mask_head_windows(rows_of(c), columns_of(c), records->count, columns[0], columns[1], out), subject);
    free(columns[0]);
    free(columns[1]);
    return ok;
}

/* Records: left, right of each batch item. */
static bool build_padding(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const fm_records *records = &v[0].records;
    int64_t *columns[2] = {NULL, NULL};
    const bool ok = split(subject, records, 2, "LEFT/RIGHT", columns) &&
                    fm_cli_ok(fm_mask_padding(records->count, rows_of(c), columns_of(c), columns[0], columns[1], out), subject);
    free(columns[0]);
    free(columns[1]);
    return ok;
}

/* Keys: file, block. */
static bool build_blocks(const char *subject, const fm_mask_context *c, const fm_mask_value *v, fm_mask **out) {
    const int64_t block = v[1].given ? v[1].number : 128, rows = rows_of(c), columns = columns_of(c);
    const int64_t across = (columns + block - 1) / block, down = (rows + block - 1) / block;
    fm_npy keep = {0};
    bool ok = fm_npy_load(v[0].text, &keep);
    const bool plain = ok && keep.rank == 2;
    if (ok && ((keep.type != FM_NPY_U8 && keep.type != FM_NPY_BOOL) || (keep.rank != 2 && keep.rank != 4) ||
               keep.shape[keep.rank - 2] != down || keep.shape[keep.rank - 1] != across)) {
        ok = fm_cli_fail("%s: %s is not a bool or uint8 array [%" PRId64 ", %" PRId64 "] or [B, Hm, %" PRId64 ", %" PRId64 "]",
                         subject, v[0].text, down, across, down, across);
    }
    if (ok) {
        const fm_mask_shape shape = {plain ? 1 : keep.shape[0], plain ? 1 : keep.shape[1], rows, columns};
        ok = fm_cli_ok(block == 1 ? fm_mask_from_dense(shape, keep.data, NULL, out)
                                  : fm_mask_blocks(shape, block, keep.data, NULL, out),
                       subject);
    }
    fm_npy_free(&keep);
    return ok;
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

/* The two keys that give documents. */
/* clang-format off */
#define DOCUMENTS(form) {"lengths", FM_KEY_RECORDS, true, 0, form}, {"file", FM_KEY_FILE, false, 0, "PATH"}
/* clang-format on */

const fm_mask_entry fm_mask_entries[] = {
    {"full", "", "every key for every row", {{0}}, build_full},
    {"causal", "", "keys up to the row's own, aligned bottom-right", {{0}}, build_causal},
    {"sliding_window",
     "window",
     "window=W: the last W keys, the row's own included; or left keys before the row's own and right behind, -1: all",
     {{"window", FM_KEY_NUMBER, false, 1, "W"},
      {"left", FM_KEY_NUMBER, false, -1, "L"},
      {"right", FM_KEY_NUMBER, false, -1, "R"}},
     build_sliding_window},
    {"sink_window",
     "attention_sink streaming",
     "causal: the first S keys and the last W",
     {{"sink", FM_KEY_NUMBER, true, 0, "S"}, {"window", FM_KEY_NUMBER, true, 0, "W"}},
     build_sink_window},
    {"document_sink_window",
     "documents_sink_window",
     "the same inside each document",
     {DOCUMENTS("N+..."), {"sink", FM_KEY_NUMBER, true, 0, "S"}, {"window", FM_KEY_NUMBER, true, 0, "W"}},
     build_document_sink_window},
    {"global_sliding_window",
     "global_window global_+_sliding_window",
     "the first G rows see all, the first G keys are seen by all, else a window",
     {{"global", FM_KEY_NUMBER, true, 0, "G"}, {"left", FM_KEY_NUMBER, true, -1, "L"}, {"right", FM_KEY_NUMBER, true, -1, "R"}},
     build_global_window},
    {"document", "documents", "packed documents, each both ways", {DOCUMENTS("N+...")}, build_document},
    {"causal_document", "causal_documents", "packed documents, each causal", {DOCUMENTS("N+...")}, build_causal_document},
    {"prefix_lm_causal",
     "prefix_lm prefix_causal",
     "causal, and the first P keys for every row",
     {{"prefix", FM_KEY_NUMBER, true, 0, "P"}},
     build_prefix_lm},
    {"prefix_lm_document",
     "prefix_document prefix_documents",
     "packed documents, each with a prefix that all of it sees",
     {DOCUMENTS("PREFIX/LENGTH+...")},
     build_prefix_document},
    {"share_question",
     "shared_question dpo",
     "answers see their question and themselves, not each other; bidirectional=1: questions see themselves both ways",
     {DOCUMENTS("QUESTION/ANSWER/ANSWER+..."), {"bidirectional", FM_KEY_FLAG, false, 0, "0|1"}},
     build_share_question},
    {"prefix_tree",
     "tree",
     "a node sees itself causally and its ancestors; parent -1: a root",
     {{"nodes", FM_KEY_RECORDS, true, -1, "PARENT/LENGTH+..."}, {"file", FM_KEY_FILE, false, 0, "PATH"}},
     build_prefix_tree},
    {"causal_blockwise",
     "blockwise",
     "causal documents, the last of which sees all before it",
     {DOCUMENTS("N+...")},
     build_causal_blockwise},
    {"qk_sparse",
     "qk_sparsity",
     "causal; a span's keys are hidden from their own row on to the span's end",
     {{"spans", FM_KEY_RECORDS, true, 0, "OFFSET/LENGTH+..."}, {"file", FM_KEY_FILE, false, 0, "PATH"}},
     build_qk_sparse},
    {"hash_sparse",
     "",
     "causal, within one of B buckets that each token draws (--seed)",
     {{"buckets", FM_KEY_NUMBER, true, 1, "B"}},
     build_hash_sparse},
    {"random_eviction",
     "",
     "causal; from row START (the middle) each row evicts a key for good (--seed, --heads)",
     {{"start", FM_KEY_NUMBER, false, 0, "START"}},
     build_random_eviction},
    {"head_windows",
     "",
     "a window for each head",
     {{"windows", FM_KEY_RECORDS, true, -1, "LEFT/RIGHT+..."}, {"file", FM_KEY_FILE, false, 0, "PATH"}},
     build_head_windows},
    {"padding",
     "",
     "padding at either side of each batch item",
     {{"pads", FM_KEY_RECORDS, true, 0, "LEFT/RIGHT+..."}, {"file", FM_KEY_FILE, false, 0, "PATH"}},
     build_padding},
    {"blocks",
     "block block_sparse",
     "a block mask from .npy, bool or uint8, 1 = visible; blocks of N (128) rows and keys, N=1: a dense mask",
     {{"file", FM_KEY_FILE, true, 0, "PATH"}, {"block", FM_KEY_NUMBER, false, 1, "N"}},
     build_blocks},
    {"bigbird",
     "",
     "in blocks of N (64): G global ones, W either side of the diagonal, R random ones a row (--seed)",
     {{"global", FM_KEY_NUMBER, true, 0, "G"},
      {"window", FM_KEY_NUMBER, true, 0, "W"},
      {"random", FM_KEY_NUMBER, true, 0, "R"},
      {"block", FM_KEY_NUMBER, false, 1, "N"}},
     build_bigbird},
    {"image_spans",
     "",
     "causal documents in which image spans see themselves both ways",
     {DOCUMENTS("N+..."), {"spans", FM_KEY_RECORDS, true, 0, "OFFSET/LENGTH+..."}},
     build_image_spans},
    {"random_sparse",
     "",
     "each pair visible with probability P (--seed)",
     {{"density", FM_KEY_SHARE, true, 0, "P"}},
     build_random_sparse},
};
const int fm_mask_entry_count = sizeof fm_mask_entries / sizeof fm_mask_entries[0];

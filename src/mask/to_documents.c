/* Cumulative lengths of a mask of packed documents. A document that is only rows or only keys stands where rows see nothing,
 * or nobody sees keys, before a document that is both; what follows the last document is padding. */
#include "core/memory.h"
#include "mask/convert.h"

#include <stdlib.h>

typedef struct document_end {
    int32_t rows, keys; /* cumulative */
} document_end;

typedef struct document_parser {
    bool causal;
    document_end *ends;
    int64_t count, capacity;
    int32_t rows, keys; /* that the documents so far take */
    /* The document being read: keys [key, next_key), seen by rows up to `end`; the first from row `start`, the last from
     * `latest` on. None if next_key is 0. */
    int32_t key, next_key, start, latest, end;
} document_parser;

static fm_status refuse(const fm_column *column, const char *why) {
    return fm_fail(FM_ERROR_CANNOT_EXPRESS, "column %lld %s", (long long)column->index, why);
}

static fm_status append_document(document_parser *p, int32_t rows, int32_t keys) {
    FM_TRY(fm_grow("documents", p->count + 1, sizeof *p->ends, (void **)&p->ends, &p->capacity));
    p->rows = rows;
    p->keys = keys;
    p->ends[p->count++] = (document_end){rows, keys};
    return FM_OK;
}

/* Ends the document at column `at`, which does not belong to it, or which is its last and the mask's. Rows above a causal
 * document belong to it where each of its keys has a row of its own: it then has more rows than keys. */
static fm_status close_document(document_parser *p, int64_t at) {
    if (p->next_key == 0) {
        return FM_OK;
    }
    FM_CHECK(!p->causal || p->latest == p->end - 1, FM_ERROR_CANNOT_EXPRESS,
             "column %lld: keys %d .. %d are no causal document, whose last key would be seen by row %d alone", (long long)at,
             p->key, p->next_key - 1, p->end - 1);
    if (p->key > p->keys) {
        FM_TRY(append_document(p, p->rows, p->key));
    }
    const bool owns_rows_above = p->causal && p->next_key - p->key == p->end - p->start;
    if (p->start > p->rows && !owns_rows_above) {
        FM_TRY(append_document(p, p->start, p->keys));
    }
    FM_TRY(append_document(p, p->end, p->next_key));
    p->next_key = 0;
    return FM_OK;
}

/* Causal keys may share the first row (more keys than rows), then each starts one row later. */
static bool continues(const document_parser *p, fm_interval v) {
    if (p->next_key == 0 || v.end != p->end) {
        return false;
    }
    return v.start == p->latest ? !p->causal || p->latest == p->start : p->causal && v.start == p->latest + 1;
}

static fm_status visit_column(void *context, const fm_column *column) {
    document_parser *p = context;
    if (column->count == 0) {
        return close_document(p, column->index);
    }
    if (column->count > 1) {
        return refuse(column, "has more than one visible interval");
    }
    const fm_interval v = column->v[0];
    if (!continues(p, v)) {
        FM_TRY(close_document(p, column->index));
        if (v.start < p->rows) {
            return refuse(column, "is seen from a row of an earlier document");
        }
        p->key = (int32_t)column->index;
        p->start = v.start;
        p->end = v.end;
    }
    p->latest = v.start;
    p->next_key = (int32_t)column->index + 1;
    return FM_OK;
}

fm_status fm_mask_to_cu_seqlens(const fm_mask *mask, bool causal, int32_t *cu_q, int32_t *cu_k, int64_t capacity,
                                int64_t *documents) {
    document_parser parser = {.causal = causal};
    fm_stripe_columns scratch = {0};
    fm_status status;
    fm_clear_error();
    FM_REQUIRE(mask);
    FM_REQUIRE(cu_q);
    FM_REQUIRE(cu_k);
    FM_REQUIRE(documents);
    const fm_mask_shape shape = mask->view.shape;
    FM_CHECK(shape.batch == 1 && shape.heads == 1, FM_ERROR_CANNOT_EXPRESS,
             "mask: has %lld batch items and %lld heads, cumulative lengths describe one of each", (long long)shape.batch,
             (long long)shape.heads);
    FM_TRY_DONE(fm_columns_visit(&mask->view, 0, 0, &scratch, visit_column, &parser));
    FM_TRY_DONE(close_document(&parser, shape.columns - 1));
    if (capacity < parser.count + 1) {
        status = fm_fail(FM_ERROR_ARGUMENT, "capacity: is %lld, %lld documents need %lld entries", (long long)capacity,
                         (long long)parser.count, (long long)parser.count + 1);
        goto done;
    }
    cu_q[0] = cu_k[0] = 0;
    for (int64_t d = 0; d < parser.count; d++) {
        cu_q[d + 1] = parser.ends[d].rows;
        cu_k[d + 1] = parser.ends[d].keys;
    }
    *documents = parser.count;
done:
    free(parser.ends);
    fm_stripe_columns_free(&scratch);
    return status;
}

/* A length file, packed into sequences. */
#ifndef FM_CLI_PACKED_SET_H
#define FM_CLI_PACKED_SET_H

#include "error.h"

#include <flashmask/masks.h>

/* What a record of the file is. */
typedef enum fm_record_kind {
    FM_RECORD_DOCUMENT, /* its fields are summed: the turns of a chat are one document */
    FM_RECORD_PAIR,     /* prompt, chosen, rejected: a question with two answers */
    FM_RECORD_QUESTION  /* a question, then its answers */
} fm_record_kind;

typedef struct fm_pack_request {
    fm_record_kind kind;
    int64_t capacity;
    fm_pack_policy policy;
    fm_pack_overlong overlong; /* of documents; questions are never cut */
} fm_pack_request;

/* Start from {0}. */
typedef struct fm_packed_set {
    fm_packing *packing;
    int64_t capacity, records, tokens, pieces, sequences;
    int64_t emptiest; /* tokens of the sequence that has fewest */
} fm_packed_set;

bool fm_packed_set_load(const char *path, const fm_pack_request *request, fm_packed_set *out);
void fm_packed_set_free(fm_packed_set *set);

/* Pieces of one sequence, in layout order from token 0; the array belongs to the set. */
bool fm_packed_set_pieces(const fm_packed_set *set, int64_t sequence, const fm_piece **pieces, int64_t *count);

/* Causal mask of one sequence. */
bool fm_packed_set_mask(const fm_packed_set *set, int64_t sequence, fm_mask **out);

#endif

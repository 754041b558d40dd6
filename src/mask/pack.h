/* What a packing holds, and the placement that every kind of it comes from. */
#ifndef FM_MASK_PACK_H
#define FM_MASK_PACK_H

#include <flashmask/masks.h>

struct fm_packing {
    int64_t capacity, sequences;
    int64_t *first;          /* [sequences + 1]: sequence s has pieces[first[s] .. first[s + 1]) */
    fm_piece *pieces;        /* by sequence, in input order within one */
    fm_question *questions;  /* by document, or NULL: documents have no parts */
    int64_t *answer_lengths; /* of all questions, which point into it */
};

/* capacity and policy. */
fm_status fm_pack_check(int64_t capacity, fm_pack_policy policy);

/* Cuts n checked lengths into pieces of at most `capacity` tokens, `pieces` of them in all and at most 2^31 - 1, and places
 * them. */
fm_status fm_pack_place(int64_t n, const int64_t *lengths, int64_t capacity, fm_pack_policy policy, int64_t pieces,
                        fm_packing **out);

#endif

/* Tokens that see exactly the tokens of their own group, wherever those stand: document ids, hash buckets. */
#ifndef FM_MASK_GROUPS_H
#define FM_MASK_GROUPS_H

#include "mask/mask.h"

typedef struct fm_groups {
    int64_t batch, length;
    const int32_t *ids;    /* [batch, length] any values */
    const int32_t *nobody; /* tokens of the group *nobody see nothing and are seen by nobody; NULL: there is none */
    bool causal;
} fm_groups;

/* A mask of [batch, 1, length, length]. O(N + R log R) for R runs of equal ids, plus, for each stripe where a column is seen
 * by more than FM_MAX_INTERVALS runs, the runs of the groups in it and its mixed blocks. */
fm_status fm_mask_from_groups(const fm_groups *groups, const fm_mask_options *options, fm_mask **out);

#endif

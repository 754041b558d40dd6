/* Every kind of mask, drawn at random for the sizes of an attention case. */
#ifndef FM_TESTS_MASK_KINDS_H
#define FM_TESTS_MASK_KINDS_H

#include "support/attention_case.h"

typedef struct mask_kind {
    const char *name;
    /* Sets the mask (the caller frees it), or the causal and window flags, of a case whose other sizes are set. */
    void (*make)(test_random *random, attention_case *c);
} mask_kind;

extern const mask_kind mask_kinds[];
extern const int mask_kind_count;

#endif

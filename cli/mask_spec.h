/* --mask NAME:key=value,...: parsed and built in one go. */
#ifndef FM_CLI_MASK_SPEC_H
#define FM_CLI_MASK_SPEC_H

#include "mask_table.h"

/* Case, "-" for "_" and a last "_mask" do not matter in NAME. Refused, with one line that says what is accepted: unknown names
 * and keys, keys given twice, missing keys and values, numbers out of range, and whatever the builder refuses. */
bool fm_mask_spec_build(const char *spec, const fm_mask_context *context, fm_mask **out);

/* startend_row_indices from a .npy file, int32 [Sk, C] or [B, Hm, Sk, C]; causal decides what the C vectors mean. Context: seq,
 * if given, must be Sk; rows 0 means Sk. */
bool fm_mask_vectors_build(const char *path, bool causal, const fm_mask_context *context, fm_mask **out);

/* The table of masks for people. */
void fm_mask_spec_print_table(FILE *to);

#endif

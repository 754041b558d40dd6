/* Dense truth of a mask: one byte a pair, and what must hold of a mask that claims to be it. */
#ifndef FM_TESTS_TRUTH_H
#define FM_TESTS_TRUTH_H

#include <flashmask/flashmask.h>

#include "support/random.h"

typedef struct truth {
    fm_mask_shape shape;
    uint8_t *visible; /* [batch, heads, rows, columns], 0 or 1 */
} truth;

/* Nothing visible. */
truth truth_make(fm_mask_shape shape);
/* Each pair visible with its own chance: columns of many short intervals. */
truth truth_random(test_random *random, fm_mask_shape shape, double density);
void truth_free(truth *t);

static inline int64_t truth_pairs(fm_mask_shape s) { return s.batch * s.heads * s.rows * s.columns; }

/* The pair's byte; NULL outside rows and columns. */
uint8_t *truth_at(const truth *t, int64_t b, int64_t h, int64_t row, int64_t column);

/* The mask, written column by column. */
fm_mask *truth_mask(const truth *t, const fm_mask_options *options);

/* Fails the test, naming the first pair, unless the mask has this shape, shows these pairs, counts them right and is stored
 * like one built from the truth. */
void truth_assert(const truth *t, const fm_mask *mask);

/* The same for the pairs of a rule: true where row i of head h of batch item b sees key j. Takes the mask over and frees it. */
typedef bool (*visible_rule)(const void *parameters, int64_t b, int64_t h, int64_t i, int64_t j);
void assert_mask_follows(fm_mask *mask, visible_rule rule, const void *parameters);

/* The same for visible [batch, heads, rows, columns], 0 or 1, and fm_mask_to_dense and fm_mask_from_dense turn one into the
 * other. */
void assert_conversion(const fm_mask *mask, fm_mask_shape shape, const uint8_t *visible);

#endif

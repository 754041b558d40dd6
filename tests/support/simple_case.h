/* Short cuts for tests of single calls: cases with defaults, masks by a rule, comparison with the oracle. */
#ifndef FM_TESTS_SIMPLE_CASE_H
#define FM_TESTS_SIMPLE_CASE_H

#include "support/attention_case.h"

/* f32, contiguous, no mask, no flags, default scale, Dv = D. */
attention_case simple_case(int64_t batch, int64_t rows, int64_t columns, int64_t heads, int64_t heads_kv, int64_t head_dim);

/* The one interval of rows that see column j; empty where start >= end. */
typedef fm_interval column_rule(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j);
fm_mask *mask_by_rule(fm_mask_shape shape, column_rule *rule);

fm_interval rule_everything(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j);
fm_interval rule_nothing(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j);
fm_interval rule_causal(const fm_mask_shape *shape, int64_t b, int64_t h, int64_t j);

/* The backends of this build that tests of single calls go through. */
enum { BACKENDS = 2 };
extern const fm_backend_id backends[BACKENDS];
attention_results run_on(fm_backend_id backend, const attention_case *c, const attention_inputs *inputs);

/* attention_assert_close with the plain and the f64 results computed here. */
void assert_like_oracle(const attention_case *c, const attention_inputs *inputs, const attention_results *results);

double element_at(const test_tensor *t, int64_t b, int64_t i, int64_t h, int64_t d);

/* Every element of row i of item b. */
void set_row(const test_tensor *t, int64_t b, int64_t i, double value);

/* Rows [start, end) of item b: output and query gradient 0, lse -inf. */
void assert_empty_rows(const attention_case *c, const attention_results *r, int64_t b, int64_t start, int64_t end);

/* Output and gradients. */
void assert_finite(const attention_results *r);

#endif

#include "support/simple_case.h"

#include "mask/writer.h"

#include <math.h>

#include "support/cmocka_all.h"

attention_case simple_case(int64_t batch, int64_t rows, int64_t columns, int64_t heads, int64_t heads_kv, int64_t head_dim) {
    return (attention_case){.batch = batch,
                            .rows = rows,
                            .columns = columns,
                            .heads = heads,
                            .heads_kv = heads_kv,
                            .head_dim = head_dim,
                            .head_dim_v = head_dim,
                            .window_left = -1,
                            .window_right = -1,
                            .scale = NAN};
}

fm_mask *mask_by_rule(fm_mask_shape shape, column_rule *rule) {
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, shape, 1, NULL), FM_OK);
    for (int64_t i = 0; i < shape.batch * shape.heads * shape.columns; i++) {
        const int64_t j = i % shape.columns, h = i / shape.columns % shape.heads, b = i / shape.columns / shape.heads;
        const fm_interval rows = rule(&shape, b, h, j);
        assert_int_equal(fm_mask_writer_interval(&writer, b, h, j, rows.start, rows.end), FM_OK);
    }
    assert_int_equal(fm_mask_writer_finish(&writer, &mask), FM_OK);
    fm_mask_writer_close(&writer);
    return mask;
}

fm_interval rule_everything(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h, (void)j;
    return (fm_interval){0, (int32_t)s->rows};
}

fm_interval rule_nothing(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)s, (void)b, (void)h, (void)j;
    return (fm_interval){0, 0};
}

fm_interval rule_causal(const fm_mask_shape *s, int64_t b, int64_t h, int64_t j) {
    (void)b, (void)h;
    const int64_t first = j - (s->columns - s->rows);
    return (fm_interval){(int32_t)(first > 0 ? first : 0), (int32_t)s->rows};
}

const fm_backend_id backends[BACKENDS] = {FM_BACKEND_REFERENCE, FM_BACKEND_CPU};

attention_results run_on(fm_backend_id backend, const attention_case *c, const attention_inputs *in) {
    return attention_run(c, in, (attention_run_options){.backend = backend});
}

void assert_like_oracle(const attention_case *c, const attention_inputs *in, const attention_results *r) {
    attention_inputs wide = attention_inputs_widen(c, in);
    attention_results plain = run_on(FM_BACKEND_REFERENCE, c, in), oracle = run_on(FM_BACKEND_REFERENCE, c, &wide);
    attention_assert_close(c, r, &plain, &oracle);
    attention_results_free(&plain);
    attention_results_free(&oracle);
    attention_inputs_free(&wide);
}

double element_at(const test_tensor *t, int64_t b, int64_t i, int64_t h, int64_t d) {
    return fm_tensor_load(&t->view, fm_tensor_offset(&t->view, b, i, h, d));
}

void set_row(const test_tensor *t, int64_t b, int64_t i, double value) {
    for (int64_t k = 0; k < t->view.shape[2] * t->view.shape[3]; k++) {
        fm_tensor_store(&t->view, fm_tensor_offset(&t->view, b, i, k / t->view.shape[3], k % t->view.shape[3]), value);
    }
}

void assert_empty_rows(const attention_case *c, const attention_results *r, int64_t b, int64_t start, int64_t end) {
    for (int64_t i = start; i < end; i++) {
        for (int64_t h = 0; h < c->heads; h++) {
            assert_true(element_at(&r->lse, 0, b, h, i) == -INFINITY);
            for (int64_t d = 0; d < c->head_dim; d++) {
                assert_true(element_at(&r->output, b, i, h, d) == 0.0 && element_at(&r->grad_query, b, i, h, d) == 0.0);
            }
        }
    }
}

void assert_finite(const attention_results *r) {
    const test_tensor *const all[] = {&r->output, &r->grad_query, &r->grad_key, &r->grad_value};
    for (int i = 0; i < 4; i++) {
        assert_true(isfinite(test_tensor_distance(all[i], all[i])));
    }
}

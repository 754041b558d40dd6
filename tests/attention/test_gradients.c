/* Backward of the f64 reference against finite differences of its forward, through softcap, sinks and lse. */
#include "core/tensor.h"
#include "support/cmocka_all.h"
#include "support/random_mask.h"

#include <math.h>
#include <stdlib.h>

typedef struct shape {
    int64_t batch, rows, columns, heads, heads_kv, head_dim, head_dim_v;
} shape;

typedef struct variant {
    shape n;
    int64_t intervals; /* of the mask; -1: no mask */
    int64_t window_left, window_right;
    float scale, softcap;
    bool causal, with_sinks, with_grad_lse;
} variant;

enum { QUERY, KEY, VALUE, OUTPUT, ONES, SIGMOID, GRADIENTS, TENSORS = GRADIENTS + 3, MOST_HEADS = 8 };

/* One call with its memory. The loss is sum(O * grad_output) + sum(lse * grad_lse). */
typedef struct problem {
    fm_tensor tensor[TENSORS]; /* f64, contiguous; GRADIENTS + i is the gradient of tensor i */
    fm_tensor grad_output;
    float sinks[MOST_HEADS], unit_sinks[MOST_HEADS], grad_sinks[MOST_HEADS];
    float *lse, *grad_lse;
    fm_attention_forward_args args;
} problem;

static int64_t count(const fm_tensor *t) { return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]; }

static fm_tensor make(test_random *r, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
    fm_tensor t = fm_tensor_contiguous(calloc((size_t)(n0 * n1 * n2 * n3), sizeof(double)), FM_F64, n0, n1, n2, n3);
    assert_non_null(t.data);
    for (int64_t i = 0; i < count(&t); i++) {
        ((double *)t.data)[i] = random_normal(r);
    }
    return t;
}

static void open_problem(problem *p, const variant *v, const fm_mask *mask, test_random *r) {
    const shape *n = &v->n;
    for (int gradient = 0; gradient < 2; gradient++) {
        fm_tensor *first = &p->tensor[gradient * GRADIENTS];
        first[QUERY] = make(r, n->batch, n->rows, n->heads, n->head_dim);
        first[KEY] = make(r, n->batch, n->columns, n->heads_kv, n->head_dim);
        first[VALUE] = make(r, n->batch, n->columns, n->heads_kv, n->head_dim_v);
    }
    p->tensor[OUTPUT] = make(r, n->batch, n->rows, n->heads, n->head_dim_v);
    p->tensor[ONES] = make(r, n->batch, n->columns, n->heads_kv, 1);
    p->tensor[SIGMOID] = make(r, n->batch, n->rows, n->heads, 1);
    p->grad_output = make(r, n->batch, n->rows, n->heads, n->head_dim_v);
    for (int64_t i = 0; i < count(&p->tensor[ONES]); i++) {
        ((double *)p->tensor[ONES].data)[i] = 1.0;
    }
    p->lse = calloc((size_t)count(&p->tensor[SIGMOID]), sizeof(float));
    p->grad_lse = calloc((size_t)count(&p->tensor[SIGMOID]), sizeof(float));
    for (int64_t i = 0; i < count(&p->tensor[SIGMOID]); i++) {
        p->grad_lse[i] = random_normal(r);
    }
    for (int64_t h = 0; h < n->heads; h++) {
        p->sinks[h] = random_normal(r);
        p->unit_sinks[h] = 1.0f;
    }
    p->args = (fm_attention_forward_args)FM_ATTENTION_FORWARD_ARGS_INIT;
    p->args.query = p->tensor[QUERY];
    p->args.key = p->tensor[KEY];
    p->args.value = p->tensor[VALUE];
    p->args.mask = mask;
    p->args.causal = v->causal;
    p->args.window_left = v->window_left;
    p->args.window_right = v->window_right;
    p->args.softmax_scale = v->scale;
    p->args.softcap = v->softcap;
    p->args.sinks = v->with_sinks ? p->sinks : NULL;
    p->args.output = p->tensor[OUTPUT];
    p->args.backend = FM_BACKEND_REFERENCE;
}

static void close_problem(problem *p) {
    for (int i = 0; i < TENSORS; i++) {
        free(p->tensor[i].data);
    }
    free(p->grad_output.data);
    free(p->lse);
    free(p->grad_lse);
}

static double inner_product(const fm_tensor *a, const fm_tensor *b) {
    double sum = 0.0;
    for (int64_t i = 0; i < count(a); i++) {
        sum += ((const double *)a->data)[i] * ((const double *)b->data)[i];
    }
    return sum;
}

/* sum(lse * grad_lse) in f64, which the f32 lse is too coarse for: with values of 1 and a sink of 1, O is
 * 1 / (1 + exp(1 - lse)) of each row, and 0 for an empty one. */
static double lse_loss(const problem *p) {
    fm_attention_forward_args args = p->args;
    args.value = p->tensor[ONES];
    args.output = p->tensor[SIGMOID];
    args.sinks = p->unit_sinks;
    assert_int_equal(fm_attention_forward(&args), FM_OK);
    const int64_t *n = args.output.shape;
    double sum = 0.0;
    for (int64_t i = 0; i < count(&args.output); i++) { /* output is [B, Sq, Hq, 1], grad_lse [B, Hq, Sq] */
        const int64_t b = i / (n[1] * n[2]), row = i / n[2] % n[1], h = i % n[2];
        const double sigmoid = ((const double *)args.output.data)[i];
        sum += sigmoid > 0 ? (1.0 + log(sigmoid / (1.0 - sigmoid))) * (double)p->grad_lse[(b * n[2] + h) * n[1] + row] : 0.0;
    }
    return sum;
}

static double loss(const problem *p, bool with_grad_lse) {
    assert_int_equal(fm_attention_forward(&p->args), FM_OK);
    return inner_product(&p->tensor[OUTPUT], &p->grad_output) + (with_grad_lse ? lse_loss(p) : 0.0);
}

static void assert_near(double gradient, double difference, double tolerance, const char *what) {
    if (!(fabs(gradient - difference) <= tolerance * (1.0 + fabs(difference)))) {
        fail_msg("gradient of %s: %.10g, finite difference %.10g", what, gradient, difference);
    }
}

/* Central differences in f64: a step of 2^-17 leaves about 1e-10 of cut-off and 1e-11 of rounding. */
static void assert_tensor_gradient(problem *p, int which, bool with_grad_lse) {
    static const char *const names[] = {"query", "key", "value"};
    const double step = 0x1p-17;
    double *values = p->tensor[which].data;
    for (int64_t i = 0; i < count(&p->tensor[which]); i++) {
        const double value = values[i];
        values[i] = value + step;
        const double above = loss(p, with_grad_lse);
        values[i] = value - step;
        const double below = loss(p, with_grad_lse);
        values[i] = value;
        assert_near(((const double *)p->tensor[GRADIENTS + which].data)[i], (above - below) / (2 * step), 1e-8, names[which]);
    }
}

/* Sinks and their gradient are f32: the difference uses the sinks that the step really gave, and loses 2^-24. */
static void assert_sink_gradient(problem *p, int64_t heads, bool with_grad_lse) {
    for (int64_t h = 0; h < heads; h++) {
        const float value = p->sinks[h], high = value + 0x1p-10f, low = value - 0x1p-10f;
        p->sinks[h] = high;
        const double above = loss(p, with_grad_lse);
        p->sinks[h] = low;
        const double below = loss(p, with_grad_lse);
        p->sinks[h] = value;
        assert_near((double)p->grad_sinks[h], (above - below) / ((double)high - (double)low), 1e-6, "sinks");
    }
}

static void assert_gradients(const variant *v, test_random *random) {
    problem p = {0};
    fm_mask *mask = v->intervals < 0 ? NULL
                                     : random_mask(random, (fm_mask_shape){1, v->n.heads_kv, v->n.rows, v->n.columns},
                                                   (int32_t)v->intervals, NULL);
    open_problem(&p, v, mask, random);
    loss(&p, false);
    fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
    backward.forward = &p.args; /* without lse: recomputed in f64 */
    backward.grad_output = p.grad_output;
    backward.grad_lse = v->with_grad_lse ? p.grad_lse : NULL;
    backward.grad_query = p.tensor[GRADIENTS + QUERY];
    backward.grad_key = p.tensor[GRADIENTS + KEY];
    backward.grad_value = p.tensor[GRADIENTS + VALUE];
    backward.grad_sinks = v->with_sinks ? p.grad_sinks : NULL;
    assert_int_equal(fm_attention_backward(&backward), FM_OK);
    for (int which = QUERY; which <= VALUE; which++) {
        assert_tensor_gradient(&p, which, v->with_grad_lse);
    }
    if (v->with_sinks) {
        assert_sink_gradient(&p, v->n.heads, v->with_grad_lse);
    }
    close_problem(&p);
    fm_mask_free(mask);
}

static const shape plain = {2, 5, 6, 2, 2, 3, 3}, grouped = {1, 6, 4, 6, 2, 3, 2}, wide = {1, 3, 140, 2, 1, 2, 4},
                   one = {1, 1, 1, 1, 1, 2, 1};

static void gradients_match_finite_differences(void **state) {
    (void)state;
    const variant variants[] = {
        {plain, -1, -1, -1, NAN, 0, false, false, false},  {plain, -1, -1, -1, NAN, 0, true, true, true},
        {plain, 1, -1, -1, 0.7f, 0, false, false, true},   {grouped, 2, -1, -1, -0.8f, 0, false, true, false},
        {grouped, 3, -1, -1, NAN, 1.5f, true, true, true}, {grouped, 4, 2, 1, 0.5f, 0.5f, false, false, true},
        {wide, 9, -1, -1, NAN, 0, false, true, true},      {wide, 9, 90, -1, -1.0f, 2.0f, true, true, true},
        {plain, 2, -1, -1, 0.0f, 0, false, true, true},    {grouped, -1, 1, 0, NAN, 3.0f, false, true, true},
        {one, -1, -1, -1, NAN, 0, false, true, true},      {grouped, 0, -1, -1, NAN, 1.0f, false, true, true},
    };
    test_random random = {1};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        assert_gradients(&variants[i], &random);
    }
}

static void gradients_match_finite_differences_at_random(void **state) {
    (void)state;
    test_random random = {2};
    for (int i = 0; i < 60; i++) {
        const int64_t heads_kv = random_integer(&random, 1, 2);
        const shape n = {random_integer(&random, 1, 2),
                         random_integer(&random, 1, 6),
                         random_integer(&random, 1, 6),
                         heads_kv * random_integer(&random, 1, 3),
                         heads_kv,
                         random_integer(&random, 1, 4),
                         random_integer(&random, 1, 4)};
        const variant v = {n,
                           random_integer(&random, -1, 4),
                           random_integer(&random, -1, 3),
                           random_integer(&random, -1, 3),
                           random_chance(&random, 0.5) ? NAN : random_normal(&random),
                           random_chance(&random, 0.5) ? 0.0f : 1.0f + fabsf(random_normal(&random)),
                           random_chance(&random, 0.3),
                           random_chance(&random, 0.5),
                           random_chance(&random, 0.5)};
        assert_gradients(&v, &random);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(gradients_match_finite_differences_at_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

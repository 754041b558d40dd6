/* Device plans of vectors in GPU memory equal host plans of the mask that the same vectors make on the host: every format, any
 * strides, values out of range, updates, and updates replayed from a graph. Skips without a GPU. */
#include <stdio.h>

#include "device_plan_checks.h"
#include "support/random.h"

/* Vectors on the device, in some memory order, and the same values here in the host's order. */
typedef struct vector_case {
    fm_mask_vectors vectors;
    int64_t elements;         /* of the device array */
    int32_t *device, *values; /* values: [Bm, Hm, Sk, vectors] */
} vector_case;

typedef struct vector_form {
    fm_vector_format format;
    int32_t vectors;
    bool causal;
} vector_form;

static const vector_form forms[] = {
    {FM_VECTORS_STARTEND, 1, true},   {FM_VECTORS_STARTEND, 2, true},   {FM_VECTORS_STARTEND, 2, false},
    {FM_VECTORS_STARTEND, 4, false},  {FM_VECTORS_FMS_FME, 2, false},   {FM_VECTORS_FMS_FME, 4, false},
    {FM_VECTORS_FMS_FME, 6, false},   {FM_VECTORS_FMS_FME, 8, false},   {FM_VECTORS_INTERVALS, 2, false},
    {FM_VECTORS_INTERVALS, 4, false}, {FM_VECTORS_INTERVALS, 6, false}, {FM_VECTORS_INTERVALS, 8, false},
};
enum { FORMS = sizeof forms / sizeof *forms };

static const int64_t *extents_of(const fm_mask_vectors *v, int64_t extents[4]) {
    extents[0] = v->shape.batch;
    extents[1] = v->shape.heads;
    extents[2] = v->shape.columns;
    extents[3] = v->vectors;
    return extents;
}

/* Extents in a random order, with gaps; sometimes an extent repeats one element. */
static void draw_strides(test_random *r, vector_case *c) {
    int64_t extents[4], step = 1;
    int order[4] = {3, 2, 1, 0};
    extents_of(&c->vectors, extents);
    for (int i = 3; i > 0 && random_chance(r, 0.7); i--) {
        const int j = (int)random_integer(r, 0, i), x = order[i];
        order[i] = order[j];
        order[j] = x;
    }
    for (int i = 0; i < 4; i++) {
        c->vectors.stride[order[i]] = step;
        if (random_chance(r, 0.15)) {
            c->vectors.stride[order[i]] = 0;
        } else {
            step = step * extents[order[i]] + random_integer(r, 0, 1) * random_integer(r, 0, 5);
        }
    }
    c->elements = step + 1;
    for (int i = 0; i < 4; i++) { /* extents of gaps too */
        c->elements += extents[i] * c->vectors.stride[i];
    }
}

static int32_t draw_value(test_random *r, int64_t rows) {
    static const int32_t odd[] = {INT32_MIN, INT32_MAX, -1, 0, 1};
    if (random_chance(r, 0.1)) {
        return odd[random_integer(r, 0, 4)];
    }
    return (int32_t)random_integer(r, -3, rows + 3);
}

/* New values, on the device and here. Runs of keys have equal ones, so that whole tiles are visible or hidden. */
static void draw_values(test_random *r, vector_case *c) {
    const fm_mask_vectors *v = &c->vectors;
    const int64_t *s = v->stride;
    int32_t *array = calloc((size_t)c->elements, sizeof *array);
    int64_t extents[4], at = 0;
    extents_of(v, extents);
    assert_non_null(array);
    for (int64_t i = 0; i < c->elements; i++) {
        array[i] = draw_value(r, v->shape.rows);
    }
    for (int64_t b = 0; b < extents[0]; b++) {
        for (int64_t h = 0; h < extents[1]; h++) {
            for (int64_t j = 0; j < extents[2]; j++) {
                const bool repeats = j > 0 && !random_chance(r, 0.02);
                for (int64_t i = 0; i < extents[3]; i++) {
                    int32_t *element = &array[b * s[0] + h * s[1] + j * s[2] + i * s[3]];
                    *element = repeats ? array[b * s[0] + h * s[1] + (j - 1) * s[2] + i * s[3]] : *element;
                }
            }
        }
    }
    for (int64_t i = 0; i < extents[0] * extents[1] * extents[2] * extents[3]; i++) {
        const int64_t key = i / extents[3] % extents[2], plane = i / extents[3] / extents[2];
        c->values[at++] = array[plane / extents[1] * s[0] + plane % extents[1] * s[1] + key * s[2] + i % extents[3] * s[3]];
    }
    cuda(cudaMemcpy(c->device, array, (size_t)c->elements * sizeof *array, cudaMemcpyHostToDevice));
    free(array);
}

static vector_case make_case(test_random *r, vector_form form, fm_mask_shape shape) {
    vector_case c = {.vectors = FM_MASK_VECTORS_INIT};
    c.vectors.format = form.format;
    c.vectors.vectors = form.vectors;
    c.vectors.causal = form.causal;
    c.vectors.shape = shape;
    c.vectors.device = gpu;
    draw_strides(r, &c);
    c.values = malloc((size_t)(shape.batch * shape.heads * shape.columns * form.vectors) * sizeof *c.values + 1);
    assert_non_null(c.values);
    cuda(cudaMalloc((void **)&c.device, (size_t)c.elements * sizeof *c.device));
    c.vectors.data = c.device;
    return c;
}

static void free_case(vector_case *c) {
    cuda(cudaFree(c->device));
    free(c->values);
}

/* What the host makes of pairs: they must be in range there. */
static fm_mask *mask_of_pairs(const vector_case *c) {
    const fm_mask_vectors *v = &c->vectors;
    const int64_t planes = v->shape.batch * v->shape.heads, keys = v->shape.columns, pairs = v->vectors / 2;
    fm_interval *intervals = malloc((size_t)(planes * keys * pairs) * sizeof *intervals + 1);
    fm_mask *mask = NULL;
    assert_non_null(intervals);
    for (int64_t i = 0; i < planes * keys * pairs; i++) {
        const int64_t key = i % keys, m = i / keys % pairs, plane = i / keys / pairs;
        const int32_t *pair = c->values + (plane * keys + key) * v->vectors + 2 * m;
        const int64_t past_last = v->format == FM_VECTORS_FMS_FME;
        const int64_t start = fm_clamp(pair[0], 0, v->shape.rows), end = fm_clamp(pair[1] + past_last, 0, v->shape.rows);
        intervals[i] = start < end ? (fm_interval){(int32_t)start, (int32_t)end} : (fm_interval){0, 0};
    }
    succeed(fm_mask_from_intervals(v->shape, (int32_t)pairs, intervals, &mask));
    free(intervals);
    return mask;
}

static fm_mask *mask_of(const vector_case *c) {
    const fm_mask_vectors *v = &c->vectors;
    fm_mask *mask = NULL;
    if (v->format != FM_VECTORS_STARTEND) {
        return mask_of_pairs(c);
    }
    succeed(fm_mask_from_startend_row_indices(v->shape, v->vectors, v->causal, c->values, &mask));
    return mask;
}

static void check_case(device_plan *d, const vector_case *c, fm_plan_options options) {
    fm_mask *mask = mask_of(c);
    check_plan(d, mask, options);
    fm_mask_free(mask);
}

static fm_plan_options draw_flags(test_random *r, int64_t columns) {
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.causal = random_chance(r, 0.3);
    options.window_left = random_chance(r, 0.3) ? random_integer(r, 0, columns) : -1;
    options.window_right = random_chance(r, 0.3) ? random_integer(r, 0, columns) : -1;
    return options;
}

static device_plan make_plan(const vector_case *c, const fm_plan_options *options) {
    int32_t intervals;
    succeed(fm_mask_vectors_intervals(&c->vectors, &intervals));
    device_plan d = open_plan(c->vectors.shape, intervals, options);
    succeed(fm_plan_create_from_vectors(&c->vectors, options, d.buffer, d.bytes, NULL, &d.plan));
    return d;
}

static void vectors_of_every_form_and_stride_equal_host_plans(void **state) {
    (void)state;
    test_random random = {3};
    for (int i = 0; i < 40 * FORMS; i++) {
        const int64_t most = i % 10 == 0 ? 2500 : 400;
        const fm_mask_shape shape = {random_integer(&random, 1, 3), random_integer(&random, 1, 3),
                                     random_integer(&random, 1, most), random_integer(&random, 1, most)};
        vector_case c = make_case(&random, forms[i % FORMS], shape);
        const fm_plan_options options = draw_flags(&random, shape.columns);
        draw_values(&random, &c);
        device_plan d = make_plan(&c, &options);
        check_case(&d, &c, options);
        close_plan(&d);
        free_case(&c);
    }
}

static void an_update_replaces_the_contents(void **state) {
    (void)state;
    test_random random = {4};
    for (int i = 0; i < FORMS; i++) {
        vector_case c = make_case(&random, forms[i], (fm_mask_shape){2, 2, 500, 333});
        const fm_plan_options options = draw_flags(&random, 333);
        draw_values(&random, &c);
        device_plan d = make_plan(&c, &options);
        for (int round = 0; round < 3; round++) {
            draw_values(&random, &c);
            succeed(fm_plan_update_from_vectors(d.plan, &c.vectors, NULL));
            check_case(&d, &c, options);
        }
        close_plan(&d);
        free_case(&c);
    }
}

static void a_captured_update_reads_new_contents_at_every_replay(void **state) {
    (void)state;
    test_random random = {5};
    vector_case c = make_case(&random, forms[7], (fm_mask_shape){1, 2, 3000, 2900});
    const fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    draw_values(&random, &c);
    device_plan d = make_plan(&c, &options);
    cuda(cudaStreamCreate(&stream));
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    succeed(fm_plan_update_from_vectors(d.plan, &c.vectors, stream));
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 3; round++) {
        draw_values(&random, &c);
        cuda(cudaGraphLaunch(exec, stream));
        check_case(&d, &c, options);
    }
    cuda(cudaGraphExecDestroy(exec));
    cuda(cudaGraphDestroy(graph));
    cuda(cudaStreamDestroy(stream));
    close_plan(&d);
    free_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_every_form_and_stride_equal_host_plans),
        cmocka_unit_test(an_update_replaces_the_contents),
        cmocka_unit_test(a_captured_update_reads_new_contents_at_every_replay),
    };
    return gpu_is_present() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}

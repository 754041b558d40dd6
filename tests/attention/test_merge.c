/* Merging of partial results over disjoint sets of keys. */
#include "mask/writer.h"
#include "support/attention_case.h"
#include "support/cmocka_all.h"
#include "support/random_mask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 5 };

/* The whole mask with every column emptied whose part is another one. */
static fm_mask *part_of(const fm_mask *whole, const int *part_of_column, int part) {
    const fm_mask_shape shape = fm_mask_get_shape(whole);
    fm_mask_writer writer;
    fm_mask *mask = NULL;
    assert_int_equal(fm_mask_writer_open(&writer, shape, FM_MAX_INTERVALS, NULL), FM_OK);
    for (int64_t plane = 0; plane < shape.batch * shape.heads; plane++) {
        for (int64_t j = 0; j < shape.columns; j++) {
            fm_interval v[FM_MAX_INTERVALS];
            int32_t count = 0;
            const int64_t b = plane / shape.heads, h = plane % shape.heads;
            assert_int_equal(fm_mask_column(whole, b, h, j, v, &count), FM_OK);
            if (part_of_column[j] == part) {
                assert_int_equal(fm_mask_writer_column(&writer, b, h, j, v, count), FM_OK);
            }
        }
    }
    assert_int_equal(fm_mask_writer_finish(&writer, &mask), FM_OK);
    fm_mask_writer_close(&writer);
    return mask;
}

typedef struct partial {
    test_tensor output, lse; /* lse [1, B, Hq, Sq] */
} partial;

static partial forward(const attention_case *c, const attention_inputs *in, const fm_mask *mask, bool with_sinks) {
    partial r = {test_tensor_make(c->layout, c->dtype, c->batch, c->rows, c->heads, c->head_dim_v),
                 test_tensor_make(LAYOUT_CONTIGUOUS, FM_F32, 1, c->batch, c->heads, c->rows)};
    fm_attention_forward_args args = FM_ATTENTION_FORWARD_ARGS_INIT;
    args.query = in->query.view;
    args.key = in->key.view;
    args.value = in->value.view;
    args.mask = mask;
    args.sinks = with_sinks ? in->sinks : NULL;
    args.output = r.output.view;
    args.lse = r.lse.buffer;
    args.backend = FM_BACKEND_REFERENCE;
    assert_int_equal(fm_attention_forward(&args), FM_OK);
    return r;
}

static void drop(partial *r) {
    test_tensor_free(&r->output);
    test_tensor_free(&r->lse);
}

static attention_case draw_case(test_random *r) {
    const int64_t heads_kv = random_integer(r, 1, 2);
    return (attention_case){.batch = random_integer(r, 1, 2),
                            .rows = random_integer(r, 1, 20),
                            .columns = random_integer(r, 1, 40),
                            .heads = heads_kv * random_integer(r, 1, 2),
                            .heads_kv = heads_kv,
                            .head_dim = 8,
                            .head_dim_v = random_integer(r, 1, 8),
                            .dtype = FM_F64,
                            .layout = (test_layout)random_integer(r, 0, LAYOUT_COUNT - 1),
                            .with_sinks = random_chance(r, 0.5)};
}

/* Merges in place, the sinks last, and compares with one call over all keys. The only rounding is that of lse to f32:
 * 2^-24 of it, up to about 8 here, in each of at most 5 weights. */
static void assert_split_equals_whole(test_random *random) {
    const attention_case c = draw_case(random);
    attention_inputs in = attention_inputs_make(&c, random);
    fm_mask *mask = random_mask(random, (fm_mask_shape){1, c.heads_kv, c.rows, c.columns},
                                (int32_t)random_integer(random, 0, FM_MAX_INTERVALS), NULL);
    const int parts = (int)random_integer(random, 2, MOST_PARTS);
    int part_of_column[40];
    for (int j = 0; j < c.columns; j++) {
        part_of_column[j] = (int)random_integer(random, 0, parts - 1);
    }
    partial whole = forward(&c, &in, mask, c.with_sinks), merged = {0};
    for (int part = 0; part < parts; part++) {
        fm_mask *mask_of_part = part_of(mask, part_of_column, part);
        partial next = forward(&c, &in, mask_of_part, false);
        fm_mask_free(mask_of_part);
        if (part == 0) {
            merged = next;
            continue;
        }
        assert_int_equal(fm_attention_merge(&merged.output.view, merged.lse.buffer, &next.output.view, next.lse.buffer,
                                            part == parts - 1 ? in.sinks : NULL, &merged.output.view, merged.lse.buffer),
                         FM_OK);
        drop(&next);
    }
    const double unit = 0x1p-24 * 8 * MOST_PARTS;
    assert_true(test_tensor_distance(&merged.lse, &whole.lse) <= unit);
    assert_true(test_tensor_distance(&merged.output, &whole.output) <= unit * fmax(1.0, test_tensor_largest(&whole.output)));
    drop(&merged);
    drop(&whole);
    fm_mask_free(mask);
    attention_inputs_free(&in);
}

static void any_split_of_the_keys_merges_to_the_whole(void **state) {
    (void)state;
    test_random random = {1};
    for (int i = 0; i < 200; i++) {
        assert_split_equals_whole(&random);
    }
}

/* https://github.com/flashinfer-ai/flashinfer/issues/4484 and https://github.com/flashinfer-ai/flashinfer/issues/4051:
 * two empty states merge to an empty state, not to NaN. */
static void two_empty_parts_are_empty(void **state) {
    (void)state;
    float zero[64] = {0}, output[64], lse;
    const float empty = -INFINITY, sink = 0.5f;
    const fm_tensor o1 = fm_tensor_contiguous(zero, FM_F32, 1, 1, 1, 64), o = fm_tensor_contiguous(output, FM_F32, 1, 1, 1, 64);
    const float *const sinks[] = {NULL, &sink};
    for (int with_sink = 0; with_sink < 2; with_sink++) {
        memset(output, 0xff, sizeof output);
        assert_int_equal(fm_attention_merge(&o1, &empty, &o1, &empty, sinks[with_sink], &o, &lse), FM_OK);
        assert_true(lse == -INFINITY);
        assert_memory_equal(output, zero, sizeof output);
    }
}

/* Even where the empty part's output was never written. */
static void an_empty_part_leaves_the_other_bit_for_bit(void **state) {
    (void)state;
    test_random random = {2};
    float live[64], garbage[64], output[64], lse, lse_live = 3.7f, empty = -INFINITY;
    for (int d = 0; d < 64; d++) {
        live[d] = random_normal(&random);
    }
    memset(garbage, 0xff, sizeof garbage);
    const fm_tensor o1 = fm_tensor_contiguous(live, FM_F32, 1, 1, 1, 64), o2 = fm_tensor_contiguous(garbage, FM_F32, 1, 1, 1, 64),
                    o = fm_tensor_contiguous(output, FM_F32, 1, 1, 1, 64);
    assert_int_equal(fm_attention_merge(&o1, &lse_live, &o2, &empty, NULL, &o, &lse), FM_OK);
    assert_memory_equal(output, live, sizeof output);
    assert_true(lse == lse_live);
    assert_int_equal(fm_attention_merge(&o2, &empty, &o1, &lse_live, NULL, &o, &lse), FM_OK);
    assert_memory_equal(output, live, sizeof output);
    assert_true(lse == lse_live);
    const float not_a_number = NAN;
    assert_int_equal(fm_attention_merge(&o1, &not_a_number, &o1, &empty, NULL, &o, NULL), FM_OK);
    assert_true(isnan(output[0]));
}

/* The sink's share is 1 / (1 + exp(lse - sink)); lse stays without it. Extremes of either do not overflow. */
static void a_sink_scales_by_a_sigmoid(void **state) {
    (void)state;
    const float lse1 = 1.0f, lse2 = 2.0f, sinks[] = {0.5f, -INFINITY, 1e30f, -1e30f};
    float one = 1.0f, three = 3.0f, output, lse;
    const fm_tensor o1 = fm_tensor_contiguous(&one, FM_F32, 1, 1, 1, 1), o2 = fm_tensor_contiguous(&three, FM_F32, 1, 1, 1, 1),
                    o = fm_tensor_contiguous(&output, FM_F32, 1, 1, 1, 1);
    for (int i = 0; i < 4; i++) {
        const double total = exp(1.0) + exp(2.0), wanted = (exp(1.0) + 3.0 * exp(2.0)) / (total + exp((double)sinks[i]));
        assert_int_equal(fm_attention_merge(&o1, &lse1, &o2, &lse2, &sinks[i], &o, &lse), FM_OK);
        assert_true(fabs((double)output - wanted) < 1e-6);
        assert_true(fabs((double)lse - log(total)) < 1e-6);
    }
}

static void merging_in_place_gives_the_same_bits(void **state) {
    (void)state;
    test_random random = {3};
    const fm_dtype dtypes[] = {FM_F32, FM_F16, FM_BF16, FM_F64};
    for (int i = 0; i < 12; i++) {
        test_tensor o1 = test_tensor_make((test_layout)(i % LAYOUT_COUNT), dtypes[i % 4], 2, 5, 3, 7);
        test_tensor o2 = test_tensor_make(LAYOUT_TRANSPOSED, FM_F32, 2, 5, 3, 7);
        test_tensor apart = test_tensor_make(LAYOUT_SLICED, dtypes[i % 4], 2, 5, 3, 7);
        float lse1[30], lse2[30], lse[30];
        test_tensor_fill(&o1, &random, 1.0);
        test_tensor_fill(&o2, &random, 1.0);
        for (int k = 0; k < 30; k++) {
            lse1[k] = random_chance(&random, 0.2) ? -INFINITY : random_normal(&random);
            lse2[k] = random_chance(&random, 0.2) ? -INFINITY : random_normal(&random);
        }
        assert_int_equal(fm_attention_merge(&o1.view, lse1, &o2.view, lse2, NULL, &apart.view, lse), FM_OK);
        assert_int_equal(fm_attention_merge(&o1.view, lse1, &o2.view, lse2, NULL, &o1.view, lse1), FM_OK);
        assert_true(test_tensor_same(&apart, &o1));
        assert_memory_equal(lse, lse1, sizeof lse);
        test_tensor_free(&o1);
        test_tensor_free(&o2);
        test_tensor_free(&apart);
    }
}

/* A valid merge of 2 x 3 x 2 x 4, all of its memory in one arena. */
typedef struct arguments {
    fm_tensor o1, o2, o;
    const float *lse1, *lse2, *sinks;
    float *lse;
} arguments;
static float arena[400], before[400];

static arguments valid_arguments(void) {
    const arguments a = {.o1 = fm_tensor_contiguous(arena, FM_F32, 2, 3, 2, 4),
                         .o2 = fm_tensor_contiguous(arena + 48, FM_F32, 2, 3, 2, 4),
                         .o = fm_tensor_contiguous(arena + 96, FM_F32, 2, 3, 2, 4),
                         .lse1 = arena + 200,
                         .lse2 = arena + 212,
                         .sinks = arena + 224,
                         .lse = arena + 226};
    return a;
}

static void no_o1_data(arguments *a) { a->o1.data = NULL; }
static void no_lse1(arguments *a) { a->lse1 = NULL; }
static void no_lse2(arguments *a) { a->lse2 = NULL; }
static void short_o2(arguments *a) { a->o2.shape[1] = 2; }
static void short_o(arguments *a) { a->o.shape[3] = 3; }
static void no_head_dim(arguments *a) { a->o1.shape[3] = a->o2.shape[3] = a->o.shape[3] = 0; }
static void bad_dtype(arguments *a) { a->o2.dtype = (fm_dtype)7; }
static void shared_o(arguments *a) { a->o.stride[1] = 0; }
static void o_on_a_device(arguments *a) { a->o.device.kind = FM_CUDA; }
static void o_is_o2(arguments *a) { a->o = a->o2; }
static void o_is_another_view_of_o1(arguments *a) {
    a->o = a->o1;
    a->o.stride[1] = 4;
    a->o.stride[2] = 12;
}
static void o_meets_o1(arguments *a) { a->o.data = arena + 44; }
static void o_holds_lse1(arguments *a) { a->o.data = arena + 200; }
static void lse_is_lse2(arguments *a) { a->lse = (float *)a->lse2; }
static void lse_meets_lse1(arguments *a) { a->lse = (float *)a->lse1 + 1; }
static void lse_holds_sinks(arguments *a) { a->lse = (float *)a->sinks; }
static void lse_in_o(arguments *a) { a->lse = arena + 100; }
static void crooked_lse2(arguments *a) { a->lse2 = (const float *)(const void *)((const char *)a->lse2 + 1); }

static void bad_arguments_are_refused_and_nothing_is_written(void **state) {
    (void)state;
    const struct {
        void (*spoil)(arguments *a);
        fm_status status;
        const char *name;
    } table[] = {
        {no_o1_data, FM_ERROR_ARGUMENT, "o1:"},
        {no_lse1, FM_ERROR_ARGUMENT, "lse1:"},
        {no_lse2, FM_ERROR_ARGUMENT, "lse2:"},
        {short_o2, FM_ERROR_SHAPE, "o2:"},
        {short_o, FM_ERROR_SHAPE, "o:"},
        {no_head_dim, FM_ERROR_SHAPE, "o1: head_dim"},
        {bad_dtype, FM_ERROR_DTYPE, "o2:"},
        {shared_o, FM_ERROR_SHAPE, "o:"},
        {o_on_a_device, FM_ERROR_DEVICE, "o:"},
        {o_is_o2, FM_ERROR_ARGUMENT, "o: shares memory with o2"},
        {o_meets_o1, FM_ERROR_ARGUMENT, "o1"},
        {o_is_another_view_of_o1, FM_ERROR_ARGUMENT, "another view"},
        {o_holds_lse1, FM_ERROR_ARGUMENT, "lse1"},
        {lse_is_lse2, FM_ERROR_ARGUMENT, "lse2"},
        {lse_meets_lse1, FM_ERROR_ARGUMENT, "lse1"},
        {lse_holds_sinks, FM_ERROR_ARGUMENT, "sinks"},
        {lse_in_o, FM_ERROR_ARGUMENT, "lse:"},
        {crooked_lse2, FM_ERROR_ARGUMENT, "lse2:"},
    };
    memset(arena, 0x2f, sizeof arena);
    memcpy(before, arena, sizeof arena);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        arguments a = valid_arguments();
        table[i].spoil(&a);
        const fm_status status = fm_attention_merge(&a.o1, a.lse1, &a.o2, a.lse2, a.sinks, &a.o, a.lse);
        if (status != table[i].status || strstr(fm_error_message(), table[i].name) == NULL) {
            fail_msg("case %zu: %s: %s", i, fm_status_name(status), fm_error_message());
        }
        assert_memory_equal(arena, before, sizeof arena);
    }
    const arguments a = valid_arguments();
    assert_int_equal(fm_attention_merge(NULL, a.lse1, &a.o2, a.lse2, NULL, &a.o, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_attention_merge(&a.o1, a.lse1, NULL, a.lse2, NULL, &a.o, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_attention_merge(&a.o1, a.lse1, &a.o2, a.lse2, NULL, NULL, NULL), FM_ERROR_ARGUMENT);
    assert_int_equal(fm_attention_merge(&a.o1, a.lse1, &a.o2, a.lse2, a.sinks, &a.o, a.lse), FM_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_of_the_keys_merges_to_the_whole),
        cmocka_unit_test(two_empty_parts_are_empty),
        cmocka_unit_test(an_empty_part_leaves_the_other_bit_for_bit),
        cmocka_unit_test(a_sink_scales_by_a_sigmoid),
        cmocka_unit_test(merging_in_place_gives_the_same_bits),
        cmocka_unit_test(bad_arguments_are_refused_and_nothing_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Equal bits on the GPU, forward and deterministic backward: whatever is skipped, however the plan is made, on every run and beside
 * any batch neighbours. */
#include "device_case.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/mask_kinds.h"
#include "support/random_mask.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <stdlib.h>
#include <string.h>

static int64_t pick(test_random *r, const int64_t *from, int64_t count) { return from[random_integer(r, 0, count - 1)]; }

/* A case with everything drawn but the mask. */
static attention_case draw_case(test_random *r) {
    static const int64_t lengths[] = {1, 17, 64, 65, 127, 128, 129, 200, 333}, dims[] = {8, 40, 64, 72, 96, 128, 192, 256};
    static const int64_t heads[][2] = {{1, 1}, {6, 1}, {6, 2}, {6, 3}, {3, 3}};
    const int64_t *h = heads[random_integer(r, 0, 4)];
    attention_case c = simple_case(random_integer(r, 1, 3), pick(r, lengths, 9), pick(r, lengths, 9), h[0], h[1],
                                   device_head_dim(pick(r, dims, 8)));
    c.head_dim_v = device_head_dim(pick(r, dims, 8));
    c.dtype = random_chance(r, 0.2) ? FM_F32 : random_chance(r, 0.5) ? FM_F16 : FM_BF16;
    c.layout = (test_layout)random_integer(r, 0, LAYOUT_COUNT - 1);
    c.softcap = random_chance(r, 0.3) ? 2.0f : 0.0f;
    c.with_sinks = random_chance(r, 0.3);
    c.with_grad_lse = random_chance(r, 0.3);
    c.f32_results = random_chance(r, 0.3);
    return c;
}

/* ---- plans and skipping ------------------------------------------------------------------------------------------------ */

static void assert_same_bits(const attention_case *c, const attention_inputs *in, const attention_results *one,
                             device_options options) {
    options.deterministic = true;
    attention_results other = device_run(c, in, options);
    attention_assert_same_bits(one, &other);
    attention_results_free(&other);
}

/* Plan built inside, of the mask, of vectors; each skipping and not. */
static void assert_one_kind(const attention_case *c, test_random *random) {
    attention_inputs in = attention_inputs_make(c, random);
    attention_results one = device_run(c, &in, (device_options){.deterministic = true});
    device_plan plans[2] = {device_plan_of_mask(c, NULL)};
    const int count = c->mask == NULL || !fm_mask_has_fallback(c->mask) ? 2 : 1;
    if (count == 2) {
        plans[1] = device_plan_of_vectors(c, NULL);
    }
    assert_same_bits(c, &in, &one, (device_options){.no_skip = true});
    for (int i = 0; i < count; i++) {
        assert_same_bits(c, &in, &one, (device_options){.plan = &plans[i]});
        assert_same_bits(c, &in, &one, (device_options){.plan = &plans[i], .no_skip = true});
    }
    for (int i = 0; i < count; i++) {
        device_plan_free(&plans[i]);
    }
    attention_results_free(&one);
    attention_inputs_free(&in);
}

static void plans_and_no_skip_change_no_bit_under_any_mask(void **state) {
    (void)state;
    test_random random = {1};
    for (int i = 0; i < 2 * mask_kind_count; i++) {
        attention_case c = draw_case(&random);
        mask_kinds[i % mask_kind_count].make(&random, &c);
        c.name = mask_kinds[i % mask_kind_count].name;
        assert_one_kind(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Long enough for many tiles on each side of a row's first and last visible one. */
static void no_skip_changes_no_bit_over_many_tiles(void **state) {
    (void)state;
    test_random random = {2};
    for (int32_t i = 0; i < 6; i++) {
        attention_case c = simple_case(1, 1500, 1800, 2, 1, i % 2 == 0 ? 64 : device_head_dim(128));
        c.dtype = i % 3 == 0 ? FM_F16 : FM_BF16;
        c.mask = random_mask(&random, (fm_mask_shape){1, 1, c.rows, c.columns}, i + 1, NULL);
        assert_one_kind(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

static void no_skip_changes_no_bit_where_adjacent_lines_see_unlike_tiles(void **state) {
    (void)state;
    static const int64_t dims[] = {64, 96, 128, 192, 256};
    test_random random = {8};
    for (int i = 0; i < 10; i++) {
        attention_case c = simple_case(1, 500, 1700, 2, 1, device_head_dim(dims[i % 5]));
        c.dtype = i < 5 ? FM_F16 : FM_BF16;
        c.causal = i % 2 == 1;
        c.mask = device_blocks(&random, c.rows, c.columns, 0.1 + 0.08 * i);
        assert_one_kind(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Groups of keys without a tile, several in a row for a block and more than there are multiprocessors. */
static void no_skip_changes_no_bit_where_nobody_sees_most_keys(void **state) {
    (void)state;
    static const int64_t dims[] = {128, 192, 256};
    test_random random = {11};
    for (int i = 0; i < 6; i++) {
        attention_case c = simple_case(1, 70, 24000, 4, i % 2 == 0 ? 4 : 2, device_head_dim(dims[i % 3]));
        c.dtype = i < 3 ? FM_F16 : FM_BF16;
        c.mask = device_blocks(&random, c.rows, c.columns, 0.05);
        assert_one_kind(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

static void no_skip_changes_no_bit_where_keys_are_split(void **state) {
    (void)state;
    test_random random = {10};
    for (int i = 0; i < 6; i++) {
        attention_case c = simple_case(1 + i % 2, 1 + 90 * i, 2500 + 3000 * i, 2, 1, device_head_dim(i % 3 == 0 ? 192 : 128));
        c.dtype = i % 2 == 0 ? FM_F16 : FM_BF16;
        c.with_sinks = i % 2 == 1;
        c.mask = random_mask(&random, (fm_mask_shape){1, 1, c.rows, c.columns}, i + 1, NULL);
        assert_one_kind(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* Of f16 a weight below 2^-25 is 0, but not what it makes of a gradient: full tiles and partial ones must agree on it. */
static void no_skip_changes_no_bit_where_weights_round_to_0(void **state) {
    (void)state;
    test_random random = {9};
    for (int i = 0; i < 6; i++) {
        const int quarters = 1 + i / 2;
        attention_case c = simple_case(1, 320, 640, 2, 1, device_head_dim(i % 2 == 0 ? 128 : 256));
        c.dtype = FM_F16;
        c.scale = 0.25f * (float)quarters;
        assert_one_kind(&c, &random);
    }
}

/* Steps that are weighed again, because a row's scores rise far above its first ones. */
static void no_skip_changes_no_bit_where_scores_rise(void **state) {
    (void)state;
    static const int64_t dims[] = {64, 96, 128, 192, 256};
    test_random random = {10};
    for (int i = 0; i < 10; i++) {
        attention_case c = simple_case(1, 330 + 17 * i, 1100, 2, 1, device_head_dim(dims[i % 5]));
        c.dtype = FM_BF16;
        c.scale = (float)(1 << i / 2);
        c.causal = i % 2 == 1;
        c.mask = i < 5 ? device_blocks(&random, c.rows, c.columns, 0.3) : NULL;
        assert_one_kind(&c, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* ---- repeats --------------------------------------------------------------------------------------------------------- */

static void assert_bytes(const attention_results *a, const attention_results *b, int results) {
    for (int i = 0; i < results; i++) {
        if (memcmp(result_at(a, i)->buffer, result_at(b, i)->buffer, result_at(a, i)->bytes) != 0) {
            fail_msg("%s differs between two runs", result_names[i]);
        }
    }
}

/* Work of other shapes that keeps a second stream busy meanwhile. */
static device_call busy_call(test_random *random, cudaStream_t stream) {
    const attention_case c = simple_case(1, 700, 700, 3, 3, 64);
    attention_inputs in = attention_inputs_make(&c, random);
    device_call x = device_call_make(&c, &in, (device_options){.stream = stream});
    attention_inputs_free(&in);
    return x;
}

/* The forward call's bits always, those of the backward call if it is deterministic. */
static void assert_repeats(const attention_case *c, int runs, bool deterministic, test_random *random) {
    cudaStream_t stream = device_stream_make();
    device_call busy = busy_call(random, stream);
    attention_inputs in = attention_inputs_make(c, random);
    device_call x = device_call_make(c, &in, (device_options){.deterministic = deterministic});
    attention_results first = attention_results_make(c), other = x.results;
    for (int i = 0; i < runs; i++) {
        device_call_poison(&x);
        device_call_launch(&busy);
        device_call_launch(&x);
        x.results = i == 0 ? first : other;
        device_call_read(&x);
        assert_bytes(&first, i == 0 ? &first : &other, deterministic ? RESULT_COUNT : RESULT_GRAD_QUERY);
    }
    x.results = other;
    device_call_free(&x);
    device_call_free(&busy);
    attention_results_free(&first);
    attention_inputs_free(&in);
    CUDA(cudaStreamDestroy(stream));
}

static void twenty_runs_have_equal_bits(void **state) {
    (void)state;
    test_random random = {3};
    static const int64_t dims[] = {64, 96, 128, 192, 256};
    for (int i = 0; i < 10; i++) {
        attention_case c = simple_case(2, 600, 500, 6, 2, device_head_dim(dims[i % 5]));
        c.dtype = i < 5 ? FM_BF16 : FM_F16;
        c.with_sinks = true;
        c.mask = random_mask(&random, (fm_mask_shape){1, 1, c.rows, c.columns}, 2, NULL);
        assert_repeats(&c, 20, i % 2 == 0, &random);
        fm_mask_free((fm_mask *)c.mask);
    }
    attention_case f32 = simple_case(2, 300, 400, 4, 2, 64);
    f32.causal = true;
    assert_repeats(&f32, 20, true, &random);
}

/* https://github.com/Dao-AILab/flash-attention/issues/2244 */
static void two_hundred_deterministic_runs_under_load_have_equal_bits(void **state) {
    (void)state;
    test_random random = {4};
    static const int64_t dims[] = {64, 128, 192, 256}; /* each with a backward kernel of Hopper's */
    for (int i = 0; i < 4; i++) {
        attention_case c = simple_case(2, 1024, 1024, 12, 12, device_head_dim(dims[i]));
        c.dtype = FM_F16;
        assert_repeats(&c, 200, true, &random);
    }
}

/* https://github.com/PaddlePaddle/flash-attention/pull/134, https://github.com/SandAI-org/MagiAttention/issues/65 */
static void fifty_deterministic_runs_of_a_shared_question_have_equal_bits(void **state) {
    (void)state;
    test_random random = {5};
    const int64_t answers[] = {130, 40, 141};
    attention_case c = simple_case(1, 512, 512, 8, 2, 128);
    c.head_dim = c.head_dim_v = device_head_dim(128);
    c.dtype = FM_BF16;
    succeed(fm_mask_share_question(1, &(fm_question){201, 3, answers}, false, 0, (fm_mask **)&c.mask));
    assert_repeats(&c, 50, true, &random);
    fm_mask_free((fm_mask *)c.mask);
}

/* ---- neighbours ------------------------------------------------------------------------------------------------------ */

static attention_inputs item_of(const attention_case *c, const attention_inputs *in, int64_t b) {
    const test_tensor *from[] = {&in->query, &in->key, &in->value, &in->grad_output};
    test_tensor item[4];
    for (int i = 0; i < 4; i++) { /* buffers of their own, which go to the device as they are */
        const int64_t *n = from[i]->view.shape;
        const test_tensor one = test_tensor_item(from[i], b);
        item[i] =
            test_tensor_make(from[i] == &in->value ? LAYOUT_CONTIGUOUS : c->layout, from[i]->view.dtype, 1, n[1], n[2], n[3]);
        test_tensor_copy(&item[i], &one);
    }
    return (attention_inputs){.query = item[0],
                              .key = item[1],
                              .value = item[2],
                              .grad_output = item[3],
                              .sinks = in->sinks,
                              .grad_lse = in->grad_lse == NULL ? NULL : in->grad_lse + b * c->heads * c->rows};
}

/* Item b of a batch has the bits of the same item run alone under its own mask. */
static void assert_item(const attention_case *c, const attention_inputs *in, const attention_results *together, int64_t b,
                        const fm_mask *mask) {
    attention_case alone = *c;
    alone.batch = 1;
    alone.mask = mask;
    attention_inputs item = item_of(c, in, b);
    attention_results single = device_run(&alone, &item, (device_options){.deterministic = true});
    const test_tensor *pairs[][2] = {{&together->output, &single.output},
                                     {&together->grad_query, &single.grad_query},
                                     {&together->grad_key, &single.grad_key},
                                     {&together->grad_value, &single.grad_value}};
    for (int k = 0; k < 4; k++) {
        const test_tensor ours = test_tensor_item(pairs[k][0], b);
        assert_true(test_tensor_same(&ours, pairs[k][1]));
    }
    assert_memory_equal((float *)together->lse.buffer + b * c->heads * c->rows, single.lse.buffer, single.lse.bytes);
    item.sinks = item.grad_lse = NULL; /* the batch's */
    attention_inputs_free(&item);
    attention_results_free(&single);
}

/* https://github.com/Dao-AILab/flash-attention/issues/1897 */
static void an_item_alone_has_the_bits_it_has_in_a_batch(void **state) {
    (void)state;
    test_random random = {6};
    for (int i = 0; i < 16; i++) {
        attention_case c = draw_case(&random);
        c.batch = 4;
        c.mask = random_mask(&random, (fm_mask_shape){1, c.heads_kv, c.rows, c.columns}, i % 2 == 0 ? 2 : 6, NULL);
        attention_inputs in = attention_inputs_make(&c, &random);
        attention_results together = device_run(&c, &in, (device_options){.deterministic = true});
        for (int64_t b = 0; b < c.batch; b++) {
            assert_item(&c, &in, &together, b, c.mask);
        }
        attention_results_free(&together);
        attention_inputs_free(&in);
        fm_mask_free((fm_mask *)c.mask);
    }
}

/* https://github.com/pytorch/pytorch/issues/157675 */
static void a_packed_item_alone_has_the_bits_it_has_in_a_batch_of_eight(void **state) {
    (void)state;
    enum { BATCH = 8, LENGTH = 700, DOCUMENTS = 4 };
    test_random random = {7};
    fm_mask *items[BATCH];
    attention_case c = simple_case(BATCH, LENGTH, LENGTH, 6, 2, 64);
    c.dtype = FM_BF16;
    for (int b = 0; b < BATCH; b++) {
        int64_t lengths[DOCUMENTS], rest = LENGTH;
        for (int k = 0; k < DOCUMENTS; k++) {
            lengths[k] = random_integer(&random, 0, rest);
            rest -= lengths[k];
        }
        succeed(fm_mask_documents(DOCUMENTS, lengths, true, rest, &items[b]));
    }
    succeed(fm_mask_stack_batch((const fm_mask *const *)items, BATCH, (fm_mask **)&c.mask));
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results together = device_run(&c, &in, (device_options){.deterministic = true});
    for (int b = 0; b < BATCH; b++) {
        assert_item(&c, &in, &together, b, items[b]);
        fm_mask_free(items[b]);
    }
    attention_results_free(&together);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_and_no_skip_change_no_bit_under_any_mask),
        cmocka_unit_test(no_skip_changes_no_bit_over_many_tiles),
        cmocka_unit_test(no_skip_changes_no_bit_where_adjacent_lines_see_unlike_tiles),
        cmocka_unit_test(no_skip_changes_no_bit_where_weights_round_to_0),
        cmocka_unit_test(no_skip_changes_no_bit_where_scores_rise),
        cmocka_unit_test(no_skip_changes_no_bit_where_nobody_sees_most_keys),
        cmocka_unit_test(no_skip_changes_no_bit_where_keys_are_split),
        cmocka_unit_test(twenty_runs_have_equal_bits),
        cmocka_unit_test(two_hundred_deterministic_runs_under_load_have_equal_bits),
        cmocka_unit_test(fifty_deterministic_runs_of_a_shared_question_have_equal_bits),
        cmocka_unit_test(an_item_alone_has_the_bits_it_has_in_a_batch),
        cmocka_unit_test(a_packed_item_alone_has_the_bits_it_has_in_a_batch_of_eight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

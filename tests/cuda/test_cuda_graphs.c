/* Calls in CUDA graphs, on several streams, from several threads and in a second context of the device; none allocates. */
#include "device_case.h"
#include "device_graph.h"
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random_mask.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 300, MASKS = 3 };

static attention_case graph_case(void) {
    attention_case c = simple_case(2, LENGTH, LENGTH, 4, 2, 64);
    c.dtype = FM_BF16;
    c.with_sinks = true;
    return c;
}

/* 320 groups of rows and 160 of keys: the blocks of Hopper's kernels, one a multiprocessor (an H200 has 132), count these. */
static attention_case counted_case(void) {
    attention_case c = simple_case(4, 600, 600, 16, 8, device_head_dim(128));
    c.dtype = FM_BF16;
    c.is_gpu = true;
    return c;
}

/* Masks of two intervals a key in the widest one, so that their vectors have one size. */
static void draw_masks(const attention_case *c, fm_mask *masks[MASKS], test_random *random) {
    for (int i = 0; i < MASKS; i++) {
        masks[i] = random_mask(random, (fm_mask_shape){c->batch, 1, c->rows, c->columns}, 2, NULL);
        assert_int_equal(fm_mask_interval_count(masks[i]), 2);
    }
}

static void free_masks(fm_mask *masks[MASKS]) {
    for (int i = 0; i < MASKS; i++) {
        fm_mask_free(masks[i]);
    }
}

static void write_vectors(const device_plan *plan, const fm_mask *mask) {
    size_t bytes = 0;
    int32_t *v = device_plan_vectors(mask, &bytes);
    assert_int_equal(bytes, plan->vectors.bytes);
    device_memory_write(&plan->vectors, v);
    free(v);
}

/* What the call holds now against a fresh run, outside of any graph, under a host mask: the same bits; of a call that is not
 * deterministic as close as two orders of a sum are. */
static void assert_like_eager(const device_call *x, const attention_inputs *in, const fm_mask *mask) {
    attention_case c = x->attention;
    c.mask = mask;
    attention_results eager = device_run(&c, in, (device_options){.deterministic = x->backward.deterministic});
    device_call_read(x);
    if (x->backward.deterministic) {
        attention_assert_same_bits(&eager, &x->results);
    } else {
        attention_assert_close(&c, &x->results, &eager, &eager);
    }
    attention_results_free(&eager);
}

/* Replays with the contents of each mask and with new tensors. */
static void assert_replays(cudaGraphExec_t graph, cudaStream_t stream, device_call *x, const device_plan *plan,
                           fm_mask *masks[MASKS], test_random *random) {
    for (int i = 0; i < 2 * MASKS; i++) {
        attention_inputs in = attention_inputs_make(&x->attention, random);
        device_call_write(x, &in);
        device_call_poison(x);
        write_vectors(plan, masks[i % MASKS]);
        device_replay(graph, stream);
        assert_like_eager(x, &in, masks[i % MASKS]);
        attention_inputs_free(&in);
    }
}

/* A call with a plan made from the vectors of the first mask, launched once outside of any graph. */
typedef struct vectors_call {
    attention_case c;
    fm_mask *masks[MASKS];
    attention_inputs in;
    cudaStream_t stream;
    device_plan plan;
    device_call call;
} vectors_call;

static vectors_call *vectors_call_make(const attention_case *c, bool deterministic, test_random *random) {
    vectors_call *x = calloc(1, sizeof *x); /* calls point to the plan inside */
    assert_non_null(x);
    x->c = *c;
    x->stream = device_stream_make();
    draw_masks(&x->c, x->masks, random);
    x->c.mask = x->masks[0];
    x->in = attention_inputs_make(&x->c, random);
    x->plan = device_plan_of_vectors(&x->c, x->stream);
    x->call =
        device_call_make(&x->c, &x->in, (device_options){.plan = &x->plan, .deterministic = deterministic, .stream = x->stream});
    device_call_launch(&x->call);
    return x;
}

static void vectors_call_free(vectors_call *x) {
    device_call_free(&x->call);
    device_plan_free(&x->plan);
    attention_inputs_free(&x->in);
    free_masks(x->masks);
    CUDA(cudaStreamDestroy(x->stream));
    free(x);
}

/* Plan, forward and backward in one graph. */
static void assert_replays_follow(const attention_case *c, bool deterministic, test_random *random) {
    vectors_call *x = vectors_call_make(c, deterministic, random);
    assert_like_eager(&x->call, &x->in, x->masks[0]);
    device_capture_begin(x->stream);
    succeed(fm_plan_update_from_vectors(x->plan.plan, &x->plan.description, x->stream));
    device_call_launch(&x->call);
    cudaGraphExec_t graph = device_capture_end(x->stream);
    assert_replays(graph, x->stream, &x->call, &x->plan, x->masks, random);
    CUDA(cudaGraphExecDestroy(graph));
    vectors_call_free(x);
}

/* Also where dQ is summed in any order: its sum and the counters start anew in each replay. */
static void a_replay_follows_new_vectors_and_tensors(void **state) {
    (void)state;
    test_random random = {1};
    const attention_case cases[] = {graph_case(), counted_case()};
    assert_replays_follow(&cases[0], true, &random);
    assert_replays_follow(&cases[1], false, &random);
}

/* The plan is made anew inside the graph, in the buffer of the first. */
static void a_plan_may_be_created_inside_a_graph(void **state) {
    (void)state;
    test_random random = {2};
    const attention_case c = graph_case();
    vectors_call *x = vectors_call_make(&c, true, &random);
    device_plan *plan = &x->plan;
    CUDA(cudaDeviceSynchronize());
    fm_plan_free(plan->plan);
    device_capture_begin(x->stream);
    succeed(fm_plan_create_from_vectors(&plan->description, NULL, plan->buffer.data, plan->buffer.bytes, x->stream, &plan->plan));
    x->call.forward.plan = plan->plan;
    device_call_launch(&x->call);
    cudaGraphExec_t graph = device_capture_end(x->stream);
    device_memory_write(&plan->buffer, NULL); /* the plan that the replay reads is the replay's own */
    assert_replays(graph, x->stream, &x->call, plan, x->masks, &random);
    CUDA(cudaGraphExecDestroy(graph));
    vectors_call_free(x);
}

/* A call without plan and mask, captured once; workspace and results are poisoned before each replay. */
static void assert_capture(const attention_case *c, int replays, test_random *random) {
    cudaStream_t stream = device_stream_make();
    attention_inputs in = attention_inputs_make(c, random);
    device_call x = device_call_make(c, &in, (device_options){.deterministic = true, .stream = stream});
    device_call_launch(&x);
    device_capture_begin(stream);
    device_call_launch(&x);
    cudaGraphExec_t graph = device_capture_end(stream);
    for (int i = 0; i < replays; i++) {
        device_call_poison(&x);
        device_replay(graph, stream);
        assert_like_eager(&x, &in, NULL);
    }
    CUDA(cudaGraphExecDestroy(graph));
    device_call_free(&x);
    attention_inputs_free(&in);
    CUDA(cudaStreamDestroy(stream));
}

static void a_call_without_plan_and_mask_may_be_captured(void **state) {
    (void)state;
    test_random random = {3};
    attention_case c = graph_case();
    c.causal = true;
    assert_capture(&c, 1, &random);
}

static void a_replay_counts_more_items_than_processors_anew(void **state) {
    (void)state;
    test_random random = {9};
    attention_case c = counted_case();
    c.causal = true;
    assert_capture(&c, 3, &random);
}

static void a_host_mask_is_refused_during_capture_which_goes_on(void **state) {
    (void)state;
    test_random random = {4};
    fm_mask *masks[MASKS];
    attention_case c = graph_case();
    cudaStream_t stream = device_stream_make();
    draw_masks(&c, masks, &random);
    c.mask = masks[0];
    attention_inputs in = attention_inputs_make(&c, &random);
    device_plan plan = device_plan_of_mask(&c, stream);
    device_call with_mask = device_call_make(&c, &in, (device_options){.deterministic = true, .stream = stream});
    device_call with_plan = device_call_make(&c, &in, (device_options){.plan = &plan, .deterministic = true, .stream = stream});
    device_call_launch(&with_plan);
    device_call_poison(&with_plan);
    fm_plan *other = NULL;
    device_capture_begin(stream);
    with_mask.backward.forward = &with_mask.forward;
    refuse(fm_attention_forward(&with_mask.forward), FM_ERROR_CUDA, "stream: is being captured");
    refuse(fm_attention_backward(&with_mask.backward), FM_ERROR_CUDA, "stream: is being captured");
    refuse(fm_plan_create_device(masks[1], NULL, (fm_device){FM_CUDA, 0}, with_mask.workspace[0].data,
                                 with_mask.workspace[0].bytes, stream, &other),
           FM_ERROR_CUDA, "stream: is being captured");
    assert_null(other);
    device_call_launch(&with_plan);
    cudaGraphExec_t graph = device_capture_end(stream);
    device_replay(graph, stream);
    assert_like_eager(&with_plan, &in, masks[0]);
    device_call_read(&with_mask); /* nothing was written */
    for (int i = 0; i < RESULT_COUNT; i++) {
        const unsigned char *bytes = result_at(&with_mask.results, i)->buffer;
        assert_true(bytes[0] == 0xff && bytes[result_at(&with_mask.results, i)->bytes - 1] == 0xff);
    }
    CUDA(cudaGraphExecDestroy(graph));
    device_call_free(&with_mask);
    device_call_free(&with_plan);
    device_plan_free(&plan);
    attention_inputs_free(&in);
    free_masks(masks);
    CUDA(cudaStreamDestroy(stream));
}

/* ---- streams, threads, contexts ---------------------------------------------------------------------------------------- */

/* Problems of their own, each with a stream, a plan and the results that it must give. */
typedef struct lane {
    attention_case c;
    attention_inputs in;
    cudaStream_t stream;
    device_plan plan;
    device_call call;
    attention_results alone;
    fm_status status;
} lane;

static void lane_make(lane *x, int number, test_random *random) {
    x->c = simple_case(1, 200 + 150 * number, 500 - 60 * number, 4, 2, number % 2 == 0 ? 64 : device_head_dim(128));
    x->c.dtype = FM_F16;
    x->c.mask = random_mask(random, (fm_mask_shape){1, 2, x->c.rows, x->c.columns}, 1 + number % 3, NULL);
    x->in = attention_inputs_make(&x->c, random);
    x->alone = device_run(&x->c, &x->in, (device_options){.deterministic = true});
    x->stream = device_stream_make();
    x->plan = device_plan_of_vectors(&x->c, x->stream);
    x->call = device_call_make(&x->c, &x->in, (device_options){.plan = &x->plan, .deterministic = true, .stream = x->stream});
}

/* In stream order: the plan again from its vectors, forward, backward. Called from any thread. */
static void lane_launch(lane *x) {
    x->call.backward.forward = &x->call.forward;
    x->status = fm_plan_update_from_vectors(x->plan.plan, &x->plan.description, x->stream);
    x->status = x->status != FM_OK ? x->status : fm_attention_forward(&x->call.forward);
    x->status = x->status != FM_OK ? x->status : fm_attention_backward(&x->call.backward);
}

static void lane_finish(lane *x) {
    assert_int_equal(x->status, FM_OK);
    device_call_read(&x->call);
    attention_assert_same_bits(&x->alone, &x->call.results);
    device_call_free(&x->call);
    device_plan_free(&x->plan);
    CUDA(cudaStreamDestroy(x->stream));
    attention_results_free(&x->alone);
    attention_inputs_free(&x->in);
    fm_mask_free((fm_mask *)x->c.mask);
}

static void streams_do_not_disturb_each_other(void **state) {
    (void)state;
    enum { LANES = 3, ROUNDS = 20 };
    test_random random = {5};
    lane lanes[LANES];
    for (int i = 0; i < LANES; i++) {
        lane_make(&lanes[i], i, &random);
    }
    for (int k = 0; k < LANES * ROUNDS; k++) {
        lane_launch(&lanes[k % LANES]);
        assert_int_equal(lanes[k % LANES].status, FM_OK);
    }
    for (int i = 0; i < LANES; i++) {
        lane_finish(&lanes[i]);
    }
}

static void threads_do_not_disturb_each_other(void **state) {
    (void)state;
    enum { LANES = 4, ROUNDS = 20 };
    test_random random = {6};
    lane lanes[LANES];
    for (int i = 0; i < LANES; i++) {
        lane_make(&lanes[i], i, &random);
    }
#pragma omp parallel for num_threads(LANES) schedule(static, 1)
    for (int i = 0; i < LANES; i++) {
        for (int k = 0; k < ROUNDS; k++) {
            lane_launch(&lanes[i]);
        }
    }
    for (int i = 0; i < LANES; i++) {
        lane_finish(&lanes[i]);
    }
}

/* Kernels are loaded and their attributes set once for each context; a device that is current already stays so. */
static void a_second_context_of_the_device_works(void **state) {
    (void)state;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *after = NULL;
    assert_non_null(driver);
    int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))dlsym(driver, "cuCtxCreate_v2");
    int (*destroy)(void *) = (int (*)(void *))dlsym(driver, "cuCtxDestroy_v2");
    int (*current)(void **) = (int (*)(void **))dlsym(driver, "cuCtxGetCurrent");
    assert_true(create != NULL && destroy != NULL && current != NULL);
    test_random random = {7};
    attention_case c = graph_case();
    c.head_dim = c.head_dim_v = device_head_dim(128); /* more shared memory than a kernel has by default */
    c.mask = random_mask(&random, (fm_mask_shape){1, 1, c.rows, c.columns}, 3, NULL);
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results first = device_run_way(&c, &in, 1);
    assert_int_equal(create(&context, 0, 0), 0);
    attention_results second = device_run_way(&c, &in, 1);
    assert_int_equal(current(&after), 0);
    assert_ptr_equal(after, context);
    CUDA(cudaDeviceSynchronize());
    assert_int_equal(destroy(context), 0);
    attention_assert_same_bits(&first, &second);
    attention_results_free(&second);
    second = device_run_way(&c, &in, 1);
    attention_assert_same_bits(&first, &second);
    attention_results_free(&first);
    attention_results_free(&second);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

/* A call of each kind, after which free memory must be what it was. New lengths each time:
 * https://github.com/meta-pytorch/attention-gym/issues/159 */
static void assert_no_allocation(int64_t rows, int64_t columns, bool warm, test_random *random) {
    attention_case c = simple_case(1, rows, columns, 2, 1, rows % 2 == 0 ? 64 : device_head_dim(128));
    c.dtype = FM_BF16;
    c.mask = random_mask(random, (fm_mask_shape){1, 1, rows, columns}, 2, NULL);
    attention_inputs in = attention_inputs_make(&c, random);
    device_plan plan = device_plan_of_vectors(&c, NULL);
    device_call calls[] = {device_call_make(&c, &in, (device_options){.plan = &plan}),
                           device_call_make(&c, &in, (device_options){.deterministic = true})};
    CUDA(cudaDeviceSynchronize());
    const size_t before = device_free_bytes();
    for (int i = 0; i < 4; i++) {
        succeed(fm_plan_update_from_vectors(plan.plan, &plan.description, NULL));
        device_call_launch(&calls[i % 2]);
        const size_t during = device_free_bytes();
        assert_true(!warm || during == before);
    }
    CUDA(cudaDeviceSynchronize());
    const size_t after = device_free_bytes();
    assert_true(!warm || after == before);
    device_call_free(&calls[0]);
    device_call_free(&calls[1]);
    device_plan_free(&plan);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

static void calls_allocate_no_device_memory(void **state) {
    (void)state;
    test_random random = {8};
    assert_no_allocation(4095, 4096, false, &random); /* loads the kernels, of both head dims */
    assert_no_allocation(4096, 4096, false, &random);
    for (int i = 0; i < 40; i++) {
        assert_no_allocation(random_integer(&random, 1, 4096), random_integer(&random, 1, 4096), true, &random);
    }
}

int main(void) {
    device_require();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_follows_new_vectors_and_tensors),
        cmocka_unit_test(a_plan_may_be_created_inside_a_graph),
        cmocka_unit_test(a_call_without_plan_and_mask_may_be_captured),
        cmocka_unit_test(a_replay_counts_more_items_than_processors_anew),
        cmocka_unit_test(a_host_mask_is_refused_during_capture_which_goes_on),
        cmocka_unit_test(streams_do_not_disturb_each_other),
        cmocka_unit_test(threads_do_not_disturb_each_other),
        cmocka_unit_test(calls_allocate_no_device_memory),
        cmocka_unit_test(a_second_context_of_the_device_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What CUDA calls answer on any machine: a build without CUDA, one without a device, host memory that claims to be a GPU's; and the
 * checks of device plans that need none of it. Nothing is written. */
#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/simple_case.h"

#include <flashmask/masks.h>
#include <string.h>

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

/* The memory here is the host's, so a build with CUDA answers FM_ERROR_DEVICE with and without a device. */
#ifdef FM_TEST_HAS_CUDA
static const fm_status unavailable = FM_ERROR_DEVICE;
#else
static const fm_status unavailable = FM_ERROR_UNSUPPORTED;
#endif

enum { B = 1, S = 16, H = 2, D = 8, ELEMENTS = B * S * H * D, TENSORS = 8, ARENA = 1 << 16 };

static _Alignas(256) unsigned char arena[ARENA], workspace[ARENA];

typedef struct fixture {
    fm_attention_forward_args f;
    fm_attention_backward_args b;
    float *lse;
} fixture;

static fm_tensor take(int number, fm_device device) {
    fm_tensor t = fm_tensor_contiguous((float *)(void *)arena + number * ELEMENTS, FM_F32, B, S, H, D);
    t.device = device;
    return t;
}

/* A valid call, but for its memory. */
static fixture make(fm_device device) {
    fixture x = {.f = FM_ATTENTION_FORWARD_ARGS_INIT, .b = FM_ATTENTION_BACKWARD_ARGS_INIT};
    assert_true((size_t)ARENA >= (TENSORS + 1) * ELEMENTS * sizeof(float));
    memset(arena, 0x3d, sizeof arena);
    memset(workspace, 0x3d, sizeof workspace);
    x.f.query = take(0, device);
    x.f.key = take(1, device);
    x.f.value = take(2, device);
    x.f.output = take(3, device);
    x.f.lse = (float *)(void *)arena + TENSORS * ELEMENTS;
    x.f.workspace = x.b.workspace = workspace;
    x.f.workspace_bytes = x.b.workspace_bytes = sizeof workspace;
    x.b.grad_output = take(4, device);
    x.b.grad_query = take(5, device);
    x.b.grad_key = take(6, device);
    x.b.grad_value = take(7, device);
    return x;
}

static void nothing_was_written(void) {
    for (size_t i = 0; i < sizeof arena; i++) {
        assert_true(arena[i] == 0x3d && workspace[i] == 0x3d);
    }
}

static void refuse_both(fixture *x, fm_status expected, const char *words) {
    refuse(fm_attention_forward(&x->f), expected, words);
    x->b.forward = &x->f;
    refuse(fm_attention_backward(&x->b), expected, words);
    nothing_was_written();
}

/* ---- attention --------------------------------------------------------------------------------------------------------- */

static void attention_says_that_it_has_no_device_or_no_such_memory(void **state) {
    (void)state;
    const fm_backend_id ids[] = {FM_BACKEND_AUTO, FM_BACKEND_CUDA_SM80};
    for (int i = 0; i < COUNT(ids); i++) {
        fixture x = make((fm_device){FM_CUDA, 0});
        x.f.backend = ids[i];
        refuse_both(&x, unavailable, "");
        assert_true(strlen(fm_error_message()) > 0);
    }
}

static void a_device_index_that_no_machine_has_is_refused(void **state) {
    (void)state;
    const int32_t indices[] = {-1, 1000000};
    for (int i = 0; i < COUNT(indices); i++) {
        fixture x = make((fm_device){FM_CUDA, indices[i]});
        size_t bytes = 77;
        refuse_both(&x, unavailable, "");
        refuse(fm_attention_forward_workspace(&x.f, &bytes), unavailable, "");
        refuse(fm_attention_backward_workspace(&x.b, &bytes), unavailable, "");
        assert_int_equal(bytes, 77);
    }
}

static void backend_and_tensors_must_be_of_one_kind(void **state) {
    (void)state;
    fixture on_cpu = make((fm_device){FM_CPU, 0}), on_gpu = make((fm_device){FM_CUDA, 0});
    on_cpu.f.backend = FM_BACKEND_CUDA_SM80;
    refuse_both(&on_cpu, FM_ERROR_DEVICE, "query: is on device CPU:0");
    on_gpu.f.backend = FM_BACKEND_CPU;
    refuse_both(&on_gpu, FM_ERROR_DEVICE, "query: is on device CUDA:0");
    on_gpu.f.backend = FM_BACKEND_REFERENCE;
    refuse_both(&on_gpu, FM_ERROR_DEVICE, "query: is on device CUDA:0");
}

static void tensors_of_a_cpu_call_must_all_be_on_the_cpu(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        fixture x = make((fm_device){FM_CPU, 0});
        fm_tensor *const moved[] = {&x.f.key, &x.f.value, &x.f.output};
        static const char *const names[] = {"key: is on", "value: is on", "output: is on"};
        moved[i]->device.kind = FM_CUDA;
        refuse_both(&x, FM_ERROR_DEVICE, names[i]);
    }
}

/* ---- plans ------------------------------------------------------------------------------------------------------------- */

static fm_mask_vectors vectors_of(fm_vector_format format, int32_t count, bool causal) {
    fm_mask_vectors v = FM_MASK_VECTORS_INIT;
    v.format = format;
    v.shape = (fm_mask_shape){1, 1, S, S};
    v.vectors = count;
    v.causal = causal;
    v.data = (const int32_t *)(void *)arena;
    v.stride[2] = count;
    v.stride[3] = 1;
    v.device = (fm_device){FM_CUDA, 0};
    return v;
}

static void plans_say_that_they_have_no_device_or_no_such_memory(void **state) {
    (void)state;
    make((fm_device){FM_CUDA, 0});
    const fm_mask_vectors v = vectors_of(FM_VECTORS_INTERVALS, 2, false);
    fm_mask *mask = NULL;
    fm_plan *plan = NULL;
    succeed(fm_mask_causal(S, S, &mask));
    for (int32_t index = -1; index <= 1000000; index += 1000001) {
        const fm_device device = {FM_CUDA, index};
        fm_mask_vectors elsewhere = v;
        elsewhere.device = device;
        refuse(fm_plan_create_device(mask, NULL, device, workspace, sizeof workspace, NULL, &plan), unavailable, "");
        refuse(fm_plan_create_from_vectors(&elsewhere, NULL, workspace, sizeof workspace, NULL, &plan), unavailable, "");
        assert_null(plan);
    }
    refuse(fm_plan_create_device(mask, NULL, (fm_device){FM_CUDA, 0}, workspace, sizeof workspace, NULL, &plan), unavailable, "");
    refuse(fm_plan_create_from_vectors(&v, NULL, workspace, sizeof workspace, NULL, &plan), unavailable, "");
    assert_null(plan);
    nothing_was_written();
    fm_mask_free(mask);
}

static void a_host_plan_takes_no_vectors(void **state) {
    (void)state;
    const fm_mask_vectors v = vectors_of(FM_VECTORS_INTERVALS, 2, false);
    fm_mask *mask = NULL;
    fm_plan *plan = NULL;
    succeed(fm_mask_causal(S, S, &mask));
    succeed(fm_plan_create(mask, NULL, &plan));
    refuse(fm_plan_update_from_vectors(plan, &v, NULL), FM_ERROR_ARGUMENT, "plan: was not made by fm_plan_create_from_vectors");
    fm_plan_free(plan);
    fm_mask_free(mask);
}

/* ---- checks that need no GPU -------------------------------------------------------------------------------------------- */

static void vectors_of_every_form_hold_so_many_intervals(void **state) {
    (void)state;
    static const struct {
        fm_vector_format format;
        int32_t vectors;
        bool causal;
        int32_t intervals;
    } good[] = {{FM_VECTORS_STARTEND, 1, true, 1},   {FM_VECTORS_STARTEND, 2, true, 2},   {FM_VECTORS_STARTEND, 2, false, 1},
                {FM_VECTORS_STARTEND, 4, false, 3},  {FM_VECTORS_FMS_FME, 2, false, 1},   {FM_VECTORS_FMS_FME, 8, false, 4},
                {FM_VECTORS_INTERVALS, 2, false, 1}, {FM_VECTORS_INTERVALS, 6, false, 3}, {FM_VECTORS_INTERVALS, 8, false, 4}};
    for (int i = 0; i < COUNT(good); i++) {
        const fm_mask_vectors v = vectors_of(good[i].format, good[i].vectors, good[i].causal);
        int32_t intervals = 0;
        succeed(fm_mask_vectors_intervals(&v, &intervals));
        assert_int_equal(intervals, good[i].intervals);
    }
}

typedef void spoil_vectors(fm_mask_vectors *v);
static void size_0(fm_mask_vectors *v) { v->size = 0; }
static void format_3(fm_mask_vectors *v) { v->format = (fm_vector_format)3; }
static void startend_1(fm_mask_vectors *v) { *v = vectors_of(FM_VECTORS_STARTEND, 1, false); }
static void startend_3(fm_mask_vectors *v) { *v = vectors_of(FM_VECTORS_STARTEND, 3, false); }
static void startend_causal_4(fm_mask_vectors *v) { *v = vectors_of(FM_VECTORS_STARTEND, 4, true); }
static void vectors_0(fm_mask_vectors *v) { v->vectors = 0; }
static void vectors_3(fm_mask_vectors *v) { v->vectors = 3; }
static void vectors_10(fm_mask_vectors *v) { v->vectors = 10; }
static void intervals_causal(fm_mask_vectors *v) { v->causal = true; }
static void stride_negative(fm_mask_vectors *v) { v->stride[2] = -1; }
static void on_the_cpu(fm_mask_vectors *v) { v->device.kind = FM_CPU; }
static void crooked(fm_mask_vectors *v) { v->data = (const int32_t *)(const void *)((const char *)v->data + 1); }
static void no_batch(fm_mask_vectors *v) { v->shape.batch = 0; }
static void rows_negative(fm_mask_vectors *v) { v->shape.rows = -1; }

static void vectors_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct {
        spoil_vectors *spoil;
        fm_status status;
        const char *words;
    } bad[] = {
        {size_0, FM_ERROR_ARGUMENT, "vectors->size: is 0"},
        {format_3, FM_ERROR_ARGUMENT, "vectors->format: is 3"},
        {startend_1, FM_ERROR_ARGUMENT, "vectors->vectors: is 1"},
        {startend_3, FM_ERROR_ARGUMENT, "vectors->vectors: is 3"},
        {startend_causal_4, FM_ERROR_ARGUMENT, "vectors->vectors: is 4"},
        {vectors_0, FM_ERROR_ARGUMENT, "vectors->vectors: is 0"},
        {vectors_3, FM_ERROR_ARGUMENT, "vectors->vectors: is 3"},
        {vectors_10, FM_ERROR_ARGUMENT, "vectors->vectors: is 10"},
        {intervals_causal, FM_ERROR_ARGUMENT, "vectors->causal"},
        {stride_negative, FM_ERROR_ARGUMENT, "vectors->stride[2]: is -1"},
        {on_the_cpu, FM_ERROR_DEVICE, "vectors->device: is the CPU"},
        {crooked, FM_ERROR_ARGUMENT, "vectors->data: is not aligned"},
        {no_batch, FM_ERROR_ARGUMENT, "shape.batch: is 0"},
        {rows_negative, FM_ERROR_ARGUMENT, "shape.rows: is -1"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        fm_mask_vectors v = vectors_of(FM_VECTORS_INTERVALS, 2, false);
        fm_plan *plan = NULL;
        int32_t intervals = 77;
        bad[i].spoil(&v);
        refuse(fm_mask_vectors_intervals(&v, &intervals), bad[i].status, bad[i].words);
        refuse(fm_plan_create_from_vectors(&v, NULL, workspace, sizeof workspace, NULL, &plan), bad[i].status, bad[i].words);
        assert_true(plan == NULL && intervals == 77);
    }
}

static void the_bytes_of_a_plan_follow_from_shapes(void **state) {
    (void)state;
    const int64_t K = 1024;
    size_t bytes = 0, more = 0;
    succeed(fm_plan_device_bytes((fm_mask_shape){1, 1, 128 * K, 128 * K}, 1, NULL, &bytes));
    const size_t map = 2 * 2 * 2048 * 2048 / 8, bounds = 8 * 128 * 1024; /* both orientations; 8 bytes a key */
    assert_true(bytes >= map + bounds && bytes <= map + bounds + (64 << 10));
    succeed(fm_plan_device_bytes((fm_mask_shape){1, 1, 128 * K, 128 * K}, 4, NULL, &more));
    assert_int_equal(more - bytes, 3 * bounds);
    succeed(fm_plan_device_bytes((fm_mask_shape){3, 2, 128 * K, 128 * K}, 1, NULL, &more));
    assert_true(more > 5 * bytes && more <= 6 * bytes);
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    options.fallback_blocks = 1000;
    succeed(fm_plan_device_bytes((fm_mask_shape){1, 1, 128 * K, 128 * K}, 1, &options, &more));
    assert_true(more >= bytes + 1000 * 2048);
    succeed(fm_plan_device_bytes((fm_mask_shape){1, 1, K * K, K * K}, 1, NULL, &bytes)); /* 2^28 tiles */
    succeed(fm_plan_device_bytes((fm_mask_shape){1, 1, 64, INT32_MAX - 255}, 1, NULL, &bytes));
    succeed(fm_plan_device_bytes((fm_mask_shape){1, 1, 0, 0}, 1, NULL, &bytes));
}

static void the_bytes_of_a_plan_that_cannot_be_are_refused(void **state) {
    (void)state;
    const fm_mask_shape shape = {1, 1, 100, 100};
    const int64_t M = 1 << 20;
    size_t bytes = 77;
    fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    refuse(fm_plan_device_bytes((fm_mask_shape){1, 1, M + 1, M}, 1, NULL, &bytes), FM_ERROR_LIMIT, "2^28");
    refuse(fm_plan_device_bytes((fm_mask_shape){1, 1, INT32_MAX, INT32_MAX}, 1, NULL, &bytes), FM_ERROR_LIMIT, "2^28");
    refuse(fm_plan_device_bytes((fm_mask_shape){1, 1, 64, INT32_MAX}, 1, NULL, &bytes), FM_ERROR_LIMIT, "at most 2147483392");
    refuse(fm_plan_device_bytes((fm_mask_shape){1, 1, INT32_MAX - 254, 64}, 1, NULL, &bytes), FM_ERROR_LIMIT,
           "at most 2147483392");
    refuse(fm_plan_device_bytes(shape, 5, NULL, &bytes), FM_ERROR_ARGUMENT, "intervals: is 5");
    refuse(fm_plan_device_bytes(shape, -1, NULL, &bytes), FM_ERROR_ARGUMENT, "intervals: is -1");
    refuse(fm_plan_device_bytes(shape, 1, NULL, NULL), FM_ERROR_ARGUMENT, "bytes");
    options.size = 8;
    refuse(fm_plan_device_bytes(shape, 1, &options, &bytes), FM_ERROR_ARGUMENT, "options.size: is 8");
    options = (fm_plan_options)FM_PLAN_OPTIONS_INIT;
    options.backend = FM_BACKEND_CPU;
    refuse(fm_plan_device_bytes(shape, 1, &options, &bytes), FM_ERROR_ARGUMENT, "options.backend");
    options = (fm_plan_options)FM_PLAN_OPTIONS_INIT;
    options.block_m = 128;
    refuse(fm_plan_device_bytes(shape, 1, &options, &bytes), FM_ERROR_ARGUMENT, "options.block_m");
    options = (fm_plan_options)FM_PLAN_OPTIONS_INIT;
    options.fallback_blocks = -1;
    refuse(fm_plan_device_bytes(shape, 1, &options, &bytes), FM_ERROR_ARGUMENT, "options.fallback_blocks: is -1");
    assert_int_equal(bytes, 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_says_that_it_has_no_device_or_no_such_memory),
        cmocka_unit_test(a_device_index_that_no_machine_has_is_refused),
        cmocka_unit_test(backend_and_tensors_must_be_of_one_kind),
        cmocka_unit_test(tensors_of_a_cpu_call_must_all_be_on_the_cpu),
        cmocka_unit_test(plans_say_that_they_have_no_device_or_no_such_memory),
        cmocka_unit_test(a_host_plan_takes_no_vectors),
        cmocka_unit_test(vectors_of_every_form_hold_so_many_intervals),
        cmocka_unit_test(vectors_that_cannot_be_are_refused),
        cmocka_unit_test(the_bytes_of_a_plan_follow_from_shapes),
        cmocka_unit_test(the_bytes_of_a_plan_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

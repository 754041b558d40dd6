/* Without memory for its threads' scratch the CPU backend says so and writes nothing. The linker sends the library's calls
 * of aligned_alloc here. */
#include "cpu_cases.h"

#include "support/cmocka_all.h"

void *real_aligned_alloc(size_t alignment, size_t bytes) __asm__("__real_aligned_alloc");
void *wrap_aligned_alloc(size_t alignment, size_t bytes) __asm__("__wrap_aligned_alloc");

static bool has_memory = true;

void *wrap_aligned_alloc(size_t alignment, size_t bytes) { return has_memory ? real_aligned_alloc(alignment, bytes) : NULL; }

static void no_memory_for_scratch_is_an_error_and_writes_nothing(void **state) {
    (void)state;
    test_random random = {3};
    attention_case c = draw_case(&random);
    c.dtype = FM_F32;
    attention_inputs in = attention_inputs_make(&c, &random);
    attention_results good = run_cpu(&c, &in, 2, false), other = run_cpu(&c, &in, 1, false);
    fm_attention_forward_args forward = FM_ATTENTION_FORWARD_ARGS_INIT;
    forward.query = in.query.view;
    forward.key = in.key.view;
    forward.value = in.value.view;
    forward.output = good.output.view;
    forward.lse = good.lse.buffer;
    forward.softmax_scale = 0.125f; /* another one, so that anything written would show */
    fm_attention_backward_args backward = FM_ATTENTION_BACKWARD_ARGS_INIT;
    backward.forward = &forward;
    backward.grad_output = in.grad_output.view;
    backward.grad_query = good.grad_query.view;
    backward.grad_key = good.grad_key.view;
    backward.grad_value = good.grad_value.view;

    has_memory = false;
    assert_int_equal(fm_attention_forward(&forward), FM_ERROR_OUT_OF_MEMORY);
    assert_int_equal(fm_attention_backward(&backward), FM_ERROR_OUT_OF_MEMORY);
    has_memory = true;
    attention_assert_same_bits(&good, &other);
    assert_int_equal(fm_attention_forward(&forward), FM_OK);
    assert_int_equal(fm_attention_backward(&backward), FM_OK);

    attention_results_free(&good);
    attention_results_free(&other);
    attention_inputs_free(&in);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory_for_scratch_is_an_error_and_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

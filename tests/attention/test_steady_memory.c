/* New lengths and masks at every step leave no memory behind. The linker sends every allocation of the library here.
 * https://github.com/pytorch/pytorch/issues/141486, https://github.com/meta-pytorch/attention-gym/issues/159 */
#include <flashmask/masks.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"

#include <stdatomic.h>
#include <stdlib.h>

void *real_malloc(size_t bytes) __asm__("__real_malloc");
void *real_calloc(size_t count, size_t bytes) __asm__("__real_calloc");
void *real_realloc(void *old, size_t bytes) __asm__("__real_realloc");
void *real_aligned_alloc(size_t alignment, size_t bytes) __asm__("__real_aligned_alloc");
void real_free(void *block) __asm__("__real_free");
void *counted_malloc(size_t bytes) __asm__("__wrap_malloc");
void *counted_calloc(size_t count, size_t bytes) __asm__("__wrap_calloc");
void *counted_realloc(void *old, size_t bytes) __asm__("__wrap_realloc");
void *counted_aligned_alloc(size_t alignment, size_t bytes) __asm__("__wrap_aligned_alloc");
void counted_free(void *block) __asm__("__wrap_free");

static atomic_int live, allocations;

static void *counted(void *block) {
    live += block != NULL;
    allocations++;
    return block;
}

void *counted_malloc(size_t bytes) { return counted(real_malloc(bytes)); }
void *counted_calloc(size_t count, size_t bytes) { return counted(real_calloc(count, bytes)); }
void *counted_aligned_alloc(size_t alignment, size_t bytes) { return counted(real_aligned_alloc(alignment, bytes)); }
void *counted_realloc(void *old, size_t bytes) {
    const bool had_one = old != NULL;
    void *block = real_realloc(old, bytes);
    live += block != NULL && !had_one;
    allocations++;
    return block;
}
void counted_free(void *block) {
    live -= block != NULL;
    real_free(block);
}

enum { MOST = 2048, D = 2 };
static float data[6 * MOST * D], lse[MOST];

/* Returns how many allocations the step took. */
static int step(int64_t n, int64_t cut, bool returning) {
    const int before = allocations;
    fm_mask *mask;
    fm_plan *plan;
    if (returning) { /* tokens of two documents by turns: the fallback */
        static int32_t ids[MOST];
        for (int32_t i = 0; i < n; i++) {
            ids[i] = i % 2;
        }
        succeed(fm_mask_from_document_ids(1, n, ids, -1, true, NULL, &mask));
    } else {
        succeed(fm_mask_documents_sink_window(2, (const int64_t[]){cut, n - cut}, 2, 16, 0, &mask));
    }
    succeed(fm_plan_create(mask, NULL, &plan));
    fm_attention_forward_args f = FM_ATTENTION_FORWARD_ARGS_INIT;
    f.query = f.key = f.value = fm_tensor_contiguous(data, FM_F32, 1, n, 1, D);
    f.output = fm_tensor_contiguous(data + MOST * D, FM_F32, 1, n, 1, D);
    f.lse = lse;
    f.plan = plan;
    succeed(fm_attention_forward(&f));
    fm_attention_backward_args b = FM_ATTENTION_BACKWARD_ARGS_INIT;
    b.forward = &f;
    b.grad_output = fm_tensor_contiguous(data + 2 * MOST * D, FM_F32, 1, n, 1, D);
    b.grad_query = fm_tensor_contiguous(data + 3 * MOST * D, FM_F32, 1, n, 1, D);
    b.grad_key = fm_tensor_contiguous(data + 4 * MOST * D, FM_F32, 1, n, 1, D);
    b.grad_value = fm_tensor_contiguous(data + 5 * MOST * D, FM_F32, 1, n, 1, D);
    succeed(fm_attention_backward(&b));
    fm_plan_free(plan);
    fm_mask_free(mask);
    return allocations - before;
}

static void a_thousand_lengths_leave_nothing_behind(void **state) {
    (void)state;
    test_random random = {54};
    int most = 0;
    const int before = live;
    for (int k = 0; k < 1000; k++) {
        const bool returning = k % 10 == 0;
        const int64_t n = random_integer(&random, 1, returning ? 600 : MOST);
        const int count = step(n, random_integer(&random, 0, n), returning);
        assert_int_equal(live, before);
        assert_true(count > 5);
        most = count > most ? count : most;
    }
    print_message("up to %d allocations a step\n", most);
    assert_true(most < 100); /* they do not grow with the number of steps or tiles */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_lengths_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

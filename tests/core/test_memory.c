#include "core/memory.h"
#include "support/cmocka_all.h"

#include <stdlib.h>

static void products_past_64_bits_are_minus_one(void **state) {
    (void)state;
    assert_int_equal(fm_multiply(0, INT64_MAX), 0);
    assert_true(fm_multiply(1, INT64_MAX) == INT64_MAX);
    assert_true(fm_multiply(INT64_C(1) << 31, INT64_C(1) << 31) == INT64_C(1) << 62);
    assert_int_equal(fm_multiply(INT64_C(1) << 32, INT64_C(1) << 31), -1);
    assert_int_equal(fm_multiply(3, INT64_MAX / 2), -1);
}

static void allocations_are_zeroed_aligned_and_never_null(void **state) {
    (void)state;
    for (int64_t count = 0; count < 100; count++) {
        int32_t *plain = NULL;
        char *aligned = NULL;
        assert_int_equal(fm_allocate("plain", count, sizeof *plain, (void **)&plain), FM_OK);
        assert_int_equal(fm_allocate_aligned("aligned", count, 1, (void **)&aligned), FM_OK);
        assert_non_null(plain);
        assert_non_null(aligned);
        assert_int_equal((uintptr_t)aligned % FM_ALIGNMENT, 0);
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(plain[i], 0);
        }
        free(plain);
        free(aligned);
    }
}

static void sizes_that_no_memory_holds_are_errors_that_name_them(void **state) {
    (void)state;
    void *out = &out;
    assert_int_equal(fm_allocate("things", INT64_MAX / 4, 8, &out), FM_ERROR_OUT_OF_MEMORY);
    assert_null(out);
    assert_string_equal(fm_error_message(), "things: no memory for 2305843009213693951 elements of 8 bytes");
    assert_int_equal(fm_allocate_aligned("things", INT64_MAX, 1, &out), FM_ERROR_OUT_OF_MEMORY);
    assert_null(out);
    assert_int_equal(fm_allocate("things", fm_multiply(INT64_MAX, 2), 8, &out), FM_ERROR_OUT_OF_MEMORY);
    assert_string_equal(fm_error_message(), "things: no memory for 2^63 or more elements of 8 bytes");
}

static void growing_doubles_and_keeps_what_is_there(void **state) {
    (void)state;
    int32_t *array = NULL;
    int64_t capacity = 0;
    int growths = 0;
    for (int32_t i = 0; i < 1000; i++) {
        const int64_t before = capacity;
        assert_int_equal(fm_grow("array", i + 1, sizeof *array, (void **)&array, &capacity), FM_OK);
        growths += capacity != before;
        array[i] = i;
    }
    assert_int_equal(capacity, 1024);
    assert_int_equal(growths, 11);
    for (int32_t i = 0; i < 1000; i++) {
        assert_int_equal(array[i], i);
    }
    int32_t *const kept = array;
    assert_int_equal(fm_grow("array", INT64_MAX, sizeof *array, (void **)&array, &capacity), FM_ERROR_OUT_OF_MEMORY);
    assert_ptr_equal(array, kept);
    assert_int_equal(capacity, 1024);
    free(array);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_past_64_bits_are_minus_one),
        cmocka_unit_test(allocations_are_zeroed_aligned_and_never_null),
        cmocka_unit_test(sizes_that_no_memory_holds_are_errors_that_name_them),
        cmocka_unit_test(growing_doubles_and_keeps_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "core/tensor.h"
#include "support/cmocka_all.h"
#include "support/random.h"

#include <string.h>

enum { ARENA = 4096 };
static _Alignas(8) char arena[ARENA];

/* Marks the bytes of a tensor in a map of the arena; false if it meets a marked one. */
static bool mark(const fm_tensor *t, char *map) {
    const int64_t element = (int64_t)fm_dtype_size(t->dtype);
    bool is_apart = true;
    for (int64_t i = 0; i < t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]; i++) {
        const int64_t *n = t->shape;
        const int64_t offset =
            fm_tensor_offset(t, i / (n[1] * n[2] * n[3]), i / (n[2] * n[3]) % n[1], i / n[3] % n[2], i % n[3]) * element;
        for (int64_t byte = 0; byte < element; byte++) {
            char *cell = &map[(char *)t->data - arena + offset + byte];
            is_apart = is_apart && *cell == 0;
            *cell = 1;
        }
    }
    return is_apart;
}

static bool share_bytes(const fm_tensor *a, const fm_tensor *b) {
    char of_a[ARENA] = {0}, of_b[ARENA] = {0};
    mark(a, of_a);
    mark(b, of_b);
    for (int i = 0; i < ARENA; i++) {
        if (of_a[i] != 0 && of_b[i] != 0) {
            return true;
        }
    }
    return false;
}

static fm_tensor random_view(test_random *r) {
    const fm_dtype dtype = (fm_dtype)random_integer(r, FM_F32, FM_F64);
    fm_tensor t = fm_tensor_contiguous(arena + 8 * random_integer(r, 0, 60), dtype, 1, 1, 1, 1);
    for (int d = 0; d < 4; d++) {
        t.shape[d] = random_integer(r, random_chance(r, 0.02) ? 0 : 1, 4);
        t.stride[d] = random_integer(r, 0, random_chance(r, 0.3) ? 1 : 30);
    }
    return t;
}

static void no_overlap_is_missed(void **state) {
    (void)state;
    test_random random = {1};
    int shared = 0, told_apart = 0;
    for (int i = 0; i < 20000; i++) {
        const fm_tensor a = random_view(&random), b = random_view(&random);
        const bool truth = share_bytes(&a, &b), told = fm_tensor_overlap(&a, &b);
        assert_int_equal(told, fm_tensor_overlap(&b, &a));
        assert_true(told || !truth);
        shared += truth;
        told_apart += !told;
    }
    assert_in_range(shared, 1000, 19000);
    assert_in_range(told_apart, 1000, 19000);
}

/* A box of a 4-dimensional buffer with a step along each axis, the axes in a random order. */
static fm_tensor random_slice(test_random *r, const int64_t extents[4], const int64_t steps[4], const int order[4]) {
    const int64_t strides[4] = {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
    fm_tensor t = fm_tensor_contiguous(NULL, FM_F16, 1, 1, 1, 1);
    int64_t first = 0;
    for (int d = 0; d < 4; d++) {
        const int64_t start = random_integer(r, 0, extents[d] - 1);
        const int64_t most = (extents[d] - 1 - start) / steps[d] + 1;
        first += start * strides[d];
        t.shape[order[d]] = random_chance(r, 0.4) ? most : random_integer(r, 1, most);
        t.stride[order[d]] = steps[d] * strides[d];
    }
    t.data = arena + 2 * first;
    return t;
}

static void slices_of_one_buffer_are_told_apart_exactly(void **state) {
    (void)state;
    test_random random = {2};
    int disjoint = 0;
    for (int i = 0; i < 20000; i++) {
        int64_t extents[4], steps[4];
        for (int d = 0; d < 4; d++) {
            extents[d] = random_integer(&random, 1, 6);
            steps[d] = random_integer(&random, 1, 3);
        }
        static const int orders[3][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 0, 2, 1}};
        const fm_tensor a = random_slice(&random, extents, steps, orders[i % 3]);
        const fm_tensor b = random_slice(&random, extents, steps, orders[i % 3]);
        assert_int_equal(fm_tensor_check("a", &a, true), FM_OK);
        assert_int_equal(fm_tensor_overlap(&a, &b), share_bytes(&a, &b));
        disjoint += !share_bytes(&a, &b);
    }
    assert_in_range(disjoint, 1000, 19000);
}

/* query, key and value of [B, S, 3, H, D], and of [B, S, Hq + 2 Hkv, D]. */
static void views_interleaved_in_a_packed_projection_are_apart(void **state) {
    (void)state;
    fm_tensor t[3];
    for (int i = 0; i < 3; i++) {
        t[i] = fm_tensor_contiguous(arena + i * 24, FM_F32, 5, 7, 3, 2);
        t[i].stride[0] = 7 * 18;
        t[i].stride[1] = 18;
    }
    assert_false(fm_tensor_overlap(&t[0], &t[1]));
    assert_false(fm_tensor_overlap(&t[2], &t[0]));
    t[1].data = arena + 20; /* one element early */
    assert_true(fm_tensor_overlap(&t[0], &t[1]));
    assert_false(fm_tensor_overlap(&t[1], &t[2]));

    fm_tensor query = fm_tensor_contiguous(arena, FM_F16, 5, 7, 4, 2), key = fm_tensor_contiguous(arena + 16, FM_F16, 5, 7, 1, 2);
    query.stride[0] = key.stride[0] = 7 * 12;
    query.stride[1] = key.stride[1] = 12;
    assert_false(fm_tensor_overlap(&query, &key));
    query.shape[2] = 5;
    assert_true(fm_tensor_overlap(&query, &key));
}

static void an_output_that_passes_has_no_two_elements_in_one_place(void **state) {
    (void)state;
    test_random random = {3};
    int passed = 0;
    for (int i = 0; i < 20000; i++) {
        const fm_tensor t = random_view(&random);
        char map[ARENA] = {0};
        assert_int_equal(fm_tensor_check("t", &t, false), FM_OK);
        if (fm_tensor_check("t", &t, true) == FM_OK) {
            assert_true(mark(&t, map));
            passed++;
        }
    }
    assert_in_range(passed, 500, 19000);
}

/* https://github.com/Dao-AILab/flash-attention/pull/1500, https://github.com/Dao-AILab/flash-attention/issues/2214,
 * https://github.com/pytorch/pytorch/issues/190857: sizes at which 32 bits do not hold an element's place. */
static void offsets_have_64_bits(void **state) {
    (void)state;
    const int64_t sizes[][4] = {{1600, 729, 16, 72}, {15000, 1024, 32, 128}, {2147483647, 1, 1, 64}, {1, 2147483647, 1, 64}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t *n = sizes[k];
        fm_tensor t = fm_tensor_contiguous(arena, FM_BF16, n[0], n[1], n[2], n[3]);
        assert_int_equal(fm_tensor_check("t", &t, true), FM_OK);
        assert_int_equal(fm_tensor_offset(&t, n[0] - 1, n[1] - 1, n[2] - 1, n[3] - 1), n[0] * n[1] * n[2] * n[3] - 1);
    }
    /* keys stored position by position, [24000, 700, 128], seen as [700, 1, 24000, 128] */
    fm_tensor view = fm_tensor_contiguous(arena, FM_BF16, 700, 24000, 1, 128);
    view.stride[0] = 128;
    view.stride[1] = 700 * 128;
    assert_int_equal(fm_tensor_check("view", &view, true), FM_OK);
    assert_int_equal(fm_tensor_offset(&view, 699, 23999, 0, 127), INT64_C(24000) * 700 * 128 - 1);
    assert_true(INT64_C(24000) * 700 * 128 > INT32_MAX);
}

static void assert_refused(fm_tensor t, fm_status status, const char *word) {
    assert_int_equal(fm_tensor_check("name", &t, true), status);
    assert_non_null(strstr(fm_error_message(), "name: "));
    assert_non_null(strstr(fm_error_message(), word));
}

static void bad_tensors_are_refused_by_name(void **state) {
    (void)state;
    const fm_tensor good = fm_tensor_contiguous(arena, FM_F32, 2, 3, 4, 5);
    assert_int_equal(fm_tensor_check("name", &good, true), FM_OK);
    fm_tensor t = good;
    t.dtype = (fm_dtype)9;
    assert_refused(t, FM_ERROR_DTYPE, "dtype 9");
    t = good;
    t.rank = 3;
    assert_refused(t, FM_ERROR_SHAPE, "rank is 3");
    t = good;
    t.shape[1] = -1;
    assert_refused(t, FM_ERROR_SHAPE, "shape[1] is -1");
    t = good;
    t.shape[1] = INT64_C(1) << 31;
    assert_refused(t, FM_ERROR_SHAPE, "shape[1] is 2147483648");
    t = good;
    t.stride[2] = -5;
    assert_refused(t, FM_ERROR_SHAPE, "stride[2] is -5");
    t = good;
    t.stride[2] = 0;
    assert_refused(t, FM_ERROR_SHAPE, "share memory");
    t = good;
    t.stride[0] = INT64_MAX / 2;
    assert_refused(t, FM_ERROR_SHAPE, "2^62 bytes");
    t.shape[0] = 4;
    assert_refused(t, FM_ERROR_SHAPE, "2^63 elements");
    t = good;
    t.data = NULL;
    assert_refused(t, FM_ERROR_ARGUMENT, "NULL");
    t.data = arena + 2;
    assert_refused(t, FM_ERROR_ARGUMENT, "aligned");
    t.shape[3] = 0;
    assert_int_equal(fm_tensor_check("name", &t, true), FM_OK);
}

/* No product of extents overflows, whatever they are: the undefined behaviour sanitizer watches. */
static void contiguous_tensors_past_64_bits_are_refused(void **state) {
    (void)state;
    const int64_t most = INT32_MAX;
    assert_refused(fm_tensor_contiguous(arena, FM_F16, 1, most, most, most), FM_ERROR_SHAPE, "reach past 2^63 elements");
    assert_refused(fm_tensor_contiguous(arena, FM_F16, 2, most, most, 4), FM_ERROR_SHAPE, "reach past 2^63 elements");
    assert_refused(fm_tensor_contiguous(arena, FM_F16, 1, 1, INT64_MAX, INT64_MAX), FM_ERROR_SHAPE, "shape[2]");
    assert_refused(fm_tensor_contiguous(arena, FM_F16, 1, INT64_MIN, INT64_MIN, 2), FM_ERROR_SHAPE, "shape[1]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_have_64_bits),
        cmocka_unit_test(no_overlap_is_missed),
        cmocka_unit_test(slices_of_one_buffer_are_told_apart_exactly),
        cmocka_unit_test(views_interleaved_in_a_packed_projection_are_apart),
        cmocka_unit_test(an_output_that_passes_has_no_two_elements_in_one_place),
        cmocka_unit_test(bad_tensors_are_refused_by_name),
        cmocka_unit_test(contiguous_tensors_past_64_bits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

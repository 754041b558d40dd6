/* Tile kernels against plain loops, for every instruction set that this processor has. */
#include "core/tensor.h"
#include "cpu/dispatch.h"
#include "cpu/tile.h"
#include "support/cmocka_all.h"
#include "support/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = FM_CPU_LANES * FM_CPU_MAX_DIM };
static const int64_t extents[] = {1, 2, 3, 5, 6, 7, 11, 12, 13, 31, 40, 63, 64};
enum { EXTENTS = sizeof extents / sizeof *extents };

static void for_each_isa(void (*check)(const fm_cpu_kernels *, test_random *)) {
    const fm_cpu_kernels *present[FM_CPU_ISA_COUNT];
    const int32_t count = fm_cpu_kernels_list(present);
    for (int32_t i = 0; i < count; i++) {
        test_random random = {11};
        check(present[i], &random);
    }
}

static void fill(test_random *random, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        values[i] = random_normal(random);
    }
}

/* ---- GEMM --------------------------------------------------------------------------------------------------------- */

static float a[ROOM], b[FM_CPU_MAX_DIM * FM_CPU_MAX_DIM], c[ROOM], before[ROOM];

static void check_gemm(const fm_cpu_gemm *g, const fm_cpu_kernels *kernels) {
    memcpy(c, before, sizeof c);
    kernels->gemm(g);
    for (int64_t i = 0; i < FM_CPU_LANES; i++) {
        for (int64_t j = 0; j < FM_CPU_MAX_DIM; j++) {
            const int64_t at = i * FM_CPU_MAX_DIM + j;
            double sum = 0.0, size = 0.0;
            for (int64_t k = 0; k < g->k && i < g->m; k++) {
                const double term = (double)a[i * g->a_row + k * g->a_column] * b[k * g->b_stride + j];
                sum += term;
                size += fabs(term);
            }
            if (i >= g->m || j >= g->n) {
                assert_true(c[at] == before[at]);
            } else {
                const double expected = sum + (g->accumulate ? before[at] : 0.0f);
                assert_true(fabs(c[at] - expected) <= 0x1p-23 * ((double)g->k * size + fabs(expected)));
            }
        }
    }
}

static void gemm_of_one_isa(const fm_cpu_kernels *kernels, test_random *random) {
    fill(random, a, ROOM);
    fill(random, b, FM_CPU_MAX_DIM * FM_CPU_MAX_DIM);
    fill(random, before, ROOM);
    for (int m = 0; m < EXTENTS; m++) {
        for (int64_t vectors = 1; vectors * kernels->width <= FM_CPU_MAX_DIM; vectors += vectors < 9 ? 1 : 7) {
            const int64_t k = extents[random_integer(random, 0, EXTENTS - 1)];
            const bool by_column = random_chance(random, 0.5);
            check_gemm(&(fm_cpu_gemm){.m = extents[m],
                                      .n = vectors * kernels->width,
                                      .k = k,
                                      .a = a,
                                      .a_row = by_column ? 1 : k + 3,
                                      .a_column = by_column ? FM_CPU_LANES : 1,
                                      .b = b,
                                      .b_stride = FM_CPU_MAX_DIM,
                                      .c = c,
                                      .c_stride = FM_CPU_MAX_DIM,
                                      .accumulate = random_chance(random, 0.5)},
                       kernels);
        }
    }
}

static void gemm_is_plain_loops(void **state) {
    (void)state;
    for_each_isa(gemm_of_one_isa);
}

/* Bits of one element, whatever stands around it: what thread and batch independence rest on. */
static void gemm_elements_of_one_isa(const fm_cpu_kernels *kernels, test_random *random) {
    static float alone[FM_CPU_MAX_DIM];
    fill(random, a, ROOM);
    fill(random, b, FM_CPU_MAX_DIM * FM_CPU_MAX_DIM);
    fm_cpu_gemm all = {
        .m = 64, .n = 256, .k = 77, .a = a, .a_row = 77, .a_column = 1, .b = b, .b_stride = 256, .c = c, .c_stride = 256};
    kernels->gemm(&all);
    for (int64_t i = 0; i < all.m; i++) {
        for (int64_t j = 0; j < all.n; j += kernels->width) {
            fm_cpu_gemm one = all;
            one.m = 1;
            one.n = kernels->width;
            one.a = a + i * all.a_row;
            one.b = b + j;
            one.c = alone;
            kernels->gemm(&one);
            assert_memory_equal(alone, c + i * all.c_stride + j, (size_t)kernels->width * sizeof(float));
        }
    }
}

static void an_element_of_a_gemm_does_not_depend_on_its_neighbours(void **state) {
    (void)state;
    for_each_isa(gemm_elements_of_one_isa);
}

/* ---- rows in and out ---------------------------------------------------------------------------------------------- */

/* Rows in a block of exactly the bytes that they span, so that memory checkers see any step outside. */
static fm_cpu_rows make_rows(fm_dtype dtype, int64_t count, int64_t width, int64_t stride, fm_tensor *view) {
    const int64_t row_stride = stride == 0 ? 0 : width * stride + 2;
    const int64_t span = (count - 1) * row_stride + (width - 1) * stride + 1;
    char *data = malloc((size_t)span * fm_dtype_size(dtype));
    assert_non_null(data);
    memset(data, 0, (size_t)span * fm_dtype_size(dtype));
    *view = fm_tensor_contiguous(data, dtype, 1, count, 1, width);
    view->stride[1] = row_stride;
    view->stride[3] = stride;
    return (fm_cpu_rows){.data = data, .dtype = dtype, .row_stride = row_stride, .stride = stride, .width = width};
}

static void check_widen(const fm_cpu_kernels *kernels, test_random *random, fm_dtype dtype, int64_t width, int64_t stride) {
    fm_tensor view;
    const int64_t count = 5, padded = fm_cpu_round_up(width, kernels->width);
    const fm_cpu_rows rows = make_rows(dtype, count, width, stride, &view);
    for (int64_t e = 0; e < count * width; e++) {
        fm_tensor_store(&view, fm_tensor_offset(&view, 0, e / width, 0, e % width), random_normal(random));
    }
    if (stride != 0) {
        fm_tensor_store(&view, fm_tensor_offset(&view, 0, 2, 0, width - 1), NAN);
        fm_tensor_store(&view, fm_tensor_offset(&view, 0, 4, 0, 0), -INFINITY);
    }
    assert_int_equal(kernels->widen(&rows, 1, count - 1, 0.5f, a, padded), stride != 0 ? 1 << 1 | 1 << 3 : 0);
    for (int64_t i = 1; i < count; i++) {
        for (int64_t d = 0; d < padded; d++) {
            const float x = d < width ? 0.5f * (float)fm_tensor_load(&view, fm_tensor_offset(&view, 0, i, 0, d)) : 0.0f;
            const float y = a[(i - 1) * padded + d];
            assert_true(y == x || (isnan(x) && isnan(y)) || (isnan(y) && isinf(x)));
        }
    }
    free(rows.data);
}

static void check_narrow(const fm_cpu_kernels *kernels, test_random *random, fm_dtype dtype, int64_t width, int64_t stride) {
    fm_tensor view;
    const int64_t count = 5, padded = fm_cpu_round_up(width, kernels->width);
    const float factor[] = {1.0f, 0.0f, -2.0f, 0.3f};
    const fm_cpu_rows rows = make_rows(dtype, count, width, stride, &view);
    fill(random, a, ROOM);
    kernels->narrow(a, padded, factor, &rows, 1, count - 1);
    for (int64_t e = 0; e < count * width; e++) {
        const int64_t i = e / width, d = e % width;
        const double x = i == 0 ? 0.0 : fm_round_to_dtype(dtype, a[(i - 1) * padded + d] * factor[i - 1]);
        assert_true(fm_tensor_load(&view, fm_tensor_offset(&view, 0, i, 0, d)) == x);
    }
    for (int64_t d = 0; stride > 1 && d < width - 1; d++) {
        assert_true(fm_tensor_load(&view, fm_tensor_offset(&view, 0, 1, 0, d) + 1) == 0.0);
    }
    free(rows.data);
}

static void rows_of_one_isa(const fm_cpu_kernels *kernels, test_random *random) {
    for (fm_dtype dtype = FM_F32; dtype <= FM_BF16; dtype++) {
        for (int64_t width = 1; width <= FM_CPU_MAX_DIM; width += width < 40 ? 1 : 27) {
            for (int64_t stride = 0; stride <= 3; stride++) {
                check_widen(kernels, random, dtype, width, stride);
            }
            check_narrow(kernels, random, dtype, width, 1);
            check_narrow(kernels, random, dtype, width, 3);
        }
    }
}

static void rows_widen_and_narrow_at_any_width_and_stride(void **state) {
    (void)state;
    for_each_isa(rows_of_one_isa);
}

static void transpose_of_one_isa(const fm_cpu_kernels *kernels, test_random *random) {
    fill(random, a, ROOM);
    for (int m = 0; m < EXTENTS; m++) {
        const int64_t count = extents[m], width = extents[random_integer(random, 0, EXTENTS - 1)], stride = width + 5;
        memset(c, 0xff, sizeof c);
        kernels->transpose(a, stride, count, width, c);
        for (int64_t at = 0; at < width * FM_CPU_LANES; at++) {
            const int64_t d = at / FM_CPU_LANES, i = at % FM_CPU_LANES;
            assert_true(c[at] == (i < count ? a[i * stride + d] : 0.0f));
        }
    }
}

static void transpose_fills_missing_lanes_with_zeros(void **state) {
    (void)state;
    for_each_isa(transpose_of_one_isa);
}

static void bits_transpose(void **state) {
    (void)state;
    test_random random = {5};
    uint64_t words[FM_CPU_LANES], turned[FM_CPU_LANES];
    for (int y = 0; y < FM_CPU_LANES; y++) {
        turned[y] = words[y] = random_bits(&random);
    }
    fm_cpu_transpose_bits(turned);
    for (int y = 0; y < FM_CPU_LANES; y++) {
        for (int x = 0; x < FM_CPU_LANES; x++) {
            assert_int_equal(turned[x] >> y & 1, words[y] >> x & 1);
        }
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------------------ */

/* Two steps of the online softmax against one in f64; some rows see nothing, in one step or in both. */
static void softmax_of_one_isa(const fm_cpu_kernels *kernels, test_random *random) {
    static float scores[2][FM_CPU_SCORE_FLOATS];
    float raw[2][FM_CPU_SCORE_FLOATS], maximum[FM_CPU_LANES], sum[FM_CPU_LANES] = {0}, decay[2][FM_CPU_LANES];
    uint64_t visible[2][FM_CPU_LANES];
    const int64_t lines = 37;
    const float cap = random_chance(random, 0.5) ? 3.0f : 0.0f;
    for (int64_t x = 0; x < FM_CPU_LANES; x++) {
        maximum[x] = -INFINITY;
    }
    for (int step = 0; step < 2; step++) {
        fill(random, scores[step], FM_CPU_SCORE_FLOATS);
        memcpy(raw[step], scores[step], sizeof raw[step]);
        for (int64_t y = 0; y < lines; y++) {
            visible[step][y] = random_bits(random) & ~(UINT64_C(7) << (2 * step)); /* lanes 0, 1 and 3, 4; 2 sees nothing */
        }
        kernels->softmax(&(fm_cpu_softmax){scores[step], lines, visible[step], cap, maximum, sum, decay[step]});
    }
    for (int64_t x = 0; x < FM_CPU_LANES; x++) {
        double truth = 0.0;
        for (int64_t e = 0; e < 2 * lines; e++) {
            const int64_t step = e / lines, y = e % lines;
            const double s = raw[step][y * FM_CPU_LANES + x], score = cap > 0.0f ? cap * tanh(s / cap) : s;
            const double p = (visible[step][y] >> x & 1) == 0 ? 0.0 : exp(score - maximum[x]);
            const double ours = scores[step][y * FM_CPU_LANES + x] * (step == 0 ? (double)decay[1][x] : 1.0);
            assert_true(fabs(ours - p) <= 1e-6 * p);
            truth += p;
        }
        assert_true(x == 2 ? maximum[x] == -INFINITY && sum[x] == 0.0f : fabs(sum[x] - truth) <= 1e-5 * truth);
    }
}

static void softmax_by_steps_is_softmax(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        for_each_isa(softmax_of_one_isa);
    }
}

/* A tile that nobody sees changes no bit: why no_skip gives the bits of skipping. */
static void hidden_tile_of_one_isa(const fm_cpu_kernels *kernels, test_random *random) {
    static float scores[FM_CPU_SCORE_FLOATS];
    const uint64_t nothing[FM_CPU_LANES] = {0};
    float maximum[FM_CPU_LANES], sum[FM_CPU_LANES], decay[FM_CPU_LANES], maximum_before[FM_CPU_LANES], sum_before[FM_CPU_LANES];
    fill(random, scores, FM_CPU_SCORE_FLOATS);
    fill(random, maximum, FM_CPU_LANES);
    fill(random, sum, FM_CPU_LANES);
    maximum[9] = -INFINITY;
    sum[9] = 0.0f;
    scores[70] = NAN;
    scores[80] = INFINITY;
    memcpy(maximum_before, maximum, sizeof maximum);
    memcpy(sum_before, sum, sizeof sum);
    kernels->softmax(&(fm_cpu_softmax){scores, FM_CPU_LANES, nothing, 0.0f, maximum, sum, decay});
    assert_memory_equal(maximum, maximum_before, sizeof maximum);
    assert_memory_equal(sum, sum_before, sizeof sum);
    for (int64_t x = 0; x < FM_CPU_LANES; x++) {
        assert_true(x == 9 ? decay[x] == 0.0f : decay[x] == 1.0f);
    }
    for (int64_t e = 0; e < FM_CPU_SCORE_FLOATS; e++) {
        assert_true(scores[e] == 0.0f);
    }
}

static void a_hidden_tile_changes_no_bit(void **state) {
    (void)state;
    for_each_isa(hidden_tile_of_one_isa);
}

/* ---- choice ------------------------------------------------------------------------------------------------------- */

static void the_environment_caps_the_instruction_set(void **state) {
    (void)state;
    const fm_cpu_kernels *present[FM_CPU_ISA_COUNT], *chosen;
    const int32_t count = fm_cpu_kernels_list(present);
    const char *name = NULL;
    unsetenv("FLASHMASK_CPU_ISA");
    assert_int_equal(fm_cpu_kernels_choose(&chosen), FM_OK);
    assert_ptr_equal(chosen, present[count - 1]);
    for (int32_t i = 0; i < count; i++) {
        setenv("FLASHMASK_CPU_ISA", present[i]->name, 1);
        assert_int_equal(fm_cpu_kernels_choose(&chosen), FM_OK);
        assert_ptr_equal(chosen, present[i]);
        assert_int_equal(fm_cpu_isa(&name), FM_OK);
        assert_string_equal(name, present[i]->name);
    }
    setenv("FLASHMASK_CPU_ISA", "avx512", 1); /* a cap, not a demand */
    assert_int_equal(fm_cpu_kernels_choose(&chosen), FM_OK);
    assert_ptr_equal(chosen, present[count - 1]);
    setenv("FLASHMASK_CPU_ISA", "sse9", 1);
    assert_int_equal(fm_cpu_kernels_choose(&chosen), FM_ERROR_ARGUMENT);
    assert_non_null(strstr(fm_error_message(), "sse9"));
    name = NULL;
    assert_int_equal(fm_cpu_isa(&name), FM_ERROR_ARGUMENT);
    assert_null(name);
    unsetenv("FLASHMASK_CPU_ISA");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_is_plain_loops),
        cmocka_unit_test(an_element_of_a_gemm_does_not_depend_on_its_neighbours),
        cmocka_unit_test(rows_widen_and_narrow_at_any_width_and_stride),
        cmocka_unit_test(transpose_fills_missing_lanes_with_zeros),
        cmocka_unit_test(bits_transpose),
        cmocka_unit_test(softmax_by_steps_is_softmax),
        cmocka_unit_test(a_hidden_tile_changes_no_bit),
        cmocka_unit_test(the_environment_caps_the_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The instructions of sm_90a as ptx/ wraps them, each alone, on small whole numbers: every result is exact. Skips on other GPUs. */
#include "device_memory.h"
#include "hopper_instructions.h"
#include "support/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, ROWS = 300, HEADS = 2, DIMS = 256, TEAM_ROWS = 64, SUM = 64, ELEMENTS = BATCH * ROWS * HEADS * DIMS };

/* bf16 of a whole number in -128 .. 128: the upper half of its f32. */
static uint16_t half_of(int x) {
    union {
        float f;
        uint32_t bits;
    } u = {.f = (float)x};
    return (uint16_t)(u.bits >> 16);
}

static int number(int64_t i, int seed) { return (int)((i * 2654435761 + seed * 40503) >> 7 & 7) - 3; }

/* One tensor for query, key and value: [BATCH, ROWS, HEADS, DIMS], of which a problem names some rows and dims. */
typedef struct fixture {
    device_memory memory;
    fm_cuda_problem problem;
} fixture;

static fixture make_fixture(int32_t rows, int32_t dims) {
    uint16_t *host = malloc(ELEMENTS * sizeof *host);
    for (int64_t i = 0; i < ELEMENTS; i++) {
        host[i] = half_of(number(i, 1));
    }
    fixture x = {.memory = device_memory_make(host, ELEMENTS * sizeof *host, 0)};
    free(host);
    const fm_cuda_tensor t = {x.memory.data, {(int64_t)ROWS * HEADS * DIMS, HEADS * DIMS, DIMS, 1}, true};
    x.problem = (fm_cuda_problem){.query = t,
                                  .key = t,
                                  .value = t,
                                  .batch = BATCH,
                                  .rows = rows,
                                  .columns = rows,
                                  .heads = HEADS,
                                  .heads_kv = HEADS,
                                  .head_dim = dims,
                                  .head_dim_v = dims};
    return x;
}

static int element(int batch, int row, int head, int dim) {
    return number((((int64_t)batch * ROWS + row) * HEADS + head) * DIMS + dim, 1);
}

static void a_box_is_copied_and_what_is_outside_the_tensor_is_zero(void **state) {
    (void)state;
    enum { INSIDE_ROWS = 90, INSIDE_DIMS = 104, AT_ROW = 64, AT_DIM = 64 };
    fixture x = make_fixture(INSIDE_ROWS, INSIDE_DIMS);
    static uint16_t box[FM_SM90_BOX * FM_SM90_BOX];
    device_memory out = device_memory_make(NULL, sizeof box, 0);
    fm_sm90_maps maps;
    assert_true(fm_sm90_make_maps(&x.problem, FM_BF16, &maps));
    CUDA((cudaError_t)hopper_copy_box(&maps, AT_DIM, AT_ROW, out.data));
    device_memory_read(&out, box);
    for (int i = 0; i < FM_SM90_BOX * FM_SM90_BOX; i++) {
        const int row = AT_ROW + i / FM_SM90_BOX, dim = AT_DIM + i % FM_SM90_BOX;
        assert_int_equal(box[i], row < INSIDE_ROWS && dim < INSIDE_DIMS ? half_of(element(1, row, 1, dim)) : 0);
    }
    device_memory_free(&out);
    device_memory_free(&x.memory);
}

static void blocks_of_a_cluster_reach_each_other(void **state) {
    (void)state;
    enum { ELEMENTS_OF_BOX = FM_SM90_BOX * FM_SM90_BOX };
    static uint16_t boxes[2][3][ELEMENTS_OF_BOX];
    uint32_t words[2];
    fixture x = make_fixture(ROWS, DIMS);
    device_memory out = device_memory_make(NULL, sizeof boxes, 0), told = device_memory_make(NULL, sizeof words, 0);
    fm_sm90_maps maps;
    assert_true(fm_sm90_make_maps(&x.problem, FM_BF16, &maps));
    CUDA((cudaError_t)hopper_share_boxes(&maps, out.data, told.data));
    device_memory_read(&out, boxes);
    device_memory_read(&told, words);
    for (int block = 0; block < 2; block++) {
        const int row0[3] = {0, FM_SM90_BOX * (block + 1), FM_SM90_BOX * (2 - block)};
        for (int i = 0; i < 3 * ELEMENTS_OF_BOX; i++) {
            const int place = i / ELEMENTS_OF_BOX, at = i % ELEMENTS_OF_BOX;
            assert_int_equal(boxes[block][place][at], half_of(element(1, row0[place] + at / FM_SM90_BOX, 1, at % FM_SM90_BOX)));
        }
        assert_int_equal(words[block], 101 - block);
    }
    device_memory_free(&out);
    device_memory_free(&told);
    device_memory_free(&x.memory);
}

static void memory_that_the_copy_engine_cannot_describe_has_no_map(void **state) {
    (void)state;
    fixture x = make_fixture(ROWS, DIMS);
    fm_sm90_maps maps;
    fm_cuda_problem p = x.problem;
    p.key.in_chunks = false;
    assert_false(fm_sm90_make_maps(&p, FM_BF16, &maps));
    p = x.problem;
    p.value.stride[0] = 0; /* repeats a batch item */
    assert_false(fm_sm90_make_maps(&p, FM_BF16, &maps));
    p = x.problem;
    p.query.stride[0] = INT64_C(1) << 40;
    assert_false(fm_sm90_make_maps(&p, FM_BF16, &maps));
    p = x.problem;
    p.batch = 1;
    p.query.stride[0] = p.key.stride[0] = p.value.stride[0] = 0; /* of one element */
    assert_true(fm_sm90_make_maps(&p, FM_BF16, &maps));
    device_memory_free(&x.memory);
}

static const int columns_of[] = {64, 96, 128, 192, 256};
enum { SHAPES = sizeof columns_of / sizeof *columns_of, MOST_COLUMNS = 256 };
static float product[TEAM_ROWS * MOST_COLUMNS];

static void products_of_two_shared_operands(void **state) {
    (void)state;
    fixture x = make_fixture(ROWS, SUM);
    fm_sm90_maps maps;
    assert_true(fm_sm90_make_maps(&x.problem, FM_BF16, &maps));
    for (int s = 0; s < SHAPES; s++) {
        const int columns = columns_of[s];
        device_memory out = device_memory_make(NULL, sizeof(float) * (size_t)(TEAM_ROWS * columns), 0);
        CUDA((cudaError_t)hopper_multiply_shared(&maps, columns, out.data));
        device_memory_read(&out, product);
        for (int i = 0; i < TEAM_ROWS * columns; i++) {
            int sum = 0;
            for (int k = 0; k < SUM; k++) {
                sum += element(0, i / columns, 0, k) * element(0, i % columns, 0, k);
            }
            assert_true(product[i] == (float)sum);
        }
        device_memory_free(&out);
    }
    device_memory_free(&x.memory);
}

static void products_of_registers_and_a_transposed_operand_add(void **state) {
    (void)state;
    fixture x = make_fixture(ROWS, DIMS);
    static uint16_t weights[TEAM_ROWS * SUM];
    fm_sm90_maps maps;
    for (int i = 0; i < TEAM_ROWS * SUM; i++) {
        weights[i] = half_of(number(i, 2));
    }
    device_memory a = device_memory_make(weights, sizeof weights, 0);
    assert_true(fm_sm90_make_maps(&x.problem, FM_BF16, &maps));
    for (int s = 0; s < SHAPES; s++) {
        const int columns = columns_of[s];
        device_memory out = device_memory_make(NULL, sizeof(float) * (size_t)(TEAM_ROWS * columns), 0);
        CUDA((cudaError_t)hopper_multiply_registers(&maps, columns, a.data, 5.0f, out.data));
        device_memory_read(&out, product);
        for (int i = 0; i < TEAM_ROWS * columns; i++) {
            int sum = 5;
            for (int k = 0; k < SUM; k++) {
                sum += number(i / columns * SUM + k, 2) * element(0, k, 0, i % columns);
            }
            assert_true(product[i] == (float)sum);
        }
        device_memory_free(&out);
    }
    device_memory_free(&a);
    device_memory_free(&x.memory);
}

static void products_with_a_transposed_second_operand(void **state) {
    (void)state;
    static const int shapes[][2] = {{64, 0}, {32, 0}, {32, 32}}; /* columns, first dim */
    fixture x = make_fixture(ROWS, SUM);
    fm_sm90_maps maps;
    assert_true(fm_sm90_make_maps(&x.problem, FM_BF16, &maps));
    for (int s = 0; s < 3; s++) {
        const int columns = shapes[s][0], dim0 = shapes[s][1];
        device_memory out = device_memory_make(NULL, sizeof(float) * (size_t)(TEAM_ROWS * columns), 0);
        CUDA((cudaError_t)hopper_multiply_transposed(&maps, columns, dim0, out.data));
        device_memory_read(&out, product);
        for (int i = 0; i < TEAM_ROWS * columns; i++) {
            int sum = 0;
            for (int k = 0; k < SUM; k++) {
                sum += element(0, i / columns, 0, k) * element(0, k, 0, dim0 + i % columns);
            }
            assert_true(product[i] == (float)sum);
        }
        device_memory_free(&out);
    }
    device_memory_free(&x.memory);
}

static void matrices_are_stored_transposed_and_bulk_additions_add(void **state) {
    (void)state;
    static uint16_t in[256], turned[256];
    static float words[256], sum[256];
    for (int i = 0; i < 256; i++) {
        in[i] = (uint16_t)(1000 + i);
        words[i] = (float)number(i, 3);
        sum[i] = (float)number(i, 4);
    }
    device_memory from = device_memory_make(in, sizeof in, 0), to = device_memory_make(NULL, sizeof turned, 0);
    device_memory added = device_memory_make(words, sizeof words, 0), sums = device_memory_make(sum, sizeof sum, 0);
    CUDA((cudaError_t)hopper_store_and_add(from.data, to.data, added.data, sums.data));
    device_memory_read(&to, turned);
    device_memory_read(&sums, sum);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(turned[i], 1000 + i % 16 * 16 + i / 16);
        assert_true(sum[i] == (float)(number(i, 4) + 4 * number(i, 3)));
    }
    device_memory_free(&from);
    device_memory_free(&to);
    device_memory_free(&added);
    device_memory_free(&sums);
}

static void registers_move_between_warpgroups(void **state) {
    (void)state;
    static int took[256];
    device_memory out = device_memory_make(NULL, sizeof took, 0);
    CUDA((cudaError_t)hopper_move_registers(out.data));
    device_memory_read(&out, took);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(took[i], 1);
    }
    device_memory_free(&out);
}

/* Exact in f32: 20 doublings. */
static void blocks_add_in_turn(void **state) {
    (void)state;
    enum { BLOCKS = 20 };
    const uint32_t zero = 0;
    static float sum[256];
    for (int i = 0; i < 256; i++) {
        sum[i] = (float)i;
    }
    device_memory counter = device_memory_make(&zero, sizeof zero, 0), sums = device_memory_make(sum, sizeof sum, 0);
    CUDA((cudaError_t)hopper_take_turns(BLOCKS, counter.data, sums.data));
    device_memory_read(&sums, sum);
    for (int i = 0; i < 256; i++) {
        float expected = (float)i;
        for (int block = BLOCKS - 1; block >= 0; block--) {
            expected = 2 * expected + (float)block;
        }
        assert_true(sum[i] == expected);
    }
    device_memory_free(&counter);
    device_memory_free(&sums);
}

int main(void) {
    device_require();
    if (!fm_sm90_runs_on(0)) {
        puts("skipped: no device of compute capability 9.0");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_box_is_copied_and_what_is_outside_the_tensor_is_zero),
        cmocka_unit_test(blocks_of_a_cluster_reach_each_other),
        cmocka_unit_test(memory_that_the_copy_engine_cannot_describe_has_no_map),
        cmocka_unit_test(products_of_two_shared_operands),
        cmocka_unit_test(products_of_registers_and_a_transposed_operand_add),
        cmocka_unit_test(products_with_a_transposed_second_operand),
        cmocka_unit_test(matrices_are_stored_transposed_and_bulk_additions_add),
        cmocka_unit_test(registers_move_between_warpgroups),
        cmocka_unit_test(blocks_add_in_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

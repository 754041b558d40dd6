#include "support/conformance_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"
#include "support/mask_kinds.h"
#include "support/pairwise.h"

enum { KIND, ROWS, RELATION, HEAD_DIM, VALUE_DIM, HEADS, DTYPE, LAYOUT, EXTRA, FACTORS };

static const int64_t row_levels[] = {1, 2, 17, 64, 127, 128, 129, 300, 1000};
static const int64_t dim_levels[] = {1, 8, 31, 40, 64, 72, 80, 96, 128, 192, 256};
static const int64_t head_levels[][2] = {{1, 1}, {6, 1}, {6, 2}, {6, 3}};
static const fm_dtype dtype_levels[] = {FM_F32, FM_F16, FM_BF16};
enum { EXTRA_NONE, EXTRA_SOFTCAP, EXTRA_SINKS, EXTRA_GRAD_LSE, EXTRA_SCALE, EXTRA_ALL, EXTRA_COUNT };
enum { COUNT_OF_RELATIONS = 3, COUNT_OF_VALUE_DIMS = 3 };
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const conformance_subject *subject;
static int first_draw, draws; /* draws 0: the pairwise set */
static int compared = RESULT_COUNT;
static bool small;
enum { SMALL_ROW_LEVELS = 7 /* up to 129 */ };

static void factor_levels(int levels[FACTORS]) {
    const int counts[FACTORS] = {
        [KIND] = mask_kind_count,       [ROWS] = COUNT(row_levels),        [RELATION] = COUNT_OF_RELATIONS,
        [HEAD_DIM] = COUNT(dim_levels), [VALUE_DIM] = COUNT_OF_VALUE_DIMS, [HEADS] = COUNT(head_levels),
        [DTYPE] = COUNT(dtype_levels),  [LAYOUT] = LAYOUT_COUNT,           [EXTRA] = EXTRA_COUNT};
    memcpy(levels, counts, sizeof counts);
}

static int64_t head_dim(int64_t dim) {
    const int64_t rounded = (dim + subject->head_dim_step - 1) / subject->head_dim_step * subject->head_dim_step;
    return rounded < subject->most_head_dim ? rounded : subject->most_head_dim;
}

static attention_case case_of(const int *row, test_random *random) {
    const int64_t n = row_levels[row[ROWS]], other = n / 2 + random_integer(random, 0, n);
    const int64_t dim = dim_levels[row[HEAD_DIM]];
    const int extra = row[EXTRA];
    attention_case c = {.batch = n > 300 ? 1 : 2,
                        .rows = n,
                        .columns = row[RELATION] == 0   ? n
                                   : row[RELATION] == 1 ? n + 1 + other
                                                        : (n + 1) / 2,
                        .heads = head_levels[row[HEADS]][0],
                        .heads_kv = head_levels[row[HEADS]][1],
                        .head_dim = head_dim(dim),
                        .head_dim_v = head_dim(row[VALUE_DIM] == 0   ? dim
                                               : row[VALUE_DIM] == 1 ? (dim + 1) / 2
                                                                     : 257 - dim),
                        .dtype = dtype_levels[row[DTYPE]],
                        .layout = (test_layout)row[LAYOUT],
                        .window_left = -1,
                        .window_right = -1,
                        .scale = NAN,
                        .is_gpu = subject->is_gpu};
    c.softcap = extra == EXTRA_SOFTCAP || extra == EXTRA_ALL ? 1.5f : 0.0f;
    c.with_sinks = extra == EXTRA_SINKS || extra == EXTRA_ALL;
    c.with_grad_lse = extra == EXTRA_GRAD_LSE || extra == EXTRA_ALL;
    c.f32_results = extra == EXTRA_ALL;
    if (extra == EXTRA_SCALE) {
        c.scale = random_chance(random, 0.5) ? 0.0f : -0.3f;
    }
    mask_kinds[row[KIND]].make(random, &c);
    return c;
}

static void run_case(int number, const int *row, test_random *random) {
    char name[96];
    attention_case c = case_of(row, random);
    c.name = name;
    attention_inputs in = attention_inputs_make(&c, random), wide = attention_inputs_widen(&c, &in);
    const attention_run_options reference = {.backend = FM_BACKEND_REFERENCE};
    attention_results oracle = attention_run(&c, &wide, reference), plain = attention_run(&c, &in, reference);
    for (int way = 0; way < subject->ways; way++) {
        snprintf(name, sizeof name, "case %d, way %d, %s", number, way, mask_kinds[row[KIND]].name);
        attention_results ours = subject->run(&c, &in, way);
        for (int i = 0; i < compared; i++) {
            attention_assert_result_close(&c, &ours, &plain, &oracle, i);
        }
        attention_results_free(&ours);
    }
    attention_results_free(&plain);
    attention_results_free(&oracle);
    attention_inputs_free(&wide);
    attention_inputs_free(&in);
    fm_mask_free((fm_mask *)c.mask);
}

static void every_pair_agrees_with_the_oracle(void **state) {
    (void)state;
    int levels[FACTORS], *rows = NULL;
    test_random random = {20260101};
    factor_levels(levels);
    const int count = pairwise_cover(FACTORS, levels, &random, &rows);
    assert_true(pairwise_is_covered(FACTORS, levels, rows, count));
    for (int i = 0; i < count; i++) {
        run_case(i, rows + i * FACTORS, &random);
    }
    print_message("%d cases cover all pairs\n", count);
    free(rows);
}

/* Three of four draws are such as the fast kernels take, of the longest of short sequences, so that a few meet most of their code. */
static void keep_small(int i, int *row, test_random *random) {
    enum { FIRST_ROWS = 5, FIRST_DIM = 3 };
    row[ROWS] %= SMALL_ROW_LEVELS;
    if (i % 4 == 0) {
        return;
    }
    row[ROWS] = FIRST_ROWS + (int)random_integer(random, 0, SMALL_ROW_LEVELS - FIRST_ROWS - 1);
    row[HEAD_DIM] = FIRST_DIM + (int)random_integer(random, 0, COUNT(dim_levels) - FIRST_DIM - 1);
    row[DTYPE] = 1 + (int)random_integer(random, 0, COUNT(dtype_levels) - 2);
    row[LAYOUT] = (int)random_integer(random, LAYOUT_CONTIGUOUS, LAYOUT_TRANSPOSED);
}

static void random_draws_agree_with_the_oracle(void **state) {
    (void)state;
    int levels[FACTORS], row[FACTORS];
    factor_levels(levels);
    for (int i = first_draw; i < first_draw + draws; i++) {
        test_random random = {(uint64_t)i}; /* one seed a draw: a failing one can be run alone */
        for (int f = 0; f < FACTORS; f++) {
            row[f] = (int)random_integer(&random, 0, levels[f] - 1);
        }
        if (small) {
            keep_small(i, row, &random);
        }
        run_case(i, row, &random);
    }
}

int conformance_main(int argc, char **argv, const conformance_subject *backend) {
    subject = backend;
    if (argc > 1 && strcmp(argv[argc - 1], "forward") == 0) {
        compared = RESULT_GRAD_QUERY;
        argc--;
    }
    small = argc == 4 && strcmp(argv[1], "small") == 0;
    if (small || (argc == 4 && strcmp(argv[1], "draws") == 0)) {
        first_draw = atoi(argv[2]);
        draws = atoi(argv[3]);
    }
    if (argc != 1 && draws <= 0) {
        fprintf(stderr, "usage: %s [draws|small FIRST COUNT] [forward]\n", argv[0]);
        return 2;
    }
    const struct CMUnitTest pairs[] = {cmocka_unit_test(every_pair_agrees_with_the_oracle)};
    const struct CMUnitTest product[] = {cmocka_unit_test(random_draws_agree_with_the_oracle)};
    return draws > 0 ? cmocka_run_group_tests(product, NULL, NULL) : cmocka_run_group_tests(pairs, NULL, NULL);
}

/* Every allocation of every call that makes a mask or a plan, or reads one into arrays, fails once: the status says so, nothing
 * is written and nothing leaks (the last under the address sanitizer). And no call asks for much more than its result. */
#include "support/failing_allocation.h"
#include "support/small_masks.h"
#include "support/truth.h"

#include <flashmask/masks.h>

/* What the masks are made of: random pairs as the arrays of the conversions, ids and lengths. */
enum { LENGTH = 260, HEADS = 2, RANGES = 131 };
static uint8_t dense[HEADS * LENGTH * LENGTH];
static int32_t row_start[HEADS * RANGES * LENGTH], row_end[HEADS * RANGES * LENGTH];
static int32_t alternating[LENGTH], repeating[LENGTH]; /* 0 1 0 1 ..., and 0 1 2 0 1 2 ... */
static const int32_t cumulative[] = {0, 100, 100, 230};
static const int64_t lengths[] = {100, 0, 90, 70}, prefixes[] = {5, 0, 90, 1}, parents[] = {-1, 0, 0, 1};
static const int64_t offsets[] = {3, 130}, spans[] = {5, 20};
static const fm_interval two_columns[] = {{0, 1}, {0, 7}, {3, 3}, {5, 200}};
static const fm_mask_shape square = {1, HEADS, LENGTH, LENGTH};

#define MAKER(name, call)                                       \
    static fm_status name(const void *context, fm_mask **out) { \
        (void)context;                                          \
        return call;                                            \
    }
MAKER(from_dense, fm_mask_from_dense(square, dense, NULL, out))
MAKER(from_row_ranges, fm_mask_from_row_ranges(square, RANGES, row_start, row_end, NULL, out))
MAKER(from_startend, fm_mask_from_startend_row_indices((fm_mask_shape){1, 1, LENGTH, LENGTH / 4}, 4, false, alternating, out))
MAKER(from_fms_fme, fm_mask_from_fms_fme((fm_mask_shape){1, 1, LENGTH, LENGTH / 2}, 2, alternating, repeating, out))
MAKER(from_intervals, fm_mask_from_intervals((fm_mask_shape){1, 1, LENGTH, 2}, 2, two_columns, out))
MAKER(from_cu_seqlens, fm_mask_from_cu_seqlens(cumulative, NULL, 3, true, LENGTH, LENGTH, out))
MAKER(from_document_ids, fm_mask_from_document_ids(1, LENGTH, alternating, -1, true, NULL, out))
MAKER(from_position_ids, fm_mask_from_position_ids(1, LENGTH, repeating, true, true, out))
MAKER(window, fm_mask_sliding_window(LENGTH, LENGTH, 9, 0, out))
MAKER(sink_window, fm_mask_sink_window(LENGTH, LENGTH, 2, 9, out))
MAKER(global_window, fm_mask_global_window(LENGTH, LENGTH, 2, 9, 9, out))
MAKER(prefix_lm, fm_mask_prefix_lm(LENGTH, LENGTH, 9, out))
MAKER(padding, fm_mask_padding(2, LENGTH, LENGTH, offsets, spans, out))
MAKER(documents, fm_mask_documents(4, lengths, true, 3, out))
MAKER(documents_sink_window, fm_mask_documents_sink_window(4, lengths, 2, 9, 3, out))
MAKER(prefix_documents, fm_mask_prefix_documents(4, prefixes, lengths, 3, out))
MAKER(causal_blockwise, fm_mask_causal_blockwise(4, lengths, out))
MAKER(share_question, fm_mask_share_question(1, &(fm_question){9, 4, lengths}, false, 3, out))
MAKER(image_spans, fm_mask_image_spans(4, lengths, 2, offsets, spans, out))
static fm_status prefix_tree(const void *context, fm_mask **out) {
    int64_t offset[4] = {-7, -7, -7, -7};
    (void)context;
    const fm_status status = fm_mask_prefix_tree(4, parents, lengths, offset, out);
    assert_int_equal(offset[3], status == FM_OK ? 100 : -7);
    return status;
}
MAKER(qk_sparse, fm_mask_qk_sparse(LENGTH, LENGTH, 2, offsets, spans, out))
MAKER(hash_sparse, fm_mask_hash_sparse(LENGTH, repeating, NULL, out))
MAKER(random_eviction, fm_mask_random_eviction(LENGTH, HEADS, 20, 1, out))
MAKER(random_sparse, fm_mask_random_sparse(LENGTH, LENGTH, 0.5, 1, NULL, out))
MAKER(blocks, fm_mask_blocks((fm_mask_shape){1, 1, LENGTH, LENGTH}, 16, dense, NULL, out))
MAKER(bigbird, fm_mask_bigbird(LENGTH, LENGTH, 16, 1, 1, 5, 1, NULL, out))

static void fill_arrays(const fm_mask *mask) {
    assert_int_equal(fm_mask_to_dense(mask, dense, sizeof dense), FM_OK);
    assert_int_equal(fm_mask_to_row_ranges(mask, RANGES, row_start, row_end, HEADS * RANGES * LENGTH), FM_OK);
    for (int32_t i = 0; i < LENGTH; i++) {
        alternating[i] = i % 2;
        repeating[i] = i % 3;
    }
}

static fm_mask *random_operand(test_random *random, double density) {
    truth t = truth_random(random, square, density);
    fm_mask *mask = truth_mask(&t, NULL);
    truth_free(&t);
    return mask;
}

static void constructors_survive_every_failed_allocation(void **state) {
    (void)state;
    static const mask_maker constructors[] = {from_dense,       from_row_ranges, from_startend,         from_fms_fme,
                                              from_intervals,   from_cu_seqlens, from_document_ids,     from_position_ids,
                                              window,           sink_window,     global_window,         prefix_lm,
                                              padding,          documents,       documents_sink_window, prefix_documents,
                                              causal_blockwise, share_question,  image_spans,           prefix_tree,
                                              qk_sparse,        hash_sparse,     random_eviction,       random_sparse,
                                              blocks,           bigbird};
    test_random random = {2};
    fm_mask *mask = random_operand(&random, 0.5);
    fill_arrays(mask);
    for (size_t i = 0; i < sizeof constructors / sizeof *constructors; i++) {
        fail_each_allocation(constructors[i], NULL);
    }
    fm_mask_free(mask);
}

/* What a mask is read into. */
enum { RESULT = 4 * HEADS * 300, UNTOUCHED = 0x5a5a5a5a };
typedef struct reading {
    int32_t first[RESULT], second[RESULT];
} reading;
typedef fm_status (*reader)(const fm_mask *mask, reading *out);

static fm_status to_startend(const fm_mask *mask, reading *out) {
    return fm_mask_to_startend_row_indices(mask, 4, false, out->first, RESULT);
}
static fm_status to_fms_fme(const fm_mask *mask, reading *out) {
    return fm_mask_to_fms_fme(mask, 4, out->first, out->second, RESULT);
}
static fm_status to_intervals(const fm_mask *mask, reading *out) {
    return fm_mask_to_intervals(mask, 2, (fm_interval *)out->first, RESULT / 2);
}
static fm_status to_row_ranges(const fm_mask *mask, reading *out) {
    return fm_mask_to_row_ranges(mask, 4, out->first, out->second, RESULT);
}
static fm_status to_cu_seqlens(const fm_mask *mask, reading *out) {
    int64_t count = UNTOUCHED;
    const fm_status status = fm_mask_to_cu_seqlens(mask, true, out->first, out->second, RESULT, &count);
    assert_int_equal(count, status == FM_OK ? 3 : UNTOUCHED);
    return status;
}
static fm_status one_column(const fm_mask *mask, reading *out) {
    return fm_mask_column(mask, 0, 0, 130, (fm_interval *)out->first, &out->second[0]);
}

/* The number of allocations that can fail. */
static int64_t fail_each_reading(reader read, const fm_mask *mask) {
    static reading expected, out;
    memset(&expected, 0x5a, sizeof expected);
    assert_int_equal(read(mask, &expected), FM_OK);
    for (int64_t k = 0;; k++) {
        memset(&out, 0x5a, sizeof out);
        allowed = k;
        const fm_status status = read(mask, &out);
        allowed = INT64_MAX;
        if (status == FM_OK) {
            assert_memory_equal(&out, &expected, sizeof out);
            return k;
        }
        assert_int_equal(status, FM_ERROR_OUT_OF_MEMORY);
        for (int i = 0; i < RESULT; i++) {
            assert_int_equal(out.first[i], UNTOUCHED);
            assert_int_equal(out.second[i], UNTOUCHED);
        }
    }
}

static void readings_survive_every_failed_allocation(void **state) {
    (void)state;
    fm_mask *packed = NULL, *heads = NULL, *comb = comb_mask(LENGTH, LENGTH, 200, 9);
    assert_int_equal(documents(NULL, &packed), FM_OK);
    assert_int_equal(fm_mask_repeat_heads(packed, HEADS, &heads), FM_OK); /* the second head fails after the first is read */
    static const reader readers[] = {to_startend, to_fms_fme, to_intervals, to_row_ranges};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        assert_in_range(fail_each_reading(readers[i], heads), 1, 20);
    }
    assert_in_range(fail_each_reading(to_cu_seqlens, packed), 1, 20);
    assert_int_equal(fail_each_reading(one_column, packed), 0);
    assert_in_range(fail_each_reading(one_column, comb), 1, 20);
    fm_mask_free(packed);
    fm_mask_free(heads);
    fm_mask_free(comb);
}

static void plans_survive_every_failed_allocation(void **state) {
    (void)state;
    static const double densities[] = {0.5, 0.001};
    test_random random = {3};
    for (int d = 0; d < 2; d++) {
        fm_mask *mask = random_operand(&random, densities[d]);
        int64_t failures = 0;
        for (fm_status status = FM_ERROR_OUT_OF_MEMORY; status != FM_OK; failures++) {
            fm_plan *plan = NULL;
            allowed = failures;
            status = fm_plan_create(mask, NULL, &plan);
            allowed = INT64_MAX;
            assert_true(status == FM_OK || (status == FM_ERROR_OUT_OF_MEMORY && plan == NULL));
            fm_plan_free(plan);
        }
        assert_in_range(failures, 10, 100);
        fm_mask_free(mask);
    }
}

/* Every other row sees all keys. In one pass over 1,048,576 rows bitmaps take 16 MiB a stripe; passes stay below 128 MiB. */
static void row_ranges_of_a_million_rows_need_no_gigabyte(void **state) {
    (void)state;
    enum { ROWS = 1 << 20, COLUMNS = 20 * FM_STRIPE };
    int32_t *start = test_calloc(ROWS, sizeof *start), *end = test_calloc(ROWS, sizeof *end);
    fm_mask *mask = NULL;
    for (int64_t i = 0; i < ROWS; i += 2) {
        end[i] = COLUMNS;
    }
    largest = 0;
    assert_int_equal(fm_mask_from_row_ranges((fm_mask_shape){1, 1, ROWS, COLUMNS}, 1, start, end, NULL, &mask), FM_OK);
    assert_in_range(largest, 1, 128 << 20);
    int64_t pairs = 0;
    assert_int_equal(fm_mask_visible_pairs(mask, &pairs), FM_OK);
    assert_int_equal(pairs, INT64_C(1) * ROWS / 2 * COLUMNS);
    fm_mask_free(mask);
    test_free(start);
    test_free(end);
}

/* Two masks of 4 intervals a column, together 8: the lists of 128 such columns are 13 KiB, those of all would be 10 MiB. */
static void a_union_holds_the_long_columns_of_one_stripe(void **state) {
    (void)state;
    enum { COLUMNS = 100000, ROWS = 16 };
    fm_mask *a = NULL, *b = NULL, *either = NULL;
    fm_mask_writer writer;
    static const fm_interval four[] = {{0, 1}, {4, 5}, {8, 9}, {12, 13}};
    assert_int_equal(fm_mask_writer_open(&writer, (fm_mask_shape){1, 1, ROWS, COLUMNS}, 4, NULL), FM_OK);
    assert_int_equal(fm_mask_writer_columns(&writer, 0, 0, 0, COLUMNS, four, 4), FM_OK);
    assert_int_equal(finish(&writer, &a), FM_OK);
    assert_int_equal(fm_mask_shift(a, 2, 0, NULL, &b), FM_OK);
    largest = 0;
    assert_int_equal(fm_mask_or(a, b, NULL, &either), FM_OK);
    assert_true(fm_mask_has_fallback(either));
    assert_in_range(largest, 1, COLUMNS * FM_MAX_INTERVALS * sizeof(fm_interval)); /* the intervals of the result */
    fm_mask_free(a);
    fm_mask_free(b);
    fm_mask_free(either);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constructors_survive_every_failed_allocation),
        cmocka_unit_test(readings_survive_every_failed_allocation),
        cmocka_unit_test(plans_survive_every_failed_allocation),
        cmocka_unit_test(row_ranges_of_a_million_rows_need_no_gigabyte),
        cmocka_unit_test(a_union_holds_the_long_columns_of_one_stripe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The .npy writer gives back what it was given; hostile files are in npy.t. */
#include "support/cmocka_all.h"

#include "npy.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static int make_path(void **state) {
    (void)state;
    strcpy(path, "/tmp/flashmask_npy_XXXXXX");
    const int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static void round_trip(fm_npy_type type, int32_t rank, const int64_t *shape, int64_t count, const void *data) {
    fm_npy array = {0};
    assert_true(fm_npy_save(path, type, rank, shape, data));
    assert_true(fm_npy_load(path, &array));
    assert_int_equal(array.type, type);
    assert_int_equal(array.rank, rank);
    assert_int_equal(array.count, count);
    assert_memory_equal(array.shape, shape, (size_t)rank * sizeof *shape);
    assert_memory_equal(array.data, data, (size_t)count * fm_npy_type_size(type));
    fm_npy_free(&array);
}

static void every_type_comes_back(void **state) {
    (void)state;
    unsigned char data[48];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i + 1);
    }
    for (int type = 0; type < FM_NPY_TYPES; type++) {
        round_trip((fm_npy_type)type, 2, (const int64_t[]){2, 3}, 6, data);
    }
}

static void every_rank_comes_back(void **state) {
    (void)state;
    const int64_t shape[FM_NPY_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    for (int32_t rank = 0; rank <= FM_NPY_MAX_RANK; rank++) {
        round_trip(FM_NPY_F32, rank, shape, 1, "wxyz");
    }
    round_trip(FM_NPY_I32, 3, (const int64_t[]){4, 0, 2147483647}, 0, "");
}

static void data_starts_at_a_multiple_of_64(void **state) {
    (void)state;
    assert_true(fm_npy_save(path, FM_NPY_U8, 2, (const int64_t[]){1234567, 0}, ""));
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    assert_int_equal(ftell(file) % 64, 0);
    fclose(file);
}

static void a_file_that_cannot_be_written_is_an_error(void **state) {
    (void)state;
    const unsigned char byte = 1;
    assert_false(fm_npy_save("/nowhere/x.npy", FM_NPY_U8, 1, (const int64_t[]){1}, &byte));
    assert_non_null(strstr(fm_cli_message(), "/nowhere/x.npy"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_type_comes_back, make_path, remove_path),
        cmocka_unit_test_setup_teardown(every_rank_comes_back, make_path, remove_path),
        cmocka_unit_test_setup_teardown(data_starts_at_a_multiple_of_64, make_path, remove_path),
        cmocka_unit_test(a_file_that_cannot_be_written_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

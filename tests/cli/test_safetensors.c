/* The .safetensors reader on good and hostile files, and the writer. */
#include "safetensors.h"

#include "support/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file of a header with its length, and `bytes` bytes 0, 1, 2, ... */
static FILE *make_file(const char *header, int64_t length, int64_t bytes) {
    FILE *file = tmpfile();
    assert_non_null(file);
    for (int i = 0; i < 8; i++) {
        fputc((int)((uint64_t)length >> (8 * i) & 255), file);
    }
    fputs(header, file);
    for (int64_t i = 0; i < bytes; i++) {
        fputc((int)(i & 255), file);
    }
    rewind(file);
    return file;
}

static void assert_refused(const char *header, int64_t bytes, const char *message) {
    FILE *file = make_file(header, (int64_t)strlen(header), bytes);
    fm_safetensors read = {0};
    assert_false(fm_safetensors_read(file, "input", &read));
    assert_string_equal(fm_cli_message(), message);
    assert_null(read.tensors);
    fclose(file);
}

static fm_safetensors assert_read(const char *header, int64_t bytes) {
    FILE *file = make_file(header, (int64_t)strlen(header), bytes);
    fm_safetensors read = {0};
    const bool ok = fm_safetensors_read(file, "input", &read);
    if (!ok) {
        print_error("%s\n", fm_cli_message());
    }
    assert_true(ok);
    fclose(file);
    return read;
}

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

static void tensors_come_in_the_order_of_their_bytes(void **state) {
    (void)state;
    fm_safetensors read = assert_read("{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "F32", "2,1", "3,11") "," TENSOR(
                                          "a", "U8", "3", "0,3") "," TENSOR("none", "F64", "0,7", "11,11") "}   ",
                                      11);
    assert_int_equal(read.count, 3);
    assert_string_equal(read.tensors[0].name, "a");
    assert_string_equal(read.tensors[1].name, "b");
    const fm_npy *b = fm_safetensors_find(&read, "b");
    assert_non_null(b);
    assert_int_equal(b->type, FM_NPY_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->count, 2);
    assert_memory_equal(b->data, "\3\4\5\6\7\10\11\12", 8);
    assert_int_equal(fm_safetensors_find(&read, "none")->count, 0);
    assert_null(fm_safetensors_find(&read, "c"));
    fm_safetensors_free(&read);
}

static void scalars_and_empty_files_are_read(void **state) {
    (void)state;
    fm_safetensors read = assert_read("{" TENSOR("scalar", "I64", "", "0,8") "}", 8);
    assert_int_equal(read.tensors[0].array.rank, 0);
    assert_int_equal(read.tensors[0].array.count, 1);
    fm_safetensors_free(&read);
    read = assert_read("{}", 0);
    assert_int_equal(read.count, 0);
    fm_safetensors_free(&read);
}

static void every_dtype_survives_writing_and_reading(void **state) {
    (void)state;
    static const unsigned char bytes[16] = {1, 0, 1, 1, 0, 60, 0, 66, 9, 8, 7, 6, 5, 4, 3, 2};
    static const char *const names[FM_NPY_TYPES] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"};
    fm_safetensor tensors[FM_NPY_TYPES];
    for (int t = 0; t < FM_NPY_TYPES; t++) {
        tensors[t] = (fm_safetensor){(char *)names[t], {(fm_npy_type)t, 2, {1, 2}, 2, (void *)bytes}};
    }
    char path[] = "/tmp/test_safetensors.XXXXXX";
    close(mkstemp(path));
    assert_true(fm_safetensors_save(path, tensors, FM_NPY_TYPES));
    fm_safetensors read = {0};
    assert_true(fm_safetensors_load(path, &read));
    assert_int_equal(read.count, FM_NPY_TYPES);
    size_t last = 8;
    for (int t = 0; t < FM_NPY_TYPES; t++) {
        const fm_npy *array = fm_safetensors_find(&read, names[t]);
        assert_int_equal(array->type, t);
        assert_int_equal(array->rank, 2);
        assert_memory_equal(array->data, bytes, 2 * fm_npy_type_size((fm_npy_type)t));
        const size_t size = fm_npy_type_size(read.tensors[t].array.type); /* wide ones first, so that all are aligned */
        assert_true(size <= last);
        last = size;
    }
    fm_safetensors_free(&read);
    unlink(path);
}

static void data_of_written_files_starts_aligned(void **state) {
    (void)state;
    unsigned char prelude[8];
    for (int length = 1; length <= 9; length++) {
        char name[16] = "", path[] = "/tmp/test_safetensors.XXXXXX";
        memset(name, 'x', (size_t)length);
        float value = 1;
        const fm_safetensor tensor = {name, {FM_NPY_F32, 1, {1}, 1, &value}};
        close(mkstemp(path));
        assert_true(fm_safetensors_save(path, &tensor, 1));
        FILE *file = fopen(path, "rb");
        assert_int_equal(fread(prelude, 1, 8, file), 8);
        assert_int_equal(prelude[0] % 8, 0);
        fclose(file);
        unlink(path);
    }
}

static void names_that_cannot_be_written_are_refused(void **state) {
    (void)state;
    float value = 1;
    const fm_npy array = {FM_NPY_F32, 1, {1}, 1, &value};
    const fm_safetensor same[2] = {{(char *)"a", array}, {(char *)"a", array}}, metadata = {(char *)"__metadata__", array},
                        binary = {(char *)"\xff", array};
    assert_false(fm_safetensors_save("/tmp/test_safetensors.never", same, 2));
    assert_false(fm_safetensors_save("/tmp/test_safetensors.never", &metadata, 1));
    assert_false(fm_safetensors_save("/tmp/test_safetensors.never", &binary, 1));
    assert_int_equal(access("/tmp/test_safetensors.never", F_OK), -1);
}

static void headers_that_lie_about_their_length_are_refused(void **state) {
    (void)state;
    static const struct {
        int64_t length;
        const char *message;
    } cases[] = {
        {-1, "input: a header of 18446744073709551615 bytes; at most 16777216 are read"},
        {FM_SAFETENSORS_HEADER_LIMIT + 1, "input: a header of 16777217 bytes; at most 16777216 are read"},
        {FM_SAFETENSORS_HEADER_LIMIT, "input: ends inside its header"},
        {3, "input: ends inside its header"},
        {0, "input: the header does not start with {"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *file = make_file("{}", cases[i].length, 0);
        fm_safetensors read = {0};
        assert_false(fm_safetensors_read(file, "input", &read));
        assert_string_equal(fm_cli_message(), cases[i].message);
        fclose(file);
    }
}

static void headers_that_are_no_json_object_are_refused(void **state) {
    (void)state;
    static const char *const headers[] = {"{",           "{]",           "{\"a\":1}}",          "{\"a\" 1}",
                                          "{\"a\":{},}", "{\"\xff\":1}", "{\"a\":\"\\u0000\"}", "{\"a\":1e999}"};
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        FILE *file = make_file(headers[i], (int64_t)strlen(headers[i]), 0);
        fm_safetensors read = {0};
        assert_false(fm_safetensors_read(file, "input", &read));
        assert_memory_equal(fm_cli_message(), "input: the header is not JSON", 29);
        fclose(file);
    }
    assert_refused("[]", 0, "input: the header does not start with {");
    assert_refused(" {}", 0, "input: the header does not start with {");
}

static void names_given_twice_are_refused(void **state) {
    (void)state;
    const char *header = "{" TENSOR("a", "U8", "1", "0,1") "," TENSOR("a", "U8", "1", "1,2") "}";
    FILE *file = make_file(header, (int64_t)strlen(header), 2);
    fm_safetensors read = {0};
    assert_false(fm_safetensors_read(file, "input", &read));
    assert_memory_equal(fm_cli_message(), "input: the header is not JSON: duplicate object key", 51);
    fclose(file);
}

static void entries_that_describe_no_tensor_are_refused(void **state) {
    (void)state;
    const char *const not_an_object = "input: a: is not an object of dtype, shape and data_offsets";
    assert_refused("{\"a\":[]}", 0, not_an_object);
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, not_an_object);
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, not_an_object);
    assert_refused("{\"__metadata__\":[]}", 0, "input: __metadata__ is not an object of texts");
    assert_refused("{\"__metadata__\":{\"a\":1}}", 0, "input: __metadata__ is not an object of texts");
}

static void other_dtypes_are_refused(void **state) {
    (void)state;
    const char *const accepted = "F64, F32, F16, BF16, I64, I32, U8 and BOOL are";
    char message[160];
    snprintf(message, sizeof message, "input: a: dtype F8_E4M3 is not read; %s", accepted);
    assert_refused("{" TENSOR("a", "F8_E4M3", "1", "0,1") "}", 1, message);
    snprintf(message, sizeof message, "input: a: dtype f32 is not read; %s", accepted);
    assert_refused("{" TENSOR("a", "f32", "1", "0,4") "}", 4, message);
    snprintf(message, sizeof message, "input: a: dtype (no text) is not read; %s", accepted);
    assert_refused("{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, message);
}

static void impossible_shapes_are_refused(void **state) {
    (void)state;
    assert_refused("{" TENSOR("a", "U8", "-1", "0,1") "}", 1, "input: a: extent 0 of shape is not a whole number from 0");
    assert_refused("{" TENSOR("a", "U8", "1,1.0", "0,1") "}", 1, "input: a: extent 1 of shape is not a whole number from 0");
    assert_refused("{" TENSOR("a", "U8", "1,1,1,1,1,1,1,1,1", "0,1") "}", 1,
                   "input: a: shape is not an array of at most 8 whole numbers");
    assert_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1,
                   "input: a: shape is not an array of at most 8 whole numbers");
    assert_refused("{" TENSOR("a", "F64", "1152921504606846976", "0,1") "}", 1, "input: a: shape is past 2^63 bytes");
    assert_refused("{" TENSOR("a", "U8", "4294967296,4294967296", "0,0") "}", 0, "input: a: shape is past 2^63 bytes");
    assert_refused("{" TENSOR("a", "U8", "0,4294967296,4294967296", "0,0") "}", 0, "input: a: shape is past 2^63 bytes");
}

static void impossible_offsets_are_refused(void **state) {
    (void)state;
    assert_refused("{" TENSOR("a", "U8", "1", "-1,0") "}", 1, "input: a: data_offsets -1, 0 are negative or reversed");
    assert_refused("{" TENSOR("a", "U8", "1", "1,0") "}", 1, "input: a: data_offsets 1, 0 are negative or reversed");
    assert_refused("{" TENSOR("a", "U8", "1", "0,1,2") "}", 1, "input: a: data_offsets are not two whole numbers");
    assert_refused("{" TENSOR("a", "U8", "1", "0,1.5") "}", 1, "input: a: data_offsets are not two whole numbers");
    assert_refused("{" TENSOR("a", "F32", "2", "0,7") "}", 7, "input: a: data_offsets 0, 7 hold 7 bytes; the shape needs 8");
    assert_refused("{" TENSOR("a", "U8", "4", "0,4") "}", 3, "input: ends inside its tensor a");
    assert_refused("{" TENSOR("a", "U8", "9000000000000000000", "0,9000000000000000000") "}", 3,
                   "input: ends inside its tensor a");
}

static void tensors_that_overlap_or_leave_holes_are_refused(void **state) {
    (void)state;
    assert_refused("{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "3,7") "}", 7,
                   "input: b: data_offsets begin at 3, inside another tensor that ends at 4");
    assert_refused("{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "0,4") "}", 4,
                   "input: b: data_offsets begin at 0, inside another tensor that ends at 4");
    assert_refused("{" TENSOR("a", "U8", "4", "0,4") "," TENSOR("b", "U8", "4", "5,9") "}", 9,
                   "input: b: data_offsets begin at 5, which leaves a hole from 4");
    assert_refused("{" TENSOR("a", "U8", "4", "1,5") "}", 5, "input: a: data_offsets begin at 1, which leaves a hole from 0");
    assert_refused("{" TENSOR("a", "U8", "4", "0,4") "}", 5, "input: has data behind its last tensor");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_in_the_order_of_their_bytes),
        cmocka_unit_test(scalars_and_empty_files_are_read),
        cmocka_unit_test(every_dtype_survives_writing_and_reading),
        cmocka_unit_test(data_of_written_files_starts_aligned),
        cmocka_unit_test(names_that_cannot_be_written_are_refused),
        cmocka_unit_test(headers_that_lie_about_their_length_are_refused),
        cmocka_unit_test(headers_that_are_no_json_object_are_refused),
        cmocka_unit_test(names_given_twice_are_refused),
        cmocka_unit_test(entries_that_describe_no_tensor_are_refused),
        cmocka_unit_test(other_dtypes_are_refused),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(impossible_offsets_are_refused),
        cmocka_unit_test(tensors_that_overlap_or_leave_holes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Hostile .npy files: refused with a message, or read whole and equal after being written and read again. */
#include "fuzz_data.h"
#include "fuzz_file.h"
#include "npy.h"

#include <string.h>

enum { MOST_BYTES = 4096, PREFIX = 10 }; /* prefix: magic, version, 16-bit header length */

static void check_array(const fm_npy *array) {
    int64_t count = 1;
    for (int32_t d = 0; d < array->rank; d++) {
        count *= array->shape[d];
    }
    FUZZ_REQUIRE(count == array->count);
    fm_npy again = {0};
    FUZZ_REQUIRE(fm_npy_save(path, array->type, array->rank, array->shape, array->data));
    FUZZ_REQUIRE(fm_npy_load(path, &again));
    FUZZ_REQUIRE(again.type == array->type && again.rank == array->rank && again.count == array->count);
    FUZZ_REQUIRE(memcmp(again.shape, array->shape, (size_t)array->rank * sizeof *array->shape) == 0);
    FUZZ_REQUIRE(array->count == 0 || memcmp(again.data, array->data, (size_t)array->count * fm_npy_type_size(array->type)) == 0);
    fm_npy_free(&again);
}

/* One input in two is a whole file; the others are a header's text up to a line feed and the data behind it, which get the
 * magic and the right length put before them, so that mutations of the text are not lost on a wrong length. */
static size_t make_file(const uint8_t *bytes, size_t size, uint8_t file[MOST_BYTES + PREFIX]) {
    static const uint8_t prefix[PREFIX] = "\x93NUMPY\x01";
    if (bytes[0] & 1) {
        memcpy(file, bytes + 1, size - 1);
        return size - 1;
    }
    const uint8_t *end = memchr(bytes + 1, '\n', size - 1);
    const size_t length = end == NULL ? size - 1 : (size_t)(end - bytes);
    memcpy(file, prefix, PREFIX);
    file[8] = (uint8_t)length;
    file[9] = (uint8_t)(length >> 8);
    memcpy(file + PREFIX, bytes + 1, size - 1);
    return size - 1 + PREFIX;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static uint8_t content[MOST_BYTES + PREFIX];
    if (size < 2 || size > MOST_BYTES) {
        return 0;
    }
    FILE *file = fmemopen(content, make_file(bytes, size, content), "rb");
    FUZZ_REQUIRE(file != NULL);
    fm_npy array = {0};
    if (fm_npy_read(file, "input", &array)) {
        check_array(&array);
        fm_npy_free(&array);
    } else {
        FUZZ_REQUIRE(strncmp(fm_cli_message(), "input: ", 7) == 0);
    }
    fclose(file);
    return 0;
}

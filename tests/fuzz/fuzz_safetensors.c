/* Hostile .safetensors files: refused with a message, or read whole and equal after being written and read again. */
#include "fuzz_data.h"
#include "fuzz_file.h"
#include "safetensors.h"

#include <string.h>

enum { MOST_BYTES = 4096, PREFIX = 8 }; /* prefix: header length */

static int64_t check_tensor(const fm_npy *array) {
    int64_t count = 1;
    for (int32_t d = 0; d < array->rank; d++) {
        count *= array->shape[d];
    }
    FUZZ_REQUIRE(count == array->count && array->data != NULL);
    return count * (int64_t)fm_npy_type_size(array->type);
}

/* Every byte behind the header belongs to one tensor. */
static void check_tensors(const fm_safetensors *read, const uint8_t *file, size_t file_bytes) {
    fm_safetensors again = {0};
    int64_t bytes = 0;
    FUZZ_REQUIRE(fm_safetensors_save(path, read->tensors, read->count));
    FUZZ_REQUIRE(fm_safetensors_load(path, &again) && again.count == read->count);
    for (int64_t i = 0; i < read->count; i++) {
        const fm_npy *a = &read->tensors[i].array, *b = fm_safetensors_find(&again, read->tensors[i].name);
        const int64_t size = check_tensor(a);
        FUZZ_REQUIRE(b != NULL && b->type == a->type && b->rank == a->rank && b->count == a->count);
        FUZZ_REQUIRE(memcmp(b->shape, a->shape, sizeof a->shape) == 0);
        FUZZ_REQUIRE(memcmp(b->data, a->data, (size_t)size) == 0);
        bytes += size;
    }
    FUZZ_REQUIRE((size_t)bytes + PREFIX + file[0] + 256 * (size_t)file[1] == file_bytes);
    fm_safetensors_free(&again);
}

/* A file from a list of tensors whose sizes and offsets are mostly right; valid says that all are. */
typedef struct built_file {
    uint8_t *bytes;
    size_t length;
    bool valid;
} built_file;

static void add_tensor(fuzz_data *data, built_file *f, int index, int64_t *end) {
    static const char *const dtypes[] = {"F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E5M2"};
    static const int64_t sizes[] = {8, 4, 2, 2, 8, 4, 1, 1, 1};
    const int dtype = fuzz_integer(data, 0, 8), slip = fuzz_byte(data);
    const int64_t rows = fuzz_integer(data, 0, 3), columns = fuzz_integer(data, 0, 3);
    const int64_t begin = *end + (slip == 1 ? fuzz_integer(data, -4, 4) : 0);
    const int64_t bytes = rows * columns * sizes[dtype] + (slip == 2 ? fuzz_integer(data, -4, 4) : 0);
    f->valid = f->valid && dtype < 8 && begin == *end && bytes == rows * columns * sizes[dtype];
    *end = begin + bytes;
    f->length += (size_t)snprintf(
        (char *)f->bytes + f->length, 128, "%s\"t%d\":{\"dtype\":\"%s\",\"shape\":[%lld,%lld],\"data_offsets\":[%lld,%lld]}",
        index > 0 ? "," : "{", index, dtypes[dtype], (long long)rows, (long long)columns, (long long)begin, (long long)*end);
}

static void build_file(fuzz_data *data, built_file *f) {
    const int count = fuzz_integer(data, 1, 6);
    int64_t end = 0;
    f->valid = true;
    f->length = PREFIX;
    for (int i = 0; i < count; i++) {
        add_tensor(data, f, i, &end);
    }
    f->bytes[f->length++] = '}';
    memset(f->bytes, 0, PREFIX);
    f->bytes[0] = (uint8_t)(f->length - PREFIX);
    f->bytes[1] = (uint8_t)((f->length - PREFIX) >> 8);
    const int64_t given = end + (fuzz_byte(data) == 1 ? fuzz_integer(data, -4, 4) : 0);
    f->valid = f->valid && given == end;
    for (int64_t i = 0; i < given; i++) {
        f->bytes[f->length++] = fuzz_byte(data);
    }
}

/* A header's text up to a line feed and the data behind it get the right length put before them, so that mutations of the text
 * are not lost on a wrong length. */
static size_t prefix_length(const uint8_t *bytes, size_t size, uint8_t *file) {
    const uint8_t *end = memchr(bytes, '\n', size);
    const size_t length = end == NULL ? size : (size_t)(end - bytes) + 1;
    memset(file, 0, PREFIX);
    file[0] = (uint8_t)length;
    file[1] = (uint8_t)(length >> 8);
    memcpy(file + PREFIX, bytes, size);
    return size + PREFIX;
}

/* The first byte says what the others are: a file, a header's text and data, or choices of build_file. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static uint8_t content[MOST_BYTES + PREFIX];
    built_file f = {.bytes = content};
    if (size < 2 || size > MOST_BYTES) {
        return 0;
    }
    if (bytes[0] % 3 == 0) {
        f.length = size - 1;
        memcpy(content, bytes + 1, size - 1);
    } else if (bytes[0] % 3 == 1) {
        f.length = prefix_length(bytes + 1, size - 1, content);
    } else {
        build_file(&(fuzz_data){bytes + 1, size - 1}, &f);
    }
    FILE *file = fmemopen(content, f.length, "rb");
    FUZZ_REQUIRE(file != NULL);
    fm_safetensors read = {0};
    const bool ok = fm_safetensors_read(file, "input", &read);
    FUZZ_REQUIRE(ok || !f.valid);
    if (ok) {
        check_tensors(&read, content, f.length);
        fm_safetensors_free(&read);
    } else {
        FUZZ_REQUIRE(strncmp(fm_cli_message(), "input: ", 7) == 0 && read.tensors == NULL);
    }
    fclose(file);
    return 0;
}

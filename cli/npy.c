#include "npy.h"

#include "stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the .npy reader copies little-endian elements as they are"
#endif

static const char magic[6] = "\x93NUMPY";
enum { HEADER_LIMIT = 65536 };

static const struct {
    const char *name, *descr, *other_descr;
    size_t bytes;
} types[FM_NPY_TYPES] = {
    [FM_NPY_I64] = {"int64", "<i8", "=i8", 8},   [FM_NPY_I32] = {"int32", "<i4", "=i4", 4},
    [FM_NPY_F64] = {"float64", "<f8", "=f8", 8}, [FM_NPY_F32] = {"float32", "<f4", "=f4", 4},
    [FM_NPY_F16] = {"float16", "<f2", "=f2", 2}, [FM_NPY_BF16] = {"bfloat16", "<V2", "|V2", 2},
    [FM_NPY_U8] = {"uint8", "|u1", "<u1", 1},    [FM_NPY_BOOL] = {"bool", "|b1", "<b1", 1},
};

size_t fm_npy_type_size(fm_npy_type type) { return types[type].bytes; }
const char *fm_npy_type_name(fm_npy_type type) { return types[type].name; }

/* ---- header: {'descr': '<i4', 'fortran_order': False, 'shape': (4096, 1), } and blanks ----------------------------- */

typedef struct header {
    char *text;
    size_t at, length;
    char descr[16];
    bool fortran, has_descr, has_order, has_shape;
} header;

static void skip_blanks(header *h) {
    while (h->at < h->length && strchr(" \t\r\n", h->text[h->at]) != NULL && h->text[h->at] != '\0') {
        h->at++;
    }
}

static bool take(header *h, char c) {
    skip_blanks(h);
    if (h->at < h->length && h->text[h->at] == c) {
        h->at++;
        return true;
    }
    return false;
}

static bool take_word(header *h, const char *word) {
    skip_blanks(h);
    const size_t length = strlen(word);
    if (h->length - h->at >= length && memcmp(h->text + h->at, word, length) == 0) {
        h->at += length;
        return true;
    }
    return false;
}

/* A quoted string without escapes into out; false if there is none or it does not fit. */
static bool take_string(header *h, char *out, size_t room) {
    const char quote = take(h, '\'') ? '\'' : '"';
    if (quote == '"' && !take(h, '"')) {
        return false;
    }
    size_t n = 0;
    while (h->at < h->length && h->text[h->at] != quote && n + 1 < room) {
        out[n++] = h->text[h->at++];
    }
    out[n] = '\0';
    return h->at < h->length && h->text[h->at++] == quote;
}

static bool take_extent(header *h, const char *name, int64_t *out) {
    skip_blanks(h);
    int64_t value = 0;
    const size_t start = h->at;
    if (h->at < h->length && h->text[h->at] == '-') {
        return fm_cli_fail("%s: shape has a negative extent", name);
    }
    for (; h->at < h->length && h->text[h->at] >= '0' && h->text[h->at] <= '9'; h->at++) {
        const int digit = h->text[h->at] - '0';
        if (value > (INT64_MAX - digit) / 10) {
            return fm_cli_fail("%s: shape has an extent past 2^63", name);
        }
        value = 10 * value + digit;
    }
    *out = value;
    return h->at > start || fm_cli_fail("%s: shape is not a tuple of whole numbers", name);
}

static bool take_shape(header *h, const char *name, fm_npy *array) {
    if (!take(h, '(')) {
        return fm_cli_fail("%s: shape is not a tuple", name);
    }
    array->rank = 0;
    while (!take(h, ')')) {
        if (array->rank == FM_NPY_MAX_RANK) {
            return fm_cli_fail("%s: more than %d dimensions", name, FM_NPY_MAX_RANK);
        }
        if (!take_extent(h, name, &array->shape[array->rank++])) {
            return false;
        }
        if (!take(h, ',') && (h->at >= h->length || h->text[h->at] != ')')) {
            return fm_cli_fail("%s: shape is not a tuple of whole numbers", name);
        }
    }
    return true;
}

static bool take_entry(header *h, const char *name, fm_npy *array) {
    char key[16];
    if (!take_string(h, key, sizeof key) || !take(h, ':')) {
        return fm_cli_fail("%s: the header is not a dictionary of descr, fortran_order and shape", name);
    }
    bool *seen = strcmp(key, "descr") == 0           ? &h->has_descr
                 : strcmp(key, "fortran_order") == 0 ? &h->has_order
                 : strcmp(key, "shape") == 0         ? &h->has_shape
                                                     : NULL;
    if (seen == NULL || *seen) {
        return fm_cli_fail("%s: the header has %s '%s'", name, seen == NULL ? "an unknown entry" : "two entries", key);
    }
    *seen = true;
    if (seen == &h->has_shape) {
        return take_shape(h, name, array);
    }
    if (seen == &h->has_descr) {
        return take_string(h, h->descr, sizeof h->descr) || fm_cli_fail("%s: descr is not one plain type", name);
    }
    h->fortran = take_word(h, "True");
    return h->fortran || take_word(h, "False") || fm_cli_fail("%s: fortran_order is neither True nor False", name);
}

static bool parse_dictionary(header *h, const char *name, fm_npy *array) {
    if (!take(h, '{')) {
        return fm_cli_fail("%s: the header is not a dictionary", name);
    }
    while (!take(h, '}')) {
        if (!take_entry(h, name, array)) {
            return false;
        }
        if (!take(h, ',') && (h->at >= h->length || h->text[h->at] != '}')) {
            return fm_cli_fail("%s: the header's dictionary does not end", name);
        }
    }
    skip_blanks(h);
    if (h->at != h->length) {
        return fm_cli_fail("%s: the header has text behind its dictionary", name);
    }
    return (h->has_descr && h->has_order && h->has_shape) ||
           fm_cli_fail("%s: the header lacks descr, fortran_order or shape", name);
}

static bool find_type(const char *descr, const char *name, fm_npy *array) {
    for (int t = 0; t < FM_NPY_TYPES; t++) {
        if (strcmp(descr, types[t].descr) == 0 || strcmp(descr, types[t].other_descr) == 0) {
            array->type = (fm_npy_type)t;
            return true;
        }
    }
    if (descr[0] == '>') {
        return fm_cli_fail("%s: elements are big-endian ('%s'); little-endian is accepted", name, descr);
    }
    return fm_cli_fail("%s: elements of type '%s' are not read; int32, int64, float32, float64, float16, bfloat16, "
                       "uint8 and bool are",
                       name, descr);
}

/* Elements of the array, and that their bytes stay below 2^63. An extent of 0 does not hide an overflow of the others. */
static bool count_elements(const char *name, fm_npy *array) {
    int64_t left = INT64_MAX / (int64_t)types[array->type].bytes, count = 1;
    for (int32_t d = 0; d < array->rank; d++) {
        const int64_t extent = array->shape[d] > 0 ? array->shape[d] : 1;
        if (extent > left) {
            return fm_cli_fail("%s: shape is past 2^63 bytes", name);
        }
        left /= extent;
        count *= array->shape[d];
    }
    array->count = count;
    return true;
}

static bool is_fortran_matter(const fm_npy *array) {
    int long_dimensions = 0;
    for (int32_t d = 0; d < array->rank; d++) {
        long_dimensions += array->shape[d] > 1;
    }
    return long_dimensions > 1;
}

static bool parse_header(header *h, const char *name, fm_npy *array) {
    if (!parse_dictionary(h, name, array) || !find_type(h->descr, name, array) || !count_elements(name, array)) {
        return false;
    }
    if (h->fortran && is_fortran_matter(array)) {
        return fm_cli_fail("%s: is in Fortran order; save numpy.ascontiguousarray(x) instead", name);
    }
    return true;
}

/* ---- file ---------------------------------------------------------------------------------------------------------- */

/* Magic, version and length of the header text. */
static bool read_prelude(FILE *file, const char *name, size_t *length) {
    unsigned char b[8];
    if (!fm_stream_read(file, name, "first 8 bytes", b, 8)) {
        return false;
    }
    if (memcmp(b, magic, sizeof magic) != 0) {
        return fm_cli_fail("%s: is no .npy file", name);
    }
    const int version = b[6];
    if (version < 1 || version > 3 || b[7] != 0) {
        return fm_cli_fail("%s: .npy version %d.%d; 1.0, 2.0 and 3.0 are read", name, version, b[7]);
    }
    if (!fm_stream_read(file, name, "header length", b, version == 1 ? 2 : 4)) {
        return false;
    }
    *length = (size_t)b[0] | (size_t)b[1] << 8;
    if (version > 1) {
        *length |= (size_t)b[2] << 16 | (size_t)b[3] << 24;
    }
    return *length <= HEADER_LIMIT || fm_cli_fail("%s: a header of %zu bytes; at most %d are read", name, *length, HEADER_LIMIT);
}

static bool read_header(FILE *file, const char *name, fm_npy *array) {
    header h = {0};
    if (!read_prelude(file, name, &h.length)) {
        return false;
    }
    h.text = fm_cli_allocate((int64_t)h.length, 1);
    const bool ok = h.text != NULL && fm_stream_read(file, name, "header", h.text, h.length) && parse_header(&h, name, array);
    free(h.text);
    return ok;
}

bool fm_npy_read(FILE *file, const char *name, fm_npy *out) {
    fm_npy array = {0};
    if (!read_header(file, name, &array) ||
        !fm_stream_read_new(file, name, "data", (size_t)array.count * types[array.type].bytes, &array.data)) {
        return false;
    }
    if (fgetc(file) != EOF) {
        fm_npy_free(&array);
        return fm_cli_fail("%s: has data behind the array", name);
    }
    *out = array;
    return true;
}

bool fm_npy_load(const char *path, fm_npy *out) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fm_cli_fail("%s: %s", path, strerror(errno));
    }
    const bool ok = fm_npy_read(file, path, out);
    fclose(file);
    return ok;
}

void fm_npy_free(fm_npy *array) {
    free(array->data);
    *array = (fm_npy){0};
}

/* Header text, padded so that the data starts at a multiple of 64. Returns its length. */
static size_t format_header(fm_npy_type type, int32_t rank, const int64_t *shape, char *text, size_t room) {
    size_t n = (size_t)snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (", types[type].descr);
    for (int32_t d = 0; d < rank; d++) {
        n += (size_t)snprintf(text + n, room - n, "%" PRId64 "%s", shape[d], rank == 1 ? "," : d + 1 < rank ? ", " : "");
    }
    n += (size_t)snprintf(text + n, room - n, "), }");
    while ((10 + n + 1) % 64 != 0) {
        text[n++] = ' ';
    }
    text[n++] = '\n';
    return n;
}

bool fm_npy_write_data(const fm_npy *array, FILE *file) {
    const size_t bytes = (size_t)array->count * types[array->type].bytes;
    return fwrite(array->data, 1, bytes, file) == bytes;
}

bool fm_npy_save_from(const char *path, const fm_npy *array, fm_npy_elements elements) {
    char text[384]; /* 8 extents of at most 21 characters and the padding */
    const size_t length = format_header(array->type, array->rank, array->shape, text, sizeof text - 64);
    const unsigned char prelude[4] = {1, 0, (unsigned char)(length & 0xff), (unsigned char)(length >> 8)};
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return fm_cli_fail("%s: %s", path, strerror(errno));
    }
    const bool ok = fwrite(magic, 1, sizeof magic, file) == sizeof magic &&
                    fwrite(prelude, 1, sizeof prelude, file) == sizeof prelude && fwrite(text, 1, length, file) == length &&
                    elements(array, file);
    return fm_stream_finish(file, path, ok);
}

bool fm_npy_save(const char *path, fm_npy_type type, int32_t rank, const int64_t *shape, const void *data) {
    fm_npy array = {.type = type, .rank = rank, .count = 1, .data = (void *)data};
    for (int32_t d = 0; d < rank; d++) {
        array.shape[d] = shape[d];
        array.count *= shape[d];
    }
    return fm_npy_save_from(path, &array, fm_npy_write_data);
}

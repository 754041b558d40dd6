#include "safetensors.h"

#include "stream.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char metadata_name[] = "__metadata__";

static const char *const dtypes[FM_NPY_TYPES] = {
    [FM_NPY_F64] = "F64", [FM_NPY_F32] = "F32", [FM_NPY_F16] = "F16", [FM_NPY_BF16] = "BF16",
    [FM_NPY_I64] = "I64", [FM_NPY_I32] = "I32", [FM_NPY_U8] = "U8",   [FM_NPY_BOOL] = "BOOL",
};

static int64_t bytes_of(const fm_npy *array) { return array->count * (int64_t)fm_npy_type_size(array->type); }

/* ---- one entry of the header --------------------------------------------------------------------------------------- */

/* What is read: the file, the tensor, and where its bytes lie. */
typedef struct entry {
    const char *file;
    fm_safetensor tensor;
    int64_t begin, end;
} entry;

static bool find_dtype(entry *e, const char *text) {
    for (int t = 0; text != NULL && t < FM_NPY_TYPES; t++) {
        if (strcmp(text, dtypes[t]) == 0) {
            e->tensor.array.type = (fm_npy_type)t;
            return true;
        }
    }
    return fm_cli_fail("%s: %.80s: dtype %.40s is not read; F64, F32, F16, BF16, I64, I32, U8 and BOOL are", e->file,
                       e->tensor.name, text != NULL ? text : "(no text)");
}

/* Elements, and that their bytes stay below 2^63. An extent of 0 does not hide an overflow of the others. */
static bool take_shape(entry *e, const json_t *shape) {
    fm_npy *array = &e->tensor.array;
    const size_t rank = json_array_size(shape);
    if (!json_is_array(shape) || rank > FM_NPY_MAX_RANK) {
        return fm_cli_fail("%s: %.80s: shape is not an array of at most %d whole numbers", e->file, e->tensor.name,
                           FM_NPY_MAX_RANK);
    }
    int64_t left = INT64_MAX / (int64_t)fm_npy_type_size(array->type);
    array->rank = (int32_t)rank;
    array->count = 1;
    for (size_t d = 0; d < rank; d++) {
        const json_t *extent = json_array_get(shape, d);
        const int64_t value = json_integer_value(extent);
        if (!json_is_integer(extent) || value < 0) {
            return fm_cli_fail("%s: %.80s: extent %zu of shape is not a whole number from 0", e->file, e->tensor.name, d);
        }
        if (value > left) {
            return fm_cli_fail("%s: %.80s: shape is past 2^63 bytes", e->file, e->tensor.name);
        }
        left /= value > 0 ? value : 1;
        array->shape[d] = value;
        array->count *= value;
    }
    return true;
}

static bool take_offsets(entry *e, const json_t *offsets) {
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        return fm_cli_fail("%s: %.80s: data_offsets are not two whole numbers", e->file, e->tensor.name);
    }
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    const long long first = e->begin, last = e->end, needed = bytes_of(&e->tensor.array);
    if (first < 0 || first > last) {
        return fm_cli_fail("%s: %.80s: data_offsets %lld, %lld are negative or reversed", e->file, e->tensor.name, first, last);
    }
    return last - first == needed || fm_cli_fail("%s: %.80s: data_offsets %lld, %lld hold %lld bytes; the shape needs %lld",
                                                 e->file, e->tensor.name, first, last, last - first, needed);
}

static bool take_entry(entry *e, const char *name, const json_t *value) {
    const json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape");
    const json_t *offsets = json_object_get(value, "data_offsets");
    e->tensor.name = strdup(name);
    if (e->tensor.name == NULL) {
        return fm_cli_fail("%s: out of memory", e->file);
    }
    if (json_object_size(value) != 3 || dtype == NULL || shape == NULL || offsets == NULL) {
        return fm_cli_fail("%s: %.80s: is not an object of dtype, shape and data_offsets", e->file, name);
    }
    return find_dtype(e, json_string_value(dtype)) && take_shape(e, shape) && take_offsets(e, offsets);
}

static bool check_metadata(const char *file, json_t *metadata) {
    const char *key = NULL;
    json_t *value = NULL;
    bool ok = json_is_object(metadata);
    json_object_foreach(metadata, key, value) { ok = ok && json_is_string(value); }
    return ok || fm_cli_fail("%s: __metadata__ is not an object of texts", file);
}

/* ---- the whole header ---------------------------------------------------------------------------------------------- */

typedef struct header {
    const char *file;
    entry *entries;
    int64_t count;
} header;

static void free_header(header *h) {
    for (int64_t i = 0; i < h->count; i++) {
        free(h->entries[i].tensor.name);
        fm_npy_free(&h->entries[i].tensor.array);
    }
    free(h->entries);
    *h = (header){0};
}

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->end > y->end) - (x->end < y->end);
}

/* Sorts the entries; each must begin where the one before it ends. */
static bool check_order(header *h) {
    int64_t end = 0;
    qsort(h->entries, (size_t)h->count, sizeof *h->entries, by_offset);
    for (int64_t i = 0; i < h->count; i++) {
        const entry *e = &h->entries[i];
        if (e->begin != end) {
            return fm_cli_fail("%s: %.80s: data_offsets begin at %lld, %s %lld", h->file, e->tensor.name, (long long)e->begin,
                               e->begin < end ? "inside another tensor that ends at" : "which leaves a hole from",
                               (long long)end);
        }
        end = e->end;
    }
    return true;
}

static bool take_object(header *h, json_t *object) {
    const char *key = NULL;
    json_t *value = NULL;
    h->entries = fm_cli_allocate((int64_t)json_object_size(object), sizeof *h->entries);
    if (h->entries == NULL) {
        return false;
    }
    json_object_foreach(object, key, value) {
        if (strcmp(key, metadata_name) == 0) {
            if (!check_metadata(h->file, value)) {
                return false;
            }
            continue;
        }
        entry *e = &h->entries[h->count++];
        e->file = h->file;
        if (!take_entry(e, key, value)) {
            return false;
        }
    }
    return check_order(h);
}

static bool parse_header(header *h, const char *text, size_t length) {
    json_error_t error;
    if (length == 0 || text[0] != '{') {
        return fm_cli_fail("%s: the header does not start with {", h->file);
    }
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL) {
        return fm_cli_fail("%s: the header is not JSON: %s", h->file, error.text);
    }
    const bool ok = take_object(h, object);
    json_decref(object);
    return ok;
}

static bool read_header(FILE *file, header *h) {
    unsigned char bytes[8];
    void *text = NULL;
    uint64_t length = 0;
    if (!fm_stream_read(file, h->file, "header length", bytes, sizeof bytes)) {
        return false;
    }
    for (int i = 7; i >= 0; i--) {
        length = length << 8 | bytes[i];
    }
    if (length > FM_SAFETENSORS_HEADER_LIMIT) {
        return fm_cli_fail("%s: a header of %llu bytes; at most %d are read", h->file, (unsigned long long)length,
                           FM_SAFETENSORS_HEADER_LIMIT);
    }
    const bool ok = fm_stream_read_new(file, h->file, "header", (size_t)length, &text) && parse_header(h, text, (size_t)length);
    free(text);
    return ok;
}

/* ---- file ---------------------------------------------------------------------------------------------------------- */

static bool read_data(FILE *file, header *h) {
    for (int64_t i = 0; i < h->count; i++) {
        entry *e = &h->entries[i];
        char part[96];
        snprintf(part, sizeof part, "tensor %.80s", e->tensor.name);
        if (!fm_stream_read_new(file, h->file, part, (size_t)(e->end - e->begin), &e->tensor.array.data)) {
            return false;
        }
    }
    return fgetc(file) == EOF || fm_cli_fail("%s: has data behind its last tensor", h->file);
}

bool fm_safetensors_read(FILE *file, const char *name, fm_safetensors *out) {
    header h = {.file = name};
    fm_safetensors result = {0};
    bool ok = read_header(file, &h) && read_data(file, &h);
    if (ok) {
        result.tensors = fm_cli_allocate(h.count, sizeof *result.tensors);
        ok = result.tensors != NULL;
    }
    if (!ok) {
        free_header(&h);
        return false;
    }
    for (; result.count < h.count; result.count++) {
        result.tensors[result.count] = h.entries[result.count].tensor;
    }
    free(h.entries);
    *out = result;
    return true;
}

bool fm_safetensors_load(const char *path, fm_safetensors *out) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fm_cli_fail("%s: %s", path, strerror(errno));
    }
    const bool ok = fm_safetensors_read(file, path, out);
    fclose(file);
    return ok;
}

const fm_npy *fm_safetensors_find(const fm_safetensors *tensors, const char *name) {
    for (int64_t i = 0; i < tensors->count; i++) {
        if (strcmp(tensors->tensors[i].name, name) == 0) {
            return &tensors->tensors[i].array;
        }
    }
    return NULL;
}

void fm_safetensors_free(fm_safetensors *tensors) {
    for (int64_t i = 0; i < tensors->count; i++) {
        free(tensors->tensors[i].name);
        fm_npy_free(&tensors->tensors[i].array);
    }
    free(tensors->tensors);
    *tensors = (fm_safetensors){0};
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

enum { WIDEST = 8 };

/* Calls visit for each tensor in the order of the file: widest elements first. Stops where visit does. */
static bool in_file_order(const fm_safetensor *tensors, int64_t count, bool (*visit)(const fm_safetensor *tensor, void *state),
                          void *state) {
    for (size_t size = WIDEST; size > 0; size /= 2) {
        for (int64_t i = 0; i < count; i++) {
            if (fm_npy_type_size(tensors[i].array.type) == size && !visit(&tensors[i], state)) {
                return false;
            }
        }
    }
    return true;
}

typedef struct description {
    json_t *object;
    int64_t end;
} description;

static bool describe(const fm_safetensor *tensor, void *state) {
    description *d = state;
    const int64_t begin = d->end;
    json_t *shape = json_array();
    for (int32_t i = 0; i < tensor->array.rank; i++) {
        json_array_append_new(shape, json_integer(tensor->array.shape[i]));
    }
    d->end += bytes_of(&tensor->array);
    const bool is_new = strcmp(tensor->name, metadata_name) != 0 && json_object_get(d->object, tensor->name) == NULL;
    json_t *fields = json_pack("{ss so s[I I]}", "dtype", dtypes[tensor->array.type], "shape", shape, "data_offsets",
                               (json_int_t)begin, (json_int_t)d->end);
    return json_object_set_new(d->object, tensor->name, fields) == 0 && is_new;
}

/* The header text, padded with blanks to a multiple of 8 bytes; the caller frees it. */
static char *make_header(const fm_safetensor *tensors, int64_t count, size_t *length) {
    description d = {.object = json_object()};
    char *text = in_file_order(tensors, count, describe, &d) ? json_dumps(d.object, JSON_COMPACT) : NULL;
    json_decref(d.object);
    if (text == NULL) {
        return NULL;
    }
    *length = strlen(text);
    char *padded = realloc(text, *length + WIDEST);
    if (padded == NULL) {
        free(text);
        return NULL;
    }
    while (*length % WIDEST != 0) {
        padded[(*length)++] = ' ';
    }
    return padded;
}

typedef struct target {
    FILE *file;
    fm_npy_elements elements;
} target;

static bool write_tensor(const fm_safetensor *tensor, void *state) {
    const target *t = state;
    return t->elements(&tensor->array, t->file);
}

static bool write_header(FILE *file, const char *text, size_t length) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(length >> (8 * i));
    }
    return fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes && fwrite(text, 1, length, file) == length;
}

bool fm_safetensors_save_from(const char *path, const fm_safetensor *tensors, int64_t count, fm_npy_elements elements) {
    size_t length = 0;
    char *text = make_header(tensors, count, &length);
    if (text == NULL) {
        return fm_cli_fail("%s: the names of the tensors are not UTF-8 or not different", path);
    }
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        free(text);
        return fm_cli_fail("%s: %s", path, strerror(errno));
    }
    target t = {file, elements};
    const bool ok = write_header(file, text, length) && in_file_order(tensors, count, write_tensor, &t);
    const bool is_saved = fm_stream_finish(file, path, ok);
    free(text);
    return is_saved;
}

bool fm_safetensors_save(const char *path, const fm_safetensor *tensors, int64_t count) {
    return fm_safetensors_save_from(path, tensors, count, fm_npy_write_data);
}

bool fm_safetensors_named(const char *path) {
    static const char ending[] = ".safetensors";
    const size_t length = strlen(path);
    return length >= sizeof ending && strcmp(path + length - (sizeof ending - 1), ending) == 0;
}

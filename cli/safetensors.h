/* Tensors in .safetensors files, held as fm_npy. https://huggingface.co/docs/safetensors
 *
 *   8 bytes            n, little-endian
 *   n bytes            a JSON object: "NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...; blanks
 *   the other bytes    the elements, little-endian, C order; data_offsets count from here
 */
#ifndef FM_CLI_SAFETENSORS_H
#define FM_CLI_SAFETENSORS_H

#include "npy.h"

enum { FM_SAFETENSORS_HEADER_LIMIT = 1 << 24 };

typedef struct fm_safetensor {
    char *name;
    fm_npy array;
} fm_safetensor;

/* In the order of their bytes. */
typedef struct fm_safetensors {
    int64_t count;
    fm_safetensor *tensors;
} fm_safetensors;

/* Refused, with a message that starts with name: a header longer than the limit or past the end, not a JSON object, names
 * twice; tensors that are not dtype, shape and data_offsets, of dtypes other than F64, F32, F16, BF16, I64, I32, U8 and BOOL,
 * of more than FM_NPY_MAX_RANK dimensions or past 2^63 bytes; offsets that are negative, reversed, out of the file, unlike
 * the shape's bytes, or that overlap or leave holes; bytes behind the last tensor; a __metadata__ that maps anything but names
 * to text (it is not kept). No more memory is taken than in proportion to the bytes that the file has. */
bool fm_safetensors_read(FILE *file, const char *name, fm_safetensors *out);
bool fm_safetensors_load(const char *path, fm_safetensors *out);

/* Does the path end in .safetensors, with something before it? */
bool fm_safetensors_named(const char *path);

/* NULL if there is none. */
const fm_npy *fm_safetensors_find(const fm_safetensors *tensors, const char *name);

/* The data starts at a multiple of 8 and elements stand at multiples of their size: wide ones come first. Names are UTF-8,
 * different from each other and from __metadata__. A file that cannot be written whole is removed. */
bool fm_safetensors_save(const char *path, const fm_safetensor *tensors, int64_t count);

/* The same with elements that need not be in memory, tensor after tensor as they stand in the file. */
bool fm_safetensors_save_from(const char *path, const fm_safetensor *tensors, int64_t count, fm_npy_elements elements);

void fm_safetensors_free(fm_safetensors *tensors);

#endif

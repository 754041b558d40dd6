/* Arrays in NumPy's .npy files: format versions 1, 2 and 3, little-endian, C order.
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef FM_CLI_NPY_H
#define FM_CLI_NPY_H

#include "error.h"

#include <stdio.h>

enum { FM_NPY_MAX_RANK = 8 };

typedef enum fm_npy_type {
    FM_NPY_I64,  /* <i8 */
    FM_NPY_I32,  /* <i4 */
    FM_NPY_F64,  /* <f8 */
    FM_NPY_F32,  /* <f4 */
    FM_NPY_F16,  /* <f2 */
    FM_NPY_BF16, /* <V2 or |V2: NumPy has no name for bf16; ml_dtypes writes it so */
    FM_NPY_U8,   /* |u1 */
    FM_NPY_BOOL, /* |b1 */
    FM_NPY_TYPES
} fm_npy_type;

typedef struct fm_npy {
    fm_npy_type type;
    int32_t rank;
    int64_t shape[FM_NPY_MAX_RANK];
    int64_t count; /* elements */
    void *data;    /* free with fm_npy_free */
} fm_npy;

/* Bytes of an element, and its name for people ("int32"). */
size_t fm_npy_type_size(fm_npy_type type);
const char *fm_npy_type_name(fm_npy_type type);

/* One array and nothing behind it. Refused, with a message that starts with name: another magic or version, a header longer
 * than 64 KiB or past the end, anything in it but descr, fortran_order and shape once each, Fortran order of two or more
 * dimensions longer than 1, big-endian or other types, more than FM_NPY_MAX_RANK dimensions, sizes past 2^63 bytes, missing
 * data, data left over. No more memory is taken than the file has bytes, within a factor of two. */
bool fm_npy_read(FILE *file, const char *name, fm_npy *out);
bool fm_npy_load(const char *path, fm_npy *out);

/* Version 1, with the data aligned to 64 bytes. A file that cannot be written whole is removed. */
bool fm_npy_save(const char *path, fm_npy_type type, int32_t rank, const int64_t *shape, const void *data);

/* The same from what is not in memory as a whole: `elements` writes all elements of the array, whose data is its own. Where it
 * returns false, errno says why. */
typedef bool (*fm_npy_elements)(const fm_npy *array, FILE *file);
bool fm_npy_save_from(const char *path, const fm_npy *array, fm_npy_elements elements);

/* The elements of an array that is in memory. */
bool fm_npy_write_data(const fm_npy *array, FILE *file);

void fm_npy_free(fm_npy *array);

#endif

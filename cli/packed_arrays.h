/* The arrays of a packing, in files to lie beside a tokenised data set. */
#ifndef FM_CLI_PACKED_ARRAYS_H
#define FM_CLI_PACKED_ARRAYS_H

#include "npy.h"
#include "packed_set.h"

enum { FM_PACKED_ARRAYS = 6 };

/* "pieces", "document_ids", ...: names in a .safetensors file and at the end of .npy files. */
extern const char *const fm_packed_array_names[FM_PACKED_ARRAYS];

/* Type and shape of one array; its data stays NULL. */
fm_npy fm_packed_array(const fm_packed_set *set, int array);

/* Into one file if output ends in .safetensors, else into OUTPUT_NAME.npy, or OUTPUTNAME.npy if it ends in a slash. All of
 * them appear, or none. Sequence after sequence: the arrays are never in memory as a whole. */
bool fm_packed_arrays_save(const fm_packed_set *set, const char *output);

/* The file that an array is in. */
void fm_packed_array_path(const char *output, int array, char *path, size_t room);

#endif

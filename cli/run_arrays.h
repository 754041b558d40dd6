/* The arrays that `run` reads and writes: each in a .npy file, or all in one .safetensors file. */
#ifndef FM_CLI_RUN_ARRAYS_H
#define FM_CLI_RUN_ARRAYS_H

#include "npy.h"
#include "options.h"

/* "query", "grad_output", ...: names in .safetensors files, and with - for _ of the options. */
extern const char *const fm_run_array_names[FM_RUN_ARRAYS];

/* What to call an array in a message: its file, or the .safetensors file and its name. */
const char *fm_run_array_text(const fm_options *options, fm_run_array array, char text[256]);

/* True if a result has to be computed: its file is named; with --tensors all that the inputs allow. */
bool fm_run_array_wanted(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS], fm_run_array result);

/* Fills in the inputs that are there; data stays NULL in the others. Refused: options that do not go together, inputs without
 * query, key and value, gradients without grad_output or without a use, unknown tensors, and what the readers refuse. */
bool fm_run_arrays_load(const fm_options *options, fm_npy arrays[FM_RUN_ARRAYS]);

/* Writes the results whose data is not NULL: all files, or none. */
bool fm_run_arrays_save(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS]);

void fm_run_arrays_free(fm_npy arrays[FM_RUN_ARRAYS]);

#endif

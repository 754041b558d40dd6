/* Options of all commands: one table, from which parsing and --help come. */
#ifndef FM_CLI_OPTIONS_H
#define FM_CLI_OPTIONS_H

#include "mask_spec.h"

typedef enum fm_command_bit { FM_SHOW = 1, FM_CHECK = 2, FM_DEMO = 4, FM_RUN = 8, FM_BENCH = 16, FM_PACK = 32 } fm_command_bit;

/* Arrays of `run`: inputs, then results. */
typedef enum fm_run_array {
    FM_RUN_QUERY,
    FM_RUN_KEY,
    FM_RUN_VALUE,
    FM_RUN_SINKS,
    FM_RUN_GRAD_OUTPUT,
    FM_RUN_GRAD_LSE,
    FM_RUN_INPUTS,
    FM_RUN_OUTPUT = FM_RUN_INPUTS,
    FM_RUN_LSE,
    FM_RUN_GRAD_QUERY,
    FM_RUN_GRAD_KEY,
    FM_RUN_GRAD_VALUE,
    FM_RUN_GRAD_SINKS,
    FM_RUN_ARRAYS
} fm_run_array;

/* 0 or NULL: not given, except where said. */
typedef struct fm_options {
    bool help;
    const char *mask, *vectors;
    int64_t causal; /* -1: not given */
    int64_t seq, rows, heads, heads_kv, head_dim, head_dim_v;
    fm_dtype dtype; /* FM_F32 if not given */
    fm_backend_id backend;
    uint64_t seed;
    int32_t tile_m, tile_n;
    int64_t threads;
    int64_t width; /* of the picture; -1: not given */
    bool json;
    const char *data;
    int64_t sequences;                          /* -1: not given */
    const char *tensors, *array[FM_RUN_ARRAYS]; /* files */
    double scale;                               /* NaN: not given */
    double softcap;
    const char *png, *svg;
    int64_t runs, samples;
    const char *file, *output; /* of pack */
    int64_t capacity;
    int kind; /* fm_record_kind; -1: not given */
    int policy, overlong;
    bool plan_only, fallback;
} fm_options;

/* Arguments of one command; argv[0] is its name. Refused: unknown options and those of other commands, options given twice,
 * missing values, numbers out of range, arguments that are no options. */
bool fm_options_parse(int argc, char **argv, fm_command_bit command, fm_options *out);

/* Lines of --help for a command's options. */
void fm_options_print(FILE *to, fm_command_bit command);

/* The mask that --mask or --vectors describe; exactly one of them must be given. The caller frees it. */
bool fm_options_mask(const fm_options *options, fm_mask **out);

/* What was given, for the first line of a report. */
const char *fm_options_mask_name(const fm_options *options);

const char *fm_dtype_text(fm_dtype dtype);

#endif

#include "run_arrays.h"

#include "output_files.h"
#include "safetensors.h"

#include <string.h>

const char *const fm_run_array_names[FM_RUN_ARRAYS] = {
    "query",  "key", "value",      "sinks",    "grad_output", "grad_lse", /* inputs */
    "output", "lse", "grad_query", "grad_key", "grad_value",  "grad_sinks",
};

void fm_run_arrays_free(fm_npy arrays[FM_RUN_ARRAYS]) {
    for (int i = 0; i < FM_RUN_ARRAYS; i++) {
        fm_npy_free(&arrays[i]);
    }
}

const char *fm_run_array_text(const fm_options *options, fm_run_array array, char text[256]) {
    const char *path = options->tensors != NULL ? options->tensors : options->array[array];
    snprintf(text, 256, options->tensors != NULL ? "%.150s: %s" : "%.200s", path, fm_run_array_names[array]);
    return text;
}

bool fm_run_array_wanted(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS], fm_run_array result) {
    if (options->tensors == NULL || result == FM_RUN_OUTPUT || result == FM_RUN_LSE) {
        return options->tensors != NULL || options->array[result] != NULL;
    }
    return arrays[FM_RUN_GRAD_OUTPUT].data != NULL && (result != FM_RUN_GRAD_SINKS || arrays[FM_RUN_SINKS].data != NULL);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

/* "--grad-query" */
static void option_name(fm_run_array array, char text[32]) {
    snprintf(text, 32, "--%s", fm_run_array_names[array]);
    for (char *dash = text; (dash = strchr(dash, '_')) != NULL;) {
        *dash = '-';
    }
}

static bool load_files(const fm_options *options, fm_npy arrays[FM_RUN_ARRAYS]) {
    for (int i = 0; i < FM_RUN_INPUTS; i++) {
        if (options->array[i] != NULL && !fm_npy_load(options->array[i], &arrays[i])) {
            return false;
        }
    }
    return true;
}

static bool take_tensor(const fm_options *options, fm_safetensor *tensor, fm_npy arrays[FM_RUN_ARRAYS]) {
    for (int i = 0; i < FM_RUN_INPUTS; i++) {
        if (strcmp(tensor->name, fm_run_array_names[i]) == 0) {
            arrays[i] = tensor->array;
            tensor->array = (fm_npy){0};
            return true;
        }
    }
    return fm_cli_fail("%s: tensor '%.80s' has no use; query, key, value, sinks, grad_output and grad_lse are read",
                       options->tensors, tensor->name);
}

static bool load_tensors(const fm_options *options, fm_npy arrays[FM_RUN_ARRAYS]) {
    fm_safetensors file = {0};
    for (int i = 0; i < FM_RUN_ARRAYS; i++) {
        char name[32];
        option_name((fm_run_array)i, name);
        if (i != FM_RUN_OUTPUT && options->array[i] != NULL) {
            return fm_cli_fail("%s: does not go with --tensors, which brings all arrays", name);
        }
    }
    bool ok = fm_safetensors_load(options->tensors, &file);
    for (int64_t i = 0; ok && i < file.count; i++) {
        ok = take_tensor(options, &file.tensors[i], arrays);
    }
    fm_safetensors_free(&file);
    return ok;
}

/* A file is not written under the name of the other format. */
static bool check_names(const fm_options *options) {
    char name[32];
    for (int i = FM_RUN_INPUTS; i < FM_RUN_ARRAYS; i++) {
        const char *path = options->array[i];
        option_name((fm_run_array)i, name);
        if (path != NULL && options->tensors == NULL && fm_safetensors_named(path)) {
            return fm_cli_fail("%s: '%.150s' needs --tensors; what comes from .npy files goes to .npy files", name, path);
        }
    }
    return true;
}

/* Of the arrays themselves only which ones there are. */
static bool check_presence(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS]) {
    char name[32];
    for (int i = FM_RUN_QUERY; i <= FM_RUN_VALUE; i++) {
        option_name((fm_run_array)i, name);
        if (arrays[i].data == NULL) {
            return options->tensors != NULL ? fm_cli_fail("%s: has no tensor '%s'", options->tensors, fm_run_array_names[i])
                                            : fm_cli_fail("%s FILE.npy is needed, or --tensors FILE.safetensors", name);
        }
    }
    if (options->array[FM_RUN_OUTPUT] == NULL) {
        return fm_cli_fail("--output FILE is needed");
    }
    bool has_result = false;
    for (int i = FM_RUN_GRAD_QUERY; i < FM_RUN_ARRAYS; i++) {
        const bool wanted = fm_run_array_wanted(options, arrays, (fm_run_array)i);
        has_result = has_result || wanted;
        option_name((fm_run_array)i, name);
        if (wanted && arrays[FM_RUN_GRAD_OUTPUT].data == NULL) {
            return fm_cli_fail("%s: needs --grad-output", name);
        }
        if (wanted && i == FM_RUN_GRAD_SINKS && arrays[FM_RUN_SINKS].data == NULL) {
            return fm_cli_fail("%s: needs --sinks", name);
        }
    }
    if (arrays[FM_RUN_GRAD_LSE].data != NULL && arrays[FM_RUN_GRAD_OUTPUT].data == NULL) {
        return fm_cli_fail("grad_lse is given without grad_output");
    }
    return arrays[FM_RUN_GRAD_OUTPUT].data == NULL || has_result ||
           fm_cli_fail("--grad-output: names no result; --grad-query, --grad-key, --grad-value or --grad-sinks is needed");
}

bool fm_run_arrays_load(const fm_options *options, fm_npy arrays[FM_RUN_ARRAYS]) {
    const bool ok = options->tensors != NULL ? load_tensors(options, arrays) : load_files(options, arrays);
    return ok && check_presence(options, arrays) && check_names(options);
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static bool save_files(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS], fm_output_files *files) {
    for (int i = FM_RUN_INPUTS; i < FM_RUN_ARRAYS; i++) {
        const fm_npy *a = &arrays[i];
        const char *temporary = NULL;
        if (a->data != NULL && (!fm_output_files_add(files, options->array[i], &temporary) ||
                                !fm_npy_save(temporary, a->type, a->rank, a->shape, a->data))) {
            return false;
        }
    }
    return true;
}

static bool save_tensors(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS], fm_output_files *files) {
    fm_safetensor tensors[FM_RUN_ARRAYS];
    char names[FM_RUN_ARRAYS][16];
    const char *temporary = NULL;
    int64_t count = 0;
    for (int i = FM_RUN_INPUTS; i < FM_RUN_ARRAYS; i++) {
        if (arrays[i].data != NULL) {
            snprintf(names[count], sizeof names[count], "%s", fm_run_array_names[i]);
            tensors[count] = (fm_safetensor){names[count], arrays[i]};
            count++;
        }
    }
    return fm_output_files_add(files, options->array[FM_RUN_OUTPUT], &temporary) &&
           fm_safetensors_save(temporary, tensors, count);
}

bool fm_run_arrays_save(const fm_options *options, const fm_npy arrays[FM_RUN_ARRAYS]) {
    fm_output_files files = {0};
    const bool ok = (options->tensors != NULL ? save_tensors(options, arrays, &files) : save_files(options, arrays, &files)) &&
                    fm_output_files_commit(&files);
    fm_output_files_free(&files);
    return ok;
}

#include "packed_arrays.h"

#include "output_files.h"
#include "safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES, DOCUMENT_IDS, POSITION_IDS, PREDICTED_BY, LABELS, ROW_INDICES };
enum { PIECE_COLUMNS = 4 };

const char *const fm_packed_array_names[FM_PACKED_ARRAYS] = {
    [PIECES] = "pieces", [DOCUMENT_IDS] = "document_ids",        [POSITION_IDS] = "position_ids", [PREDICTED_BY] = "predicted_by",
    [LABELS] = "labels", [ROW_INDICES] = "startend_row_indices",
};

fm_npy fm_packed_array(const fm_packed_set *set, int array) {
    const int64_t s = set->sequences, c = set->capacity;
    fm_npy result = {.type = array == LABELS ? FM_NPY_U8 : FM_NPY_I32, .rank = 2, .shape = {s, c}, .count = s * c};
    if (array == PIECES) {
        result = (fm_npy){.type = FM_NPY_I64, .rank = 2, .shape = {set->pieces, PIECE_COLUMNS}};
        result.count = set->pieces * PIECE_COLUMNS;
    } else if (array == ROW_INDICES) {
        result = (fm_npy){.type = FM_NPY_I32, .rank = 4, .shape = {s, 1, c, 1}, .count = s * c};
    }
    return result;
}

/* ---- one sequence of one array ------------------------------------------------------------------------------------- */

/* What the data of an array that is written stands for; `row` has room for one sequence. */
typedef struct source {
    const fm_packed_set *set;
    int array;
    void *row;
} source;

static fm_status fill_row_indices(const source *s, int64_t sequence) {
    fm_mask *mask = NULL;
    fm_status status = fm_packing_mask(s->set->packing, sequence, 1, true, &mask);
    if (status == FM_OK) {
        status = fm_mask_to_startend_row_indices(mask, 1, true, s->row, s->set->capacity);
    }
    fm_mask_free(mask);
    return status;
}

static fm_status fill_row(const source *s, int64_t sequence) {
    fm_packed_arrays arrays = FM_PACKED_ARRAYS_INIT;
    switch (s->array) {
    case DOCUMENT_IDS: arrays.document_ids = s->row; break;
    case POSITION_IDS: arrays.position_ids = s->row; break;
    case PREDICTED_BY: arrays.predicted_by = s->row; break;
    case LABELS: arrays.labels = s->row; break;
    default: return fill_row_indices(s, sequence);
    }
    return fm_packing_arrays(s->set->packing, sequence, &arrays);
}

static bool write_pieces(const source *s, int64_t sequence, FILE *file) {
    const fm_piece *pieces = NULL;
    int64_t count = 0;
    bool ok = fm_packed_set_pieces(s->set, sequence, &pieces, &count);
    for (int64_t k = 0; ok && k < count; k++) {
        const int64_t columns[PIECE_COLUMNS] = {sequence, pieces[k].document, pieces[k].start, pieces[k].length};
        ok = fwrite(columns, sizeof *columns, PIECE_COLUMNS, file) == PIECE_COLUMNS;
    }
    return ok;
}

/* Of all that can fail here but writing, memory is the one that is not a mistake of this program. */
static bool write_row(const source *s, int64_t sequence, size_t element_bytes, FILE *file) {
    const size_t tokens = (size_t)s->set->capacity;
    if (fill_row(s, sequence) != FM_OK) {
        errno = ENOMEM;
        return false;
    }
    return fwrite(s->row, element_bytes, tokens, file) == tokens;
}

static bool write_elements(const fm_npy *array, FILE *file) {
    const source *s = array->data;
    bool ok = true;
    for (int64_t q = 0; ok && q < s->set->sequences; q++) {
        ok = s->array == PIECES ? write_pieces(s, q, file) : write_row(s, q, fm_npy_type_size(array->type), file);
    }
    return ok;
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

void fm_packed_array_path(const char *output, int array, char *path, size_t room) {
    if (fm_safetensors_named(output)) {
        snprintf(path, room, "%s", output);
    } else {
        const char *separator = output[strlen(output) - 1] == '/' ? "" : "_";
        snprintf(path, room, "%s%s%s.npy", output, separator, fm_packed_array_names[array]);
    }
}

typedef struct packed_path {
    char text[4096];
} packed_path;

static bool save_files(const fm_safetensor *tensors, const char *output, packed_path *paths, fm_output_files *files) {
    for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
        const char *temporary = NULL;
        fm_packed_array_path(output, i, paths[i].text, sizeof paths[i].text);
        if (!fm_output_files_add(files, paths[i].text, &temporary) ||
            !fm_npy_save_from(temporary, &tensors[i].array, write_elements)) {
            return false;
        }
    }
    return true;
}

static bool save_tensors(const fm_safetensor *tensors, const char *output, fm_output_files *files) {
    const char *temporary = NULL;
    return fm_output_files_add(files, output, &temporary) &&
           fm_safetensors_save_from(temporary, tensors, FM_PACKED_ARRAYS, write_elements);
}

static bool save(const fm_packed_set *set, const char *output, void *row, packed_path *paths) {
    source sources[FM_PACKED_ARRAYS];
    fm_safetensor tensors[FM_PACKED_ARRAYS];
    fm_output_files files = {0};
    for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
        sources[i] = (source){set, i, row};
        tensors[i] = (fm_safetensor){(char *)fm_packed_array_names[i], fm_packed_array(set, i)};
        tensors[i].array.data = &sources[i];
    }
    const bool ok =
        (fm_safetensors_named(output) ? save_tensors(tensors, output, &files) : save_files(tensors, output, paths, &files)) &&
        fm_output_files_commit(&files);
    fm_output_files_free(&files);
    return ok;
}

bool fm_packed_arrays_save(const fm_packed_set *set, const char *output) {
    void *row = fm_cli_allocate(set->capacity, sizeof(int32_t));
    packed_path *paths = fm_cli_allocate(FM_PACKED_ARRAYS, sizeof *paths);
    const bool ok = row != NULL && paths != NULL && save(set, output, row, paths);
    free(row);
    free(paths);
    return ok;
}

/* Files that appear all together or not at all: written under temporary names in their own directories, then renamed. */
#ifndef FM_CLI_OUTPUT_FILES_H
#define FM_CLI_OUTPUT_FILES_H

#include "error.h"

enum { FM_OUTPUT_FILES_MAX = 8 };

/* Start from {0}; end with fm_output_files_free, which removes what was not committed. */
typedef struct fm_output_files {
    int count;
    const char *path[FM_OUTPUT_FILES_MAX]; /* the caller's */
    char *temporary[FM_OUTPUT_FILES_MAX];
} fm_output_files;

/* Makes an empty file beside `path` and yields its name, which stays valid until fm_output_files_free. Refused: a path that
 * was added before, one that is there but is no plain file (a directory, a device), a directory that cannot be written. */
bool fm_output_files_add(fm_output_files *files, const char *path, const char **temporary);

/* Gives every file its name; earlier files of these names are replaced. If one cannot be renamed, none is left. */
bool fm_output_files_commit(fm_output_files *files);

void fm_output_files_free(fm_output_files *files);

#endif

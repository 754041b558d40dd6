/* Binary files: reading those whose headers may lie, and ending those that are written. */
#ifndef FM_CLI_STREAM_H
#define FM_CLI_STREAM_H

#include "error.h"

#include <stdio.h>

/* Exactly `bytes` bytes. The messages start with `name`; `part` is what the file ends inside of when it is too short. */
bool fm_stream_read(FILE *file, const char *name, const char *part, void *to, size_t bytes);

/* The same into new memory for the caller to free. It grows with what has been read, within a factor of two and 1 MiB, so
 * that a header that promises terabytes costs nothing. bytes 0 gives memory too. */
bool fm_stream_read_new(FILE *file, const char *name, const char *part, size_t bytes, void **out);

/* Closes a file that was written; is_whole: so far without an error, else errno says which. Where that or closing failed, the file
 * is removed and the message says why. */
bool fm_stream_finish(FILE *file, const char *path, bool is_whole);

#endif

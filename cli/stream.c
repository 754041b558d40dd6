#include "stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { READ_STEP = 1 << 20 };

bool fm_stream_read(FILE *file, const char *name, const char *part, void *to, size_t bytes) {
    if (fread(to, 1, bytes, file) == bytes) {
        return true;
    }
    if (ferror(file)) {
        return fm_cli_fail("%s: %s", name, strerror(errno));
    }
    return fm_cli_fail("%s: ends inside its %s", name, part);
}

bool fm_stream_read_new(FILE *file, const char *name, const char *part, size_t bytes, void **out) {
    char *data = NULL;
    size_t room = 0, used = 0;
    do {
        const size_t step = used < READ_STEP ? READ_STEP : used;
        room = bytes - used < step ? bytes : used + step;
        char *larger = realloc(data, room > 0 ? room : 1);
        if (larger == NULL) {
            free(data);
            return fm_cli_fail("%s: out of memory: %zu bytes", name, room);
        }
        data = larger;
        if (!fm_stream_read(file, name, part, data + used, room - used)) {
            free(data);
            return false;
        }
        used = room;
    } while (used < bytes);
    *out = data;
    return true;
}

bool fm_stream_finish(FILE *file, const char *path, bool is_whole) {
    int reason = errno;
    if (fclose(file) != 0 && is_whole) {
        reason = errno;
        is_whole = false;
    }
    if (!is_whole) {
        remove(path);
        fm_cli_fail("%s: cannot be written: %s", path, strerror(reason));
    }
    return is_whole;
}

#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char message[1024];

bool fm_cli_fail(const char *format, ...) {
    char text[sizeof message]; /* an argument may be the old message */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t i = 0;
    for (; text[i] != '\0'; i++) {
        const unsigned char c = (unsigned char)text[i];
        message[i] = (c < 32 || c == 127) ? '?' : text[i];
    }
    message[i] = '\0';
    return false;
}

bool fm_cli_ok(fm_status status, const char *subject) {
    if (status == FM_OK) {
        return true;
    }
    const char *reason = fm_error_message();
    return fm_cli_fail("%s: %s", subject, reason[0] != '\0' ? reason : fm_status_name(status));
}

const char *fm_cli_message(void) { return message; }

void *fm_cli_allocate(int64_t count, size_t element_bytes) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, element_bytes);
    if (memory == NULL) {
        fm_cli_fail("out of memory: %lld elements of %zu bytes", (long long)count, element_bytes);
    }
    return memory;
}

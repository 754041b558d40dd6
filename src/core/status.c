#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

enum { MESSAGE_BYTES = 512 };
static _Thread_local char message[MESSAGE_BYTES];

int fm_version(void) { return FM_VERSION; }

const char *fm_status_name(fm_status status) {
    switch (status) {
    case FM_OK: return "FM_OK";
    case FM_ERROR_ARGUMENT: return "FM_ERROR_ARGUMENT";
    case FM_ERROR_SHAPE: return "FM_ERROR_SHAPE";
    case FM_ERROR_DTYPE: return "FM_ERROR_DTYPE";
    case FM_ERROR_DEVICE: return "FM_ERROR_DEVICE";
    case FM_ERROR_UNSUPPORTED: return "FM_ERROR_UNSUPPORTED";
    case FM_ERROR_CANNOT_EXPRESS: return "FM_ERROR_CANNOT_EXPRESS";
    case FM_ERROR_LIMIT: return "FM_ERROR_LIMIT";
    case FM_ERROR_OUT_OF_MEMORY: return "FM_ERROR_OUT_OF_MEMORY";
    case FM_ERROR_WORKSPACE: return "FM_ERROR_WORKSPACE";
    case FM_ERROR_CUDA: return "FM_ERROR_CUDA";
    case FM_ERROR_IO: return "FM_ERROR_IO";
    case FM_ERROR_INTERNAL: return "FM_ERROR_INTERNAL";
    }
    return "unknown status";
}

const char *fm_error_message(void) { return message; }

void fm_clear_error(void) { message[0] = '\0'; }

fm_status fm_fail(fm_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

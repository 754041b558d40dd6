#include "support/expect.h"

#include "support/cmocka_all.h"

#include <string.h>

void succeed(fm_status status) {
    if (status != FM_OK) {
        fail_msg("%s: %s", fm_status_name(status), fm_error_message());
    }
}

void refuse(fm_status status, fm_status expected, const char *words) {
    if (status != expected || strstr(fm_error_message(), words) == NULL) {
        fail_msg("%s: %s; expected %s with \"%s\"", fm_status_name(status), fm_error_message(), fm_status_name(expected), words);
    }
}

#include "json_out.h"

bool fm_json_print(json_t *report) {
    if (report == NULL) {
        return fm_cli_fail("--json: the name of the mask is not valid UTF-8");
    }
    json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)); /* main looks at stdout's error flag */
    printf("\n");
    json_decref(report);
    return true;
}

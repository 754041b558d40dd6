/* Reports as JSON on standard output. */
#ifndef FM_CLI_JSON_OUT_H
#define FM_CLI_JSON_OUT_H

#include "error.h"

#include <jansson.h>

/* Prints and releases a report. False, with nothing printed, if it is NULL: a text in it was not UTF-8. */
bool fm_json_print(json_t *report);

#endif

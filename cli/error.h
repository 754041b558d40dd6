/* Errors of the command line: functions return false after fm_cli_fail, and main prints the one line. */
#ifndef FM_CLI_ERROR_H
#define FM_CLI_ERROR_H

#include <flashmask/flashmask.h>

/* Exit status of every command. */
typedef enum fm_exit { FM_EXIT_OK = 0, FM_EXIT_DIFFERS = 1, FM_EXIT_BAD = 2 } fm_exit;

/* Stores the message (control characters become '?', cut at its buffer's length) and returns false. */
bool fm_cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True for FM_OK; otherwise stores "subject: the library's message" and returns false. */
bool fm_cli_ok(fm_status status, const char *subject);

/* The message of the last fm_cli_fail; empty before the first. */
const char *fm_cli_message(void);

/* malloc of count elements, zeroed, or NULL and a message. count 0 gives one element. */
void *fm_cli_allocate(int64_t count, size_t element_bytes);

#endif

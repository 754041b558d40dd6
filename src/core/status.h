/* Errors: how every function of the library reports them. */
#ifndef FM_CORE_STATUS_H
#define FM_CORE_STATUS_H

#include <flashmask/flashmask.h>

/* Stores the calling thread's message (cut at its buffer's length) and returns status. */
fm_status fm_fail(fm_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Empties the calling thread's message: first line of every public function that can fail. */
void fm_clear_error(void);

/* Returns `status` itself, not what fm_fail does: an analyser then sees that it is not FM_OK. */
#define FM_CHECK(condition, status, ...)    \
    do {                                    \
        if (!(condition)) {                 \
            fm_fail((status), __VA_ARGS__); \
            return (status);                \
        }                                   \
    } while (0)

#define FM_TRY(call)                      \
    do {                                  \
        const fm_status status_ = (call); \
        if (status_ != FM_OK) {           \
            return status_;               \
        }                                 \
    } while (0)

/* The same where resources are owned: sets `status` and jumps to `done`. */
#define FM_TRY_DONE(call)      \
    do {                       \
        status = (call);       \
        if (status != FM_OK) { \
            goto done;         \
        }                      \
    } while (0)

#define FM_REQUIRE(pointer) FM_CHECK((pointer) != NULL, FM_ERROR_ARGUMENT, "%s: is NULL", #pointer)

#endif

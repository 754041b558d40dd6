/* Allocations that fail on request: for programs whose linker sends calls of calloc and realloc here (--wrap), one file each. */
#ifndef FM_TESTS_FAILING_ALLOCATION_H
#define FM_TESTS_FAILING_ALLOCATION_H

#include <flashmask/flashmask.h>

#include "support/cmocka_all.h"

#include <string.h>

void *real_calloc(size_t count, size_t bytes) __asm__("__real_calloc");
void *real_realloc(void *old, size_t bytes) __asm__("__real_realloc");
void *failing_calloc(size_t count, size_t bytes) __asm__("__wrap_calloc");
void *failing_realloc(void *old, size_t bytes) __asm__("__wrap_realloc");

static int64_t allowed = INT64_MAX; /* allocations until the one that fails */

static size_t largest; /* bytes that one call has asked for */

static bool is_refused(size_t bytes) {
    largest = bytes > largest ? bytes : largest;
    return allowed-- == 0;
}

void *failing_calloc(size_t count, size_t bytes) { return is_refused(count * bytes) ? NULL : real_calloc(count, bytes); }
void *failing_realloc(void *old, size_t bytes) { return is_refused(bytes) ? NULL : real_realloc(old, bytes); }

/* Makes a mask out of whatever the context is. */
typedef fm_status (*mask_maker)(const void *context, fm_mask **out);

/* Lets each allocation of `make` fail in turn. A failed realloc that would only have given memory back is no error: the call may succeed then. */
static void fail_each_allocation(mask_maker make, const void *context) {
    fm_mask *expected = NULL;
    assert_int_equal(make(context, &expected), FM_OK);
    int64_t failures = 0;
    for (int64_t k = 0;; k++) {
        fm_mask *out = NULL;
        allowed = k;
        const fm_status status = make(context, &out);
        const bool all_allowed = allowed >= 0;
        allowed = INT64_MAX;
        if (status == FM_OK) {
            assert_true(fm_mask_equal(out, expected));
            fm_mask_free(out);
            if (all_allowed) {
                break;
            }
            continue;
        }
        assert_int_equal(status, FM_ERROR_OUT_OF_MEMORY);
        assert_non_null(strstr(fm_error_message(), "no memory for"));
        assert_null(out);
        failures++;
    }
    assert_true(failures >= 2);
    fm_mask_free(expected);
}

#endif

/* What a call of the library must say. */
#ifndef FM_TESTS_EXPECT_H
#define FM_TESTS_EXPECT_H

#include <flashmask/flashmask.h>

/* Fails the test with the library's message unless status is FM_OK. */
void succeed(fm_status status);

/* Fails the test unless status is `expected` and the message contains `words`. */
void refuse(fm_status status, fm_status expected, const char *words);

#endif

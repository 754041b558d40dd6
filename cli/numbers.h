/* Numbers in text: strict reading, and printing for people. */
#ifndef FM_CLI_NUMBERS_H
#define FM_CLI_NUMBERS_H

#include "error.h"

/* Largest length, row or column that a mask may have. */
#define FM_MAX_EXTENT INT32_MAX

/* All of text as a decimal whole number in [min, max]; `what` leads the message. */
bool fm_number_parse(const char *what, const char *text, int64_t min, int64_t max, int64_t *out);

/* All of text as a seed, 0 .. 2^64 - 1. */
bool fm_seed_parse(const char *what, const char *text, uint64_t *out);

/* All of text as a finite decimal number in [min, max]. */
bool fm_real_parse(const char *what, const char *text, double min, double max, double *out);

/* Room for one printed number; fm_number_text and fm_bytes_text return their buffer. */
typedef struct fm_number_buffer {
    char text[48];
} fm_number_buffer;

/* 16384 as "16,384". */
const char *fm_number_text(int64_t value, fm_number_buffer *buffer);

/* "16 MiB", "1.07 GiB": exact below 1 KiB, otherwise at most three digits. */
const char *fm_bytes_text(int64_t bytes, fm_number_buffer *buffer);

#endif

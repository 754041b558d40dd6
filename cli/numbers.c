#include "numbers.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_decimal(const char *text, bool may_be_negative) {
    if (may_be_negative && *text == '-') {
        text++;
    }
    if (*text == '\0') {
        return false;
    }
    while (*text >= '0' && *text <= '9') {
        text++;
    }
    return *text == '\0';
}

bool fm_number_parse(const char *what, const char *text, int64_t min, int64_t max, int64_t *out) {
    if (!is_decimal(text, true)) {
        return fm_cli_fail("%s: '%.80s' is not a whole number", what, text);
    }
    errno = 0;
    const long long value = strtoll(text, NULL, 10);
    if (errno == ERANGE || value < min || value > max) {
        return fm_cli_fail("%s: %.80s is outside %" PRId64 " .. %" PRId64, what, text, min, max);
    }
    *out = value;
    return true;
}

bool fm_seed_parse(const char *what, const char *text, uint64_t *out) {
    if (!is_decimal(text, false)) {
        return fm_cli_fail("%s: '%.80s' is not a whole number from 0", what, text);
    }
    errno = 0;
    const unsigned long long value = strtoull(text, NULL, 10);
    if (errno == ERANGE) {
        return fm_cli_fail("%s: %.80s is past 2^64 - 1", what, text);
    }
    *out = value;
    return true;
}

bool fm_real_parse(const char *what, const char *text, double min, double max, double *out) {
    char *end = NULL;
    const bool starts_well = (*text >= '0' && *text <= '9') || *text == '.' || *text == '-';
    const double value = starts_well ? strtod(text, &end) : NAN;
    if (!starts_well || end == text || *end != '\0' || !isfinite(value)) {
        return fm_cli_fail("%s: '%.80s' is not a number", what, text);
    }
    if (value < min || value > max) {
        return fm_cli_fail("%s: %.80s is outside %g .. %g", what, text, min, max);
    }
    *out = value;
    return true;
}

const char *fm_number_text(int64_t value, fm_number_buffer *buffer) {
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%" PRId64, value);
    const int first = digits[0] == '-' ? 1 : 0; /* digits start here */
    char *to = buffer->text;
    for (int i = 0; i < length; i++) {
        if (i > first && (length - i) % 3 == 0) {
            *to++ = ',';
        }
        *to++ = digits[i];
    }
    *to = '\0';
    return buffer->text;
}

const char *fm_bytes_text(int64_t bytes, fm_number_buffer *buffer) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    const int decimals = value == floor(value) || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    snprintf(buffer->text, sizeof buffer->text, "%.*f %s", decimals, value, units[unit]);
    return buffer->text;
}

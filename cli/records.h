/* Records of whole numbers: what length files and list values in --mask hold. */
#ifndef FM_CLI_RECORDS_H
#define FM_CLI_RECORDS_H

#include "numbers.h"

#include <stdio.h>

/* Record r has the fields values[first[r] .. first[r + 1]). Start from {0}; release with fm_records_free. */
typedef struct fm_records {
    int64_t count;
    int64_t *first;
    int64_t *values;
    int64_t used, record_capacity, value_capacity;
} fm_records;

static inline int64_t fm_records_fields(const fm_records *r, int64_t record) { return r->first[record + 1] - r->first[record]; }
static inline int64_t fm_records_field(const fm_records *r, int64_t record, int64_t field) {
    return r->values[r->first[record] + field];
}

/* Sum of one record's fields. */
int64_t fm_records_sum(const fm_records *records, int64_t record);

/* Each record one document, its length the sum of its fields: a new array of count entries for the caller to free. */
int64_t *fm_records_sums(const fm_records *records);

/* "1024+512": two records; "2/3/4+5/6": records of three and two fields. Fields lie in [min, FM_MAX_EXTENT]. */
bool fm_records_parse(const char *what, const char *text, int64_t min, fm_records *out);

/* A length file, one record a line: a JSON array of whole numbers, or numbers apart by tabs, blanks or commas. Empty lines and
 * lines that start with # are skipped; one header line of names may stand before the numbers. At least one record. */
bool fm_records_read(FILE *file, const char *name, int64_t min, fm_records *out);
bool fm_records_load(const char *path, int64_t min, fm_records *out);

void fm_records_free(fm_records *records);

#endif

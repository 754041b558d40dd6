/* The masks that --mask can name: one table, which the parser, the help and the tests share. */
#ifndef FM_CLI_MASK_TABLE_H
#define FM_CLI_MASK_TABLE_H

#include "records.h"

#include <flashmask/masks.h>

enum { FM_MASK_MAX_KEYS = 6, FM_DEFAULT_SEQ = 1024 };

/* What the options around --mask say. 0: not given. */
typedef struct fm_mask_context {
    int64_t seq, rows; /* keys and queries */
    int64_t heads;     /* of masks that differ from head to head */
    uint64_t seed;
} fm_mask_context;

typedef enum fm_key_kind {
    FM_KEY_NUMBER,  /* in [min, FM_MAX_EXTENT] */
    FM_KEY_SHARE,   /* a real number in [0, 1] */
    FM_KEY_FLAG,    /* 0 or 1 */
    FM_KEY_RECORDS, /* 1+2 or 1/2+3/4, of numbers in [min, ..]; `file` may give them instead */
    FM_KEY_FILE     /* a path; with it goes a table entry's FM_KEY_RECORDS, if it has one */
} fm_key_kind;

typedef struct fm_mask_key {
    const char *name; /* NULL ends the list */
    fm_key_kind kind;
    bool required;
    int64_t min;
    const char *form; /* of the value, for people: "WINDOW", "PREFIX/LENGTH+..." */
} fm_mask_key;

/* The value of the key at the same place in the table entry. A file of records has become `records` of the key before it. */
typedef struct fm_mask_value {
    bool given;
    int64_t number;
    double share;
    fm_records records;
    const char *text;
} fm_mask_value;

typedef struct fm_mask_entry {
    const char *name;
    const char *aliases; /* apart by blanks; "" for none */
    const char *help;
    fm_mask_key keys[FM_MASK_MAX_KEYS + 1];
    bool (*build)(const char *subject, const fm_mask_context *context, const fm_mask_value *values, fm_mask **out);
} fm_mask_entry;

extern const fm_mask_entry fm_mask_entries[];
extern const int fm_mask_entry_count;

#endif

#include "records.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* 2^25 numbers of 7 digits: more than any record has, and memory that a machine has. */
enum { LINE_LIMIT = 1 << 28 };

/* Room for `needed` elements of 8 bytes; *capacity doubles. */
static bool grow(int64_t **array, int64_t *capacity, int64_t needed) {
    if (needed <= *capacity) {
        return true;
    }
    const int64_t wanted = needed < 16 ? 16 : 2 * needed;
    int64_t *larger = realloc(*array, (size_t)wanted * sizeof **array);
    if (larger == NULL) {
        fm_cli_fail("out of memory: %" PRId64 " numbers", wanted);
        return false;
    }
    *array = larger;
    *capacity = wanted;
    return true;
}

static bool add_field(fm_records *r, int64_t value) {
    if (!grow(&r->values, &r->value_capacity, r->used + 1)) {
        return false;
    }
    r->values[r->used++] = value;
    return true;
}

/* Ends a record: fields added since the last one are its own. */
static bool add_record(fm_records *r) {
    if (!grow(&r->first, &r->record_capacity, r->count + 2)) {
        return false;
    }
    r->first[0] = 0;
    r->first[++r->count] = r->used;
    return true;
}

void fm_records_free(fm_records *r) {
    free(r->first);
    free(r->values);
    *r = (fm_records){0};
}

int64_t fm_records_sum(const fm_records *r, int64_t record) {
    int64_t sum = 0;
    for (int64_t i = r->first[record]; i < r->first[record + 1]; i++) {
        sum += r->values[i];
    }
    return sum;
}

int64_t *fm_records_sums(const fm_records *r) {
    int64_t *sums = fm_cli_allocate(r->count, sizeof *sums);
    for (int64_t i = 0; sums != NULL && i < r->count; i++) {
        sums[i] = fm_records_sum(r, i);
    }
    return sums;
}

/* One field of `length` characters at text. */
static bool parse_field(const char *what, const char *text, size_t length, int64_t min, fm_records *out) {
    char field[96];
    int64_t value = 0;
    if (length >= sizeof field) {
        return fm_cli_fail("%s: '%.40s...' is %zu characters long, which no number takes", what, text, length);
    }
    memcpy(field, text, length);
    field[length] = '\0';
    return fm_number_parse(what, field, min, FM_MAX_EXTENT, &value) && add_field(out, value);
}

bool fm_records_parse(const char *what, const char *text, int64_t min, fm_records *out) {
    fm_records records = {0};
    for (const char *at = text;;) {
        const size_t length = strcspn(at, "+/");
        if (!parse_field(what, at, length, min, &records)) {
            goto failed;
        }
        if (at[length] != '/' && !add_record(&records)) {
            goto failed;
        }
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    *out = records;
    return true;
failed:
    fm_records_free(&records);
    return false;
}

static bool add_json(const char *where, const char *line, int64_t min, fm_records *out) {
    bool ok = false;
    json_error_t error;
    json_t *array = json_loads(line, 0, &error);
    if (!json_is_array(array)) {
        fm_cli_fail("%s: not a JSON array: %s", where, array == NULL ? error.text : "another kind of value");
        goto done;
    }
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item)) {
            fm_cli_fail("%s: entry %zu of the array is not a whole number", where, i);
            goto done;
        }
        const json_int_t value = json_integer_value(item);
        if (value < min || value > FM_MAX_EXTENT) {
            fm_cli_fail("%s: %" JSON_INTEGER_FORMAT " is outside %" PRId64 " .. %d", where, value, min, FM_MAX_EXTENT);
            goto done;
        }
        if (!add_field(out, value)) {
            goto done;
        }
    }
    ok = add_record(out);
done:
    json_decref(array);
    return ok;
}

static const char separators[] = " \t,";

static bool add_columns(const char *where, const char *line, int64_t min, fm_records *out) {
    for (const char *at = line + strspn(line, separators); *at != '\0';) {
        const size_t length = strcspn(at, separators);
        if (!parse_field(where, at, length, min, out)) {
            return false;
        }
        at += length;
        at += strspn(at, separators);
    }
    return add_record(out);
}

/* A line of names: its first character starts no number and no array. */
static bool is_header(const char *line) { return strchr("-0123456789[", line[strspn(line, separators)]) == NULL; }

/* The lines of a file, one at a time. */
typedef struct line_reader {
    FILE *file;
    const char *name;
    char *text; /* the line, without its end; NUL behind it */
    size_t length, room;
    int64_t number;
    char where[256]; /* NAME:NUMBER */
} line_reader;

static bool append(line_reader *r, char c) {
    if (r->length == r->room) {
        const size_t room = r->room > 0 ? 2 * r->room : 256;
        if (room > LINE_LIMIT) {
            return fm_cli_fail("%s: a line of %d bytes or more", r->where, LINE_LIMIT);
        }
        char *larger = realloc(r->text, room);
        if (larger == NULL) {
            return fm_cli_fail("%s: out of memory: a line of %zu bytes", r->where, room);
        }
        r->text = larger;
        r->room = room;
    }
    r->text[r->length++] = c;
    return true;
}

/* *more is false at the end of the file. Unlike getline it ends where no text file goes on: /dev/zero is one endless line. */
static bool read_line(line_reader *r, bool *more) {
    int c = 0;
    r->length = 0;
    snprintf(r->where, sizeof r->where, "%.200s:%" PRId64, r->name, ++r->number);
    while ((c = getc(r->file)) != EOF && c != '\n') {
        if (c == '\0') {
            return fm_cli_fail("%s: a NUL byte in a text file", r->where);
        }
        if (!append(r, (char)c)) {
            return false;
        }
    }
    if (ferror(r->file)) {
        return fm_cli_fail("%s: %s", r->name, strerror(errno));
    }
    *more = c != EOF;
    while (r->length > 0 && r->text[r->length - 1] == '\r') {
        r->length--;
    }
    return append(r, '\0');
}

static bool is_comment(const char *line) { return line[strspn(line, separators)] == '\0' || line[0] == '#'; }

bool fm_records_read(FILE *file, const char *name, int64_t min, fm_records *out) {
    fm_records records = {0};
    line_reader line = {.file = file, .name = name};
    bool ok = true, more = true, may_be_header = true;
    while (ok && more) {
        ok = read_line(&line, &more);
        if (!ok || is_comment(line.text)) {
            continue;
        }
        if (!may_be_header || !is_header(line.text)) {
            ok = (line.text[0] == '[' ? add_json : add_columns)(line.where, line.text, min, &records);
        }
        may_be_header = false;
    }
    ok = ok && (records.count > 0 || fm_cli_fail("%s: holds no numbers", name));
    free(line.text);
    if (ok) {
        *out = records;
    } else {
        fm_records_free(&records);
    }
    return ok;
}

bool fm_records_load(const char *path, int64_t min, fm_records *out) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fm_cli_fail("%s: %s", path, strerror(errno));
    }
    const bool ok = fm_records_read(file, path, min, out);
    fclose(file);
    return ok;
}

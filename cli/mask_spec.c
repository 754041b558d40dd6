#include "mask_spec.h"

#include "npy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------------------- */

/* "Sliding-Window mask" as "sliding_window". False if it does not fit. */
static bool plain_name(const char *name, size_t length, char *out, size_t room) {
    if (length >= room) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        const char c = name[i];
        out[i] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c == '-' || c == ' ' ? '_' : c);
    }
    out[length] = '\0';
    if (length > 5 && strcmp(out + length - 5, "_mask") == 0) {
        out[length - 5] = '\0';
    }
    return true;
}

static bool has_word(const char *words, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = words; *at != '\0';) {
        const size_t n = strcspn(at, " ");
        if (n == length && memcmp(at, word, n) == 0) {
            return true;
        }
        at += n + (at[n] == ' ');
    }
    return false;
}

static const fm_mask_entry *find_entry(const char *name, size_t length) {
    char plain[64];
    if (length == 0 || !plain_name(name, length, plain, sizeof plain)) {
        return NULL;
    }
    for (int i = 0; i < fm_mask_entry_count; i++) {
        if (strcmp(plain, fm_mask_entries[i].name) == 0 || has_word(fm_mask_entries[i].aliases, plain)) {
            return &fm_mask_entries[i];
        }
    }
    return NULL;
}

/* How many letters must be put in, taken out or changed to make one word of the other (Levenshtein). b: less than 64 letters. */
static size_t letters_apart(const char *a, const char *b) {
    const size_t length = strlen(b);
    size_t row[64]; /* from the start of a so far to each start of b */
    for (size_t j = 0; j <= length; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t changed = row[0]; /* what changing a[i] into b[j - 1] starts from */
        row[0] = i + 1;
        for (size_t j = 1; j <= length; j++) {
            const size_t least = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            changed += a[i] != b[j - 1];
            const size_t next = changed < least ? changed : least;
            changed = row[j];
            row[j] = next;
        }
    }
    return row[length];
}

/* The mask of the nearest name; NULL where a third of the letters or more differ. */
static const char *nearest_name(const char *name, size_t length) {
    char plain[64] = {0};
    if (!plain_name(name, length, plain, sizeof plain)) {
        return NULL;
    }
    const char *nearest = NULL;
    size_t least = (strlen(plain) + 2) / 3;
    for (int i = 0; i < fm_mask_entry_count; i++) {
        const size_t apart = letters_apart(fm_mask_entries[i].name, plain);
        if (apart < least) {
            least = apart;
            nearest = fm_mask_entries[i].name;
        }
    }
    return nearest;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

static void key_names(const fm_mask_entry *entry, char *out, size_t room) {
    size_t n = 0;
    out[0] = '\0';
    for (const fm_mask_key *key = entry->keys; key->name != NULL && n < room; key++) {
        n += (size_t)snprintf(out + n, room - n, "%s%s", n > 0 ? ", " : "", key->name);
    }
}

static bool unknown_key(const fm_mask_entry *entry, const char *subject, const char *key) {
    char names[160];
    key_names(entry, names, sizeof names);
    return fm_cli_fail("%s: unknown key '%.40s'; it takes %s", subject, key, names[0] != '\0' ? names : "none");
}

static bool parse_value(const fm_mask_key *key, const char *what, const char *text, fm_mask_value *value) {
    double share = 0;
    switch (key->kind) {
    case FM_KEY_NUMBER: return fm_number_parse(what, text, key->min, FM_MAX_EXTENT, &value->number);
    case FM_KEY_FLAG: return fm_number_parse(what, text, 0, 1, &value->number);
    case FM_KEY_SHARE:
        if (!fm_real_parse(what, text, 0, 1, &share)) {
            return false;
        }
        value->share = share;
        return true;
    case FM_KEY_RECORDS: return fm_records_parse(what, text, key->min, &value->records);
    case FM_KEY_FILE: value->text = text; return *text != '\0' || fm_cli_fail("%s: no path given", what);
    }
    return false;
}

/* One key=value, ended by NUL; cuts pair at '='. */
static bool parse_pair(const fm_mask_entry *entry, const char *subject, char *pair, fm_mask_value *values) {
    char what[96];
    char *equals = strchr(pair, '=');
    if (equals == NULL) {
        const bool in_list = *pair >= '0' && *pair <= '9'; /* lengths=3,4 */
        return fm_cli_fail("%s: '%.80s' is not key=value%s", subject, pair, in_list ? "; a list is joined by +" : "");
    }
    *equals = '\0';
    int k = 0;
    while (entry->keys[k].name != NULL && strcmp(entry->keys[k].name, pair) != 0) {
        k++;
    }
    if (entry->keys[k].name == NULL) {
        return unknown_key(entry, subject, pair);
    }
    if (values[k].given) {
        return fm_cli_fail("%s: %s is given twice", subject, pair);
    }
    values[k].given = true;
    snprintf(what, sizeof what, "%s: %s", subject, pair);
    return parse_value(&entry->keys[k], what, equals + 1, &values[k]);
}

/* A list that the key after it may give as a file instead. */
static bool has_file(const fm_mask_key *key) {
    return key->kind == FM_KEY_RECORDS && key[1].name != NULL && key[1].kind == FM_KEY_FILE;
}

static bool load_files(const fm_mask_entry *entry, const char *subject, fm_mask_value *values) {
    for (int k = 0; entry->keys[k].name != NULL; k++) {
        const fm_mask_key *list = &entry->keys[k];
        if (!has_file(list) || !values[k + 1].given) {
            continue;
        }
        if (values[k].given) {
            return fm_cli_fail("%s: give %s or %s, not both", subject, list->name, list[1].name);
        }
        values[k].given = true;
        if (!fm_records_load(values[k + 1].text, list->min, &values[k].records)) {
            return false;
        }
    }
    return true;
}

static bool require_keys(const fm_mask_entry *entry, const char *subject, const fm_mask_value *values) {
    for (int k = 0; entry->keys[k].name != NULL; k++) {
        const fm_mask_key *key = &entry->keys[k];
        if (key->required && !values[k].given) {
            return fm_cli_fail("%s: needs %s=%s%s", subject, key->name, key->form, has_file(key) ? " or file=PATH" : "");
        }
    }
    return true;
}

/* text: the key=value pairs; cut up. */
static bool build_entry(const fm_mask_entry *entry, char *text, const fm_mask_context *context, fm_mask **out) {
    char subject[64];
    fm_mask_value values[FM_MASK_MAX_KEYS + 1] = {0};
    bool ok = true;
    snprintf(subject, sizeof subject, "--mask %s", entry->name);
    for (char *pair = text; ok && pair != NULL;) {
        char *comma = strchr(pair, ',');
        if (comma != NULL) {
            *comma++ = '\0';
        }
        ok = parse_pair(entry, subject, pair, values);
        pair = comma;
    }
    ok = ok && load_files(entry, subject, values) && require_keys(entry, subject, values) &&
         entry->build(subject, context, values, out);
    for (int k = 0; k < FM_MASK_MAX_KEYS; k++) {
        fm_records_free(&values[k].records);
    }
    return ok;
}

bool fm_mask_spec_build(const char *spec, const fm_mask_context *context, fm_mask **out) {
    const size_t length = strcspn(spec, ":");
    const fm_mask_entry *entry = find_entry(spec, length);
    if (entry == NULL) {
        const char *nearest = nearest_name(spec, length);
        return fm_cli_fail("--mask: unknown mask '%.*s'; 'flashmask masks' lists them%s%s", (int)(length < 60 ? length : 60),
                           spec, nearest != NULL ? "; the nearest is " : "", nearest != NULL ? nearest : "");
    }
    if (spec[length] == '\0') {
        return build_entry(entry, NULL, context, out);
    }
    char *pairs = strdup(spec + length + 1);
    if (pairs == NULL) {
        return fm_cli_fail("--mask: out of memory");
    }
    const bool ok = build_entry(entry, pairs, context, out);
    free(pairs);
    return ok;
}

/* ---- vectors ------------------------------------------------------------------------------------------------------- */

static bool vectors_shape(const char *path, const fm_npy *array, const fm_mask_context *context, fm_mask_shape *out) {
    const bool plain = array->rank == 2;
    if (array->type != FM_NPY_I32) {
        return fm_cli_fail("--vectors %s: elements are %s; int32 is needed", path, fm_npy_type_name(array->type));
    }
    if (array->rank != 2 && array->rank != 4) {
        return fm_cli_fail("--vectors %s: has rank %d; [Sk, C] or [B, Hm, Sk, C] is needed", path, array->rank);
    }
    const int64_t columns = array->shape[array->rank - 2];
    if (context->seq != 0 && context->seq != columns) {
        return fm_cli_fail("--vectors %s: has %" PRId64 " keys, but %" PRId64 " are needed", path, columns, context->seq);
    }
    *out = (fm_mask_shape){plain ? 1 : array->shape[0], plain ? 1 : array->shape[1], context->rows != 0 ? context->rows : columns,
                           columns};
    return true;
}

bool fm_mask_vectors_build(const char *path, bool causal, const fm_mask_context *context, fm_mask **out) {
    fm_npy array = {0};
    fm_mask_shape shape = {0};
    bool ok = false;
    if (!fm_npy_load(path, &array) || !vectors_shape(path, &array, context, &shape)) {
        goto done;
    }
    const int64_t vectors = array.shape[array.rank - 1];
    if (vectors > 4) {
        fm_cli_fail("--vectors %s: %" PRId64 " vectors; at most 4 are accepted", path, vectors);
        goto done;
    }
    ok = fm_cli_ok(fm_mask_from_startend_row_indices(shape, (int32_t)vectors, causal, array.data, out), "--vectors");
done:
    fm_npy_free(&array);
    return ok;
}

/* sliding_window:left=L,right=R; [] around keys that may be left out, (|) around a list or its file. */
static void print_form(FILE *to, const fm_mask_entry *entry) {
    fprintf(to, "%s", entry->name);
    for (const fm_mask_key *key = entry->keys; key->name != NULL; key++) {
        const char *before = key == entry->keys ? ":" : ",";
        if (has_file(key)) {
            fprintf(to, "%s(%s=%s|%s=%s)", before, key->name, key->form, key[1].name, key[1].form);
            key++;
        } else {
            fprintf(to, key->required ? "%s%s=%s" : "[%s%s=%s]", before, key->name, key->form);
        }
    }
}

void fm_mask_spec_print_table(FILE *to) {
    for (int i = 0; i < fm_mask_entry_count; i++) {
        const fm_mask_entry *entry = &fm_mask_entries[i];
        print_form(to, entry);
        fprintf(to, "\n    %s\n", entry->help);
        if (entry->aliases[0] != '\0') {
            fprintf(to, "    also: %s\n", entry->aliases);
        }
    }
}

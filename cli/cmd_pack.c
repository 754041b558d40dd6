/* flashmask pack: a length file into sequences, and the arrays that go beside their tokens. */
#include "commands.h"
#include "numbers.h"
#include "packed_arrays.h"

#include <inttypes.h>
#include <string.h>

/* Everything that must be given, and goes together. */
static bool check_options(const fm_options *o) {
    const char *missing = o->file == NULL     ? "FILE"
                          : o->kind < 0       ? "--kind documents|pairs|questions"
                          : o->capacity == 0  ? "--capacity N"
                          : o->output == NULL ? "--output OUT.safetensors or PREFIX"
                                              : NULL;
    if (missing != NULL) {
        return fm_cli_fail("pack: %s is needed; see 'flashmask pack --help'", missing);
    }
    if (o->overlong == FM_PACK_SPLIT && o->kind != FM_RECORD_DOCUMENT) {
        return fm_cli_fail("--overlong: split cuts documents only; pairs and questions stay whole");
    }
    const size_t length = strlen(o->output);
    return length < 4 || strcmp(o->output + length - 4, ".npy") != 0 ||
           fm_cli_fail("--output: '%.200s' is one .npy file, and there are %d; give a prefix or a .safetensors file", o->output,
                       FM_PACKED_ARRAYS);
}

static double percent(int64_t part, int64_t whole) { return whole > 0 ? 100.0 * (double)part / (double)whole : 0; }

/* "packed    42 sequences of 8,192 tokens, 99.43% used". */
static void print_sequences(const char *label, int64_t sequences, const fm_packed_set *set) {
    fm_number_buffer number, capacity;
    printf("%-9s %s sequence%s of %s tokens, %.2f%% used", label, fm_number_text(sequences, &number), sequences == 1 ? "" : "s",
           fm_number_text(set->capacity, &capacity), percent(set->tokens, sequences * set->capacity));
}

static void print_utilisation(const fm_packed_set *set) {
    fm_number_buffer records, pieces, number;
    const int64_t fewest = set->tokens / set->capacity + (set->tokens % set->capacity > 0);
    printf("input     %s records in %s pieces, %s tokens\n", fm_number_text(set->records, &records),
           fm_number_text(set->pieces, &pieces), fm_number_text(set->tokens, &number));
    print_sequences("packed", set->sequences, set);
    if (set->sequences > 1) {
        const double others = percent(set->tokens - set->emptiest, (set->sequences - 1) * set->capacity);
        printf(", %.2f%% without the emptiest", others);
    }
    printf("; no packing has fewer");
    if (set->sequences > fewest) {
        printf(" than %s", fm_number_text(fewest, &number));
    }
    printf("\n");
    print_sequences("padded", set->pieces, set);
    printf(", a piece each\n");
}

static void print_arrays(const fm_packed_set *set, const char *output) {
    char path[4096];
    for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
        const fm_npy a = fm_packed_array(set, i);
        fm_packed_array_path(output, i, path, sizeof path);
        printf("%-9s %s %s [", i == 0 ? "arrays" : "", fm_packed_array_names[i], fm_npy_type_name(a.type));
        for (int32_t d = 0; d < a.rank; d++) {
            printf("%s%" PRId64, d > 0 ? ", " : "", a.shape[d]);
        }
        printf("] in %s\n", path);
    }
}

fm_exit fm_command_pack(const fm_options *options) {
    const fm_pack_request request = {(fm_record_kind)options->kind, options->capacity, (fm_pack_policy)options->policy,
                                     (fm_pack_overlong)options->overlong};
    fm_packed_set set = {0};
    const bool ok = check_options(options) && fm_packed_set_load(options->file, &request, &set) &&
                    fm_packed_arrays_save(&set, options->output);
    if (ok) {
        print_utilisation(&set);
        print_arrays(&set, options->output);
    }
    fm_packed_set_free(&set);
    return ok ? FM_EXIT_OK : FM_EXIT_BAD;
}

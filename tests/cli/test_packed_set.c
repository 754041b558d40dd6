/* Length files that are packed, and the arrays that are written of them. */
#include "packed_arrays.h"
#include "records.h"
#include "safetensors.h"

#include "support/cmocka_all.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[32];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/test_packed.XXXXXX");
    return mkdtemp(folder) == NULL;
}

/* Fails if a test has left something in it. */
static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

typedef struct file_name {
    char text[128];
} file_name;

static file_name in_folder(const char *name) {
    file_name path;
    snprintf(path.text, sizeof path.text, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
}

/* ---- real lengths -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *path;
    fm_record_kind kind;
} real[] = {{"chat", TEST_DATA "/chat_turn_lengths.jsonl", FM_RECORD_DOCUMENT},
            {"pairs", TEST_DATA "/preference_lengths.tsv", FM_RECORD_PAIR}};

/* `epochs` times the same lengths in one file. */
static fm_packed_set pack_real(size_t index, int64_t capacity, int epochs) {
    const file_name path = in_folder("lengths");
    const fm_pack_request request = {real[index].kind, capacity, FM_PACK_BEST_FIT, FM_PACK_REFUSE};
    fm_records records = {0};
    fm_packed_set set = {0};
    assert_true(fm_records_load(real[index].path, 0, &records));
    FILE *file = fopen(path.text, "wb");
    assert_non_null(file);
    for (int epoch = 0; epoch < epochs; epoch++) {
        for (int64_t r = 0; r < records.count; r++) {
            for (int64_t f = 0; f < fm_records_fields(&records, r); f++) {
                fprintf(file, "%s%lld", f > 0 ? "\t" : "", (long long)fm_records_field(&records, r, f));
            }
            fputc('\n', file);
        }
    }
    assert_int_equal(fclose(file), 0);
    fm_records_free(&records);
    assert_true(fm_packed_set_load(path.text, &request, &set));
    assert_int_equal(unlink(path.text), 0);
    return set;
}

static double used(int64_t tokens, int64_t sequences, int64_t capacity) {
    return (double)tokens / ((double)sequences * (double)capacity);
}

/* One epoch of these small sets leaves a last sequence that cannot be filled, whatever the packing: 342,095 tokens take 11
 * sequences of 32,768, which are 94.91% full. So one epoch must be in the fewest sequences that there can be and fill the
 * others to 99%, and ten epochs must fill all of them to 99%. */
static void real_lengths_use_99_of_100_tokens(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        for (int64_t capacity = 8192; capacity <= 32768; capacity *= 4) {
            fm_packed_set one = pack_real(i, capacity, 1), ten = pack_real(i, capacity, 10);
            const double all = used(one.tokens, one.sequences, capacity), padded = used(one.tokens, one.records, capacity);
            const double others = used(one.tokens - one.emptiest, one.sequences - 1, capacity);
            const double epochs = used(ten.tokens, ten.sequences, capacity);
            print_message(
                "%-5s %5lld: %lld sequences %.2f%% used, %.2f%% without the emptiest, ten epochs %.2f%%; padded %.2f%%: "
                "%.1f times more sequences\n",
                real[i].name, (long long)capacity, (long long)one.sequences, 100 * all, 100 * others, 100 * epochs, 100 * padded,
                (double)one.records / (double)one.sequences);
            assert_int_equal(one.sequences, (one.tokens + capacity - 1) / capacity);
            assert_true(others >= 0.99);
            assert_int_equal(ten.tokens, 10 * one.tokens);
            assert_true(epochs >= 0.99);
            assert_true(padded < 0.03);
            fm_packed_set_free(&one);
            fm_packed_set_free(&ten);
        }
    }
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

enum { CAPACITY = 40 };
static const char lengths[] = "question\tanswer\tanswer\n5\t3\t4\n20\t0\t7\n0\t9\t2\n11\t1\n30\n0\n";

static fm_packed_set pack_lengths_file(fm_record_kind kind) {
    const file_name path = in_folder("lengths.tsv");
    const fm_pack_request request = {kind, CAPACITY, FM_PACK_BEST_FIT, FM_PACK_REFUSE};
    fm_packed_set set = {0};
    write_text(path.text, lengths);
    assert_true(fm_packed_set_load(path.text, &request, &set));
    assert_int_equal(unlink(path.text), 0);
    return set;
}

static void assert_pieces(const fm_packed_set *set, const fm_npy *array) {
    const int64_t *row = array->data;
    for (int64_t s = 0; s < set->sequences; s++) {
        const fm_piece *pieces;
        int64_t count;
        assert_true(fm_packed_set_pieces(set, s, &pieces, &count));
        for (int64_t k = 0; k < count; k++, row += 4) {
            const int64_t expected[4] = {s, pieces[k].document, pieces[k].start, pieces[k].length};
            assert_memory_equal(row, expected, sizeof expected);
        }
    }
    assert_int_equal(row - (const int64_t *)array->data, array->count);
}

static void assert_row(const fm_npy *array, int64_t sequence, const void *expected) {
    const size_t bytes = CAPACITY * fm_npy_type_size(array->type);
    assert_memory_equal((const char *)array->data + (size_t)sequence * bytes, expected, bytes);
}

/* The six arrays, in the order of fm_packed_array_names, are what the library says. */
static void assert_arrays(const fm_packed_set *set, const fm_npy *const arrays[FM_PACKED_ARRAYS]) {
    for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
        const fm_npy expected = fm_packed_array(set, i);
        assert_int_equal(arrays[i]->type, expected.type);
        assert_int_equal(arrays[i]->rank, expected.rank);
        assert_memory_equal(arrays[i]->shape, expected.shape, (size_t)expected.rank * sizeof *expected.shape);
    }
    assert_pieces(set, arrays[0]);
    for (int64_t s = 0; s < set->sequences; s++) {
        int32_t documents[CAPACITY], positions[CAPACITY], predicted_by[CAPACITY];
        uint8_t labels[CAPACITY];
        const fm_packed_arrays expected = {sizeof expected, documents, positions, predicted_by, labels};
        assert_int_equal(fm_packing_arrays(set->packing, s, &expected), FM_OK);
        assert_row(arrays[1], s, documents);
        assert_row(arrays[2], s, positions);
        assert_row(arrays[3], s, predicted_by);
        assert_row(arrays[4], s, labels);
    }
    fm_mask *written, *mask;
    assert_int_equal(fm_mask_from_startend_row_indices((fm_mask_shape){set->sequences, 1, CAPACITY, CAPACITY}, 1, true,
                                                       arrays[5]->data, &written),
                     FM_OK);
    assert_int_equal(fm_packing_mask(set->packing, 0, set->sequences, true, &mask), FM_OK);
    assert_true(fm_mask_equal(written, mask));
    fm_mask_free(written);
    fm_mask_free(mask);
}

static void one_file_holds_all_arrays(void **state) {
    (void)state;
    const file_name path = in_folder("out.safetensors");
    for (int kind = FM_RECORD_DOCUMENT; kind <= FM_RECORD_QUESTION; kind += FM_RECORD_QUESTION) {
        fm_packed_set set = pack_lengths_file((fm_record_kind)kind);
        fm_safetensors read = {0};
        const fm_npy *arrays[FM_PACKED_ARRAYS];
        assert_true(fm_packed_arrays_save(&set, path.text));
        assert_true(fm_safetensors_load(path.text, &read));
        assert_int_equal(read.count, FM_PACKED_ARRAYS);
        for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
            arrays[i] = fm_safetensors_find(&read, fm_packed_array_names[i]);
            assert_non_null(arrays[i]);
        }
        assert_arrays(&set, arrays);
        fm_safetensors_free(&read);
        fm_packed_set_free(&set);
        assert_int_equal(unlink(path.text), 0);
    }
}

static void files_of_a_prefix_hold_one_array_each(void **state) {
    (void)state;
    const file_name prefixes[] = {in_folder("train"), in_folder("")};
    fm_packed_set set = pack_lengths_file(FM_RECORD_QUESTION);
    for (int p = 0; p < 2; p++) {
        fm_npy read[FM_PACKED_ARRAYS] = {{0}};
        const fm_npy *arrays[FM_PACKED_ARRAYS];
        char name[64];
        assert_true(fm_packed_arrays_save(&set, prefixes[p].text));
        for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
            snprintf(name, sizeof name, "%s%s.npy", p == 0 ? "train_" : "", fm_packed_array_names[i]);
            const file_name path = in_folder(name);
            assert_true(fm_npy_load(path.text, &read[i]));
            assert_int_equal(unlink(path.text), 0);
            arrays[i] = &read[i];
        }
        assert_arrays(&set, arrays);
        for (int i = 0; i < FM_PACKED_ARRAYS; i++) {
            fm_npy_free(&read[i]);
        }
    }
    fm_packed_set_free(&set);
}

/* The last of the six cannot take its name. */
static void what_cannot_be_written_whole_leaves_nothing(void **state) {
    (void)state;
    const file_name obstacle = in_folder("train_startend_row_indices.npy");
    fm_packed_set set = pack_lengths_file(FM_RECORD_DOCUMENT);
    assert_int_equal(mkdir(obstacle.text, 0777), 0);
    assert_false(fm_packed_arrays_save(&set, in_folder("train").text));
    assert_non_null(strstr(fm_cli_message(), "train_startend_row_indices.npy: is there and is no plain file"));
    assert_int_equal(rmdir(obstacle.text), 0);
    assert_false(fm_packed_arrays_save(&set, in_folder("none/out.safetensors").text));
    assert_non_null(strstr(fm_cli_message(), "cannot be written: No such file or directory"));
    fm_packed_set_free(&set);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(real_lengths_use_99_of_100_tokens),
        TEST(one_file_holds_all_arrays),
        TEST(files_of_a_prefix_hold_one_array_each),
        TEST(what_cannot_be_written_whole_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

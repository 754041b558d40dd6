/* Output files appear all together or not at all. */
#include "output_files.h"

#include "support/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[32], one[64], two[64];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/test_output.XXXXXX");
    snprintf(one, sizeof one, "%s/one", mkdtemp(folder));
    snprintf(two, sizeof two, "%s/two", folder);
    return 0;
}

/* Fails if a file is left in it. */
static int remove_folder(void **state) {
    (void)state;
    unlink(one);
    unlink(two);
    return rmdir(folder);
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void assert_text(const char *path, const char *text) {
    char found[32] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(found, 1, sizeof found - 1, file), strlen(text));
    assert_string_equal(found, text);
    fclose(file);
}

static void files_appear_at_the_commit(void **state) {
    (void)state;
    fm_output_files files = {0};
    const char *temporary = NULL;
    struct stat status;
    assert_true(fm_output_files_add(&files, one, &temporary));
    write_text(temporary, "first");
    assert_true(fm_output_files_add(&files, two, &temporary));
    write_text(temporary, "second");
    assert_int_equal(access(one, F_OK), -1);
    assert_true(fm_output_files_commit(&files));
    fm_output_files_free(&files);
    assert_text(one, "first");
    assert_text(two, "second");
    const mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(one, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0666 & ~mask);
}

static void files_without_a_commit_leave_nothing(void **state) {
    (void)state;
    fm_output_files files = {0};
    const char *temporary = NULL;
    write_text(one, "old");
    assert_true(fm_output_files_add(&files, one, &temporary));
    write_text(temporary, "new");
    assert_true(fm_output_files_add(&files, two, &temporary));
    fm_output_files_free(&files);
    assert_text(one, "old");
    assert_int_equal(access(two, F_OK), -1);
}

static void a_name_that_cannot_be_given_takes_the_others_back(void **state) {
    (void)state;
    fm_output_files files = {0};
    const char *temporary = NULL;
    assert_true(fm_output_files_add(&files, one, &temporary));
    assert_true(fm_output_files_add(&files, two, &temporary));
    assert_int_equal(mkdir(two, 0700), 0); /* after it was checked */
    assert_false(fm_output_files_commit(&files));
    fm_output_files_free(&files);
    assert_int_equal(access(one, F_OK), -1);
    assert_int_equal(rmdir(two), 0);
}

static void bad_paths_are_refused(void **state) {
    (void)state;
    fm_output_files files = {0};
    const char *temporary = NULL;
    char nowhere[96];
    snprintf(nowhere, sizeof nowhere, "%s/no/file", folder);
    assert_false(fm_output_files_add(&files, nowhere, &temporary));
    assert_false(fm_output_files_add(&files, folder, &temporary));
    assert_false(fm_output_files_add(&files, "/dev/null", &temporary));
    assert_true(fm_output_files_add(&files, one, &temporary));
    assert_false(fm_output_files_add(&files, one, &temporary));
    assert_int_equal(files.count, 1);
    fm_output_files_free(&files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_appear_at_the_commit, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(files_without_a_commit_leave_nothing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_name_that_cannot_be_given_takes_the_others_back, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(bad_paths_are_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

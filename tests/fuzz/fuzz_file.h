/* A file of the process's own in /tmp for a fuzz target that reads files, removed when the process ends. */
#ifndef FM_TESTS_FUZZ_FILE_H
#define FM_TESTS_FUZZ_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[64];

static void remove_file(void) { unlink(path); }

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    snprintf(path, sizeof path, "/tmp/flashmask_fuzz.%ld", (long)getpid());
    return atexit(remove_file);
}

#endif

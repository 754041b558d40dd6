#include "output_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char suffix[] = ".XXXXXX"; /* mkstemp's */

/* The folder of a path, "" for the current one, ended by '/'; what follows it is the name. */
static size_t folder_bytes(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? (size_t)(slash - path) + 1 : 0;
}

static bool stat_folder(const char *path, struct stat *status) {
    char folder[4096] = ".";
    const size_t bytes = folder_bytes(path);
    if (bytes >= sizeof folder) {
        return false;
    }
    if (bytes > 0) {
        memcpy(folder, path, bytes);
        folder[bytes] = '\0';
    }
    return stat(folder, status) == 0;
}

/* "x" and "./x" too. */
static bool same_place(const char *a, const char *b) {
    struct stat folder_a, folder_b;
    return strcmp(a + folder_bytes(a), b + folder_bytes(b)) == 0 && stat_folder(a, &folder_a) && stat_folder(b, &folder_b) &&
           folder_a.st_dev == folder_b.st_dev && folder_a.st_ino == folder_b.st_ino;
}

static bool is_replaceable(const fm_output_files *files, const char *path) {
    struct stat status;
    for (int i = 0; i < files->count; i++) {
        if (same_place(files->path[i], path)) {
            return fm_cli_fail("%s: two results would have this name", path);
        }
    }
    return stat(path, &status) != 0 || S_ISREG(status.st_mode) || fm_cli_fail("%s: is there and is no plain file", path);
}

/* mkstemp's mode 0600 would outlive the renaming. */
static void apply_umask(int file) {
    const mode_t mask = umask(0);
    umask(mask);
    (void)fchmod(file, 0666 & ~mask);
}

bool fm_output_files_add(fm_output_files *files, const char *path, const char **temporary) {
    if (files->count == FM_OUTPUT_FILES_MAX) {
        return fm_cli_fail("%s: more than %d files", path, FM_OUTPUT_FILES_MAX);
    }
    if (!is_replaceable(files, path)) {
        return false;
    }
    char *name = fm_cli_allocate((int64_t)(strlen(path) + sizeof suffix), 1);
    if (name == NULL) {
        return false;
    }
    memcpy(name, path, strlen(path));
    memcpy(name + strlen(path), suffix, sizeof suffix);
    const int file = mkstemp(name);
    if (file < 0) {
        free(name);
        return fm_cli_fail("%s: cannot be written: %s", path, strerror(errno));
    }
    apply_umask(file);
    close(file);
    files->path[files->count] = path;
    files->temporary[files->count] = name;
    files->count++;
    *temporary = name;
    return true;
}

bool fm_output_files_commit(fm_output_files *files) {
    for (int i = 0; i < files->count; i++) {
        if (rename(files->temporary[i], files->path[i]) != 0) {
            fm_cli_fail("%s: cannot be written: %s", files->path[i], strerror(errno));
            for (int k = 0; k < i; k++) {
                remove(files->path[k]);
            }
            return false;
        }
        free(files->temporary[i]);
        files->temporary[i] = NULL;
    }
    return true;
}

void fm_output_files_free(fm_output_files *files) {
    for (int i = 0; i < files->count; i++) {
        if (files->temporary[i] != NULL) {
            remove(files->temporary[i]);
            free(files->temporary[i]);
        }
    }
    *files = (fm_output_files){0};
}

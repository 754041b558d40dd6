#include "demo_pack.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct fm_demo_kind {
    const char *name, *file;
    fm_record_kind record;
} fm_demo_kind;

static const fm_demo_kind kinds[FM_DEMO_SETS] = {
    {"chat, SFT", "chat_turn_lengths.jsonl", FM_RECORD_DOCUMENT},
    {"pairs, DPO", "preference_lengths.tsv", FM_RECORD_PAIR},
    {"code, pre-training", "code_document_lengths.tsv", FM_RECORD_DOCUMENT},
};

const char *fm_demo_set_name(int index) { return kinds[index].name; }

bool fm_demo_set_load(int index, const char *data, int64_t capacity, fm_packed_set *out) {
    const fm_pack_request request = {kinds[index].record, capacity, FM_PACK_BEST_FIT, FM_PACK_SPLIT};
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", data, kinds[index].file);
    return fm_packed_set_load(path, &request, out);
}

/* The folder of the running program, then what CMake says lies between it and the installed length files. */
static void installed_data(char *out, size_t room) {
    char program[3072];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    snprintf(out, room, "%s/%s", program, FM_INSTALLED_DATA);
}

bool fm_demo_find_data(const char *given, char *out, size_t room) {
    if (given != NULL) {
        snprintf(out, room, "%s", given);
    } else if (access(FM_SOURCE_DATA, R_OK | X_OK) == 0) {
        snprintf(out, room, "%s", FM_SOURCE_DATA);
    } else {
        installed_data(out, room);
    }
    return access(out, R_OK | X_OK) == 0 || fm_cli_fail("--data: no length files in %s%s%s; name their folder", out,
                                                        given == NULL ? " or " : "", given == NULL ? FM_SOURCE_DATA : "");
}

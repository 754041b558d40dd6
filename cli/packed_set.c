#include "packed_set.h"

#include "records.h"

#include <inttypes.h>
#include <stdlib.h>

void fm_packed_set_free(fm_packed_set *set) {
    fm_packing_free(set->packing);
    *set = (fm_packed_set){0};
}

/* Record r is of the kind that is asked for, and is cut or fits. */
static bool check_record(const char *path, const fm_records *records, int64_t r, const fm_pack_request *request) {
    const int64_t fields = fm_records_fields(records, r), tokens = fm_records_sum(records, r);
    const bool may_cut = request->kind == FM_RECORD_DOCUMENT;
    if (request->kind == FM_RECORD_PAIR && fields != 3) {
        return fm_cli_fail("%s: record %" PRId64 " has %" PRId64 " numbers; a pair has three: prompt, chosen and rejected", path,
                           r, fields);
    }
    if (request->kind == FM_RECORD_QUESTION && fields == 0) {
        return fm_cli_fail("%s: record %" PRId64 " has no numbers; a question has its own length and those of its answers", path,
                           r);
    }
    return tokens <= request->capacity || (may_cut && request->overlong == FM_PACK_SPLIT) ||
           fm_cli_fail("%s: record %" PRId64 " has %" PRId64 " tokens, a sequence holds %" PRId64 "%s", path, r, tokens,
                       request->capacity, may_cut ? "; --overlong split cuts longer documents" : " and parts are not cut");
}

static bool pack_documents(const char *path, const fm_records *records, const fm_pack_request *request, fm_packing **out) {
    int64_t *lengths = fm_records_sums(records);
    const bool ok =
        lengths != NULL &&
        fm_cli_ok(fm_pack_lengths(records->count, lengths, request->capacity, request->policy, request->overlong, out), path);
    free(lengths);
    return ok;
}

static bool pack_questions(const char *path, const fm_records *records, const fm_pack_request *request, fm_packing **out) {
    fm_question *questions = fm_cli_allocate(records->count, sizeof *questions);
    for (int64_t r = 0; questions != NULL && r < records->count; r++) {
        const int64_t *fields = records->values + records->first[r];
        questions[r] = (fm_question){fields[0], fm_records_fields(records, r) - 1, fields + 1};
    }
    const bool ok = questions != NULL &&
                    fm_cli_ok(fm_pack_questions(records->count, questions, request->capacity, request->policy, out), path);
    free(questions);
    return ok;
}

static bool measure(fm_packed_set *set) {
    set->emptiest = set->sequences > 0 ? set->capacity : 0;
    for (int64_t s = 0; s < set->sequences; s++) {
        const fm_piece *pieces = NULL;
        int64_t count = 0;
        if (!fm_packed_set_pieces(set, s, &pieces, &count)) {
            return false;
        }
        int64_t tokens = 0;
        for (int64_t k = 0; k < count; k++) {
            tokens += pieces[k].length;
        }
        set->pieces += count;
        set->emptiest = tokens < set->emptiest ? tokens : set->emptiest;
    }
    return true;
}

bool fm_packed_set_load(const char *path, const fm_pack_request *request, fm_packed_set *out) {
    fm_records records = {0};
    fm_packed_set set = {.capacity = request->capacity};
    bool ok = fm_records_load(path, 0, &records);
    for (int64_t r = 0; ok && r < records.count; r++) {
        ok = check_record(path, &records, r, request);
        set.tokens += fm_records_sum(&records, r);
    }
    ok = ok && (request->kind == FM_RECORD_DOCUMENT ? pack_documents : pack_questions)(path, &records, request, &set.packing);
    set.records = records.count;
    set.sequences = fm_packing_sequence_count(set.packing);
    ok = ok && measure(&set);
    fm_records_free(&records);
    if (ok) {
        *out = set;
    } else {
        fm_packed_set_free(&set);
    }
    return ok;
}

bool fm_packed_set_pieces(const fm_packed_set *set, int64_t sequence, const fm_piece **pieces, int64_t *count) {
    return fm_cli_ok(fm_packing_sequence(set->packing, sequence, pieces, count), "packing");
}

bool fm_packed_set_mask(const fm_packed_set *set, int64_t sequence, fm_mask **out) {
    return fm_cli_ok(fm_packing_mask(set->packing, sequence, 1, true, out), "packed mask");
}

/* Placement of documents in sequences. */
#include "mask/pack.h"

#include <stdlib.h>

#include "core/memory.h"

enum { NONE = -1 }; /* no sequence */

/* Sequences that still have room, as a treap: a search tree over (room, sequence) that is a heap over a hash of the sequence,
 * so its depth is O(log n) for any input and its shape the same on every run. A node is a sequence. */
typedef struct open_sequence {
    int32_t room, left, right;
} open_sequence;

typedef struct room_tree {
    open_sequence *nodes;
    int32_t root;
} room_tree;

typedef struct placement {
    int64_t capacity;
    const fm_piece *input; /* [pieces], in input order */
    int64_t pieces;
    int32_t *sequence_of; /* [pieces] */
    int32_t sequences;
} placement;

static uint32_t priority(int32_t node) {
    uint32_t x = (uint32_t)node * 0x9e3779b1u;
    x = (x ^ (x >> 15)) * 0x85ebca77u;
    return x ^ (x >> 13);
}

static bool precedes(const room_tree *tree, int32_t a, int32_t b) {
    const int32_t room_a = tree->nodes[a].room, room_b = tree->nodes[b].room;
    return room_a != room_b ? room_a < room_b : a < b;
}

/* The sequence with least room that still holds `length` tokens, the earliest of equals; NONE if there is none. */
static int32_t tightest(const room_tree *tree, int64_t length) {
    int32_t found = NONE;
    for (int32_t at = tree->root; at != NONE;) {
        const open_sequence *node = &tree->nodes[at];
        if (node->room >= length) {
            found = at;
            at = node->left;
        } else {
            at = node->right;
        }
    }
    return found;
}

/* Where the search for `node` goes on below `at`. */
static int32_t *branch(room_tree *tree, int32_t node, int32_t at) {
    return precedes(tree, node, at) ? &tree->nodes[at].left : &tree->nodes[at].right;
}

static void insert(room_tree *tree, int32_t node) {
    int32_t *link = &tree->root;
    while (*link != NONE && priority(*link) >= priority(node)) {
        link = branch(tree, node, *link);
    }
    int32_t *below = &tree->nodes[node].left, *above = &tree->nodes[node].right;
    for (int32_t rest = *link; rest != NONE;) { /* splits the subtree that node displaces */
        if (precedes(tree, rest, node)) {
            *below = rest;
            below = &tree->nodes[rest].right;
            rest = *below;
        } else {
            *above = rest;
            above = &tree->nodes[rest].left;
            rest = *above;
        }
    }
    *below = *above = NONE;
    *link = node;
}

static void take_out(room_tree *tree, int32_t node) {
    int32_t *link = &tree->root;
    while (*link != node) {
        link = branch(tree, node, *link);
    }
    int32_t low = tree->nodes[node].left, high = tree->nodes[node].right;
    while (low != NONE && high != NONE) {
        if (priority(low) >= priority(high)) {
            *link = low;
            link = &tree->nodes[low].right;
            low = *link;
        } else {
            *link = high;
            link = &tree->nodes[high].left;
            high = *link;
        }
    }
    *link = low != NONE ? low : high;
}

static int ascending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static fm_status place_best_fit(placement *p) {
    uint64_t *order = NULL; /* capacity - length above, piece below: ascending is longest first, ties in input order */
    room_tree tree = {.root = NONE};
    fm_status status;
    FM_TRY_DONE(fm_allocate("packing order", p->pieces, sizeof *order, (void **)&order));
    FM_TRY_DONE(fm_allocate("open sequences", p->pieces, sizeof *tree.nodes, (void **)&tree.nodes));
    for (int64_t i = 0; i < p->pieces; i++) {
        order[i] = (uint64_t)(p->capacity - p->input[i].length) << 32 | (uint64_t)i;
    }
    qsort(order, (size_t)p->pieces, sizeof *order, ascending);
    for (int64_t i = 0; i < p->pieces; i++) {
        const int32_t piece = (int32_t)(order[i] & UINT32_MAX), length = (int32_t)p->input[piece].length;
        int32_t sequence = tightest(&tree, length);
        if (sequence != NONE) {
            take_out(&tree, sequence);
        } else {
            sequence = p->sequences++;
            tree.nodes[sequence].room = (int32_t)p->capacity;
        }
        tree.nodes[sequence].room -= length;
        p->sequence_of[piece] = sequence;
        if (tree.nodes[sequence].room > 0) {
            insert(&tree, sequence);
        }
    }
done:
    free(order);
    free(tree.nodes);
    return status;
}

static void place_arrival(placement *p) {
    int64_t room = 0;
    for (int64_t i = 0; i < p->pieces; i++) {
        if (p->input[i].length > room) {
            room = p->capacity;
            p->sequences++;
        }
        room -= p->input[i].length;
        p->sequence_of[i] = p->sequences - 1;
    }
}

fm_status fm_pack_check(int64_t capacity, fm_pack_policy policy) {
    FM_CHECK(capacity >= 1 && capacity <= INT32_MAX, FM_ERROR_ARGUMENT, "capacity: is %lld, needs 1 .. 2^31 - 1",
             (long long)capacity);
    FM_CHECK(policy == FM_PACK_BEST_FIT || policy == FM_PACK_ARRIVAL, FM_ERROR_ARGUMENT,
             "policy: is %d, needs FM_PACK_BEST_FIT or FM_PACK_ARRIVAL", (int)policy);
    return FM_OK;
}

/* Checks each length and counts the pieces. */
static fm_status count_pieces(int64_t n, const int64_t *lengths, int64_t capacity, fm_pack_overlong overlong, int64_t *pieces) {
    *pieces = 0;
    for (int64_t i = 0; i < n; i++) {
        FM_CHECK(lengths[i] >= 0, FM_ERROR_ARGUMENT, "lengths[%lld]: is %lld, needs 0 or more", (long long)i,
                 (long long)lengths[i]);
        FM_CHECK(lengths[i] <= capacity || overlong == FM_PACK_SPLIT, FM_ERROR_ARGUMENT,
                 "lengths[%lld]: is %lld, capacity is %lld (FM_PACK_SPLIT cuts longer documents)", (long long)i,
                 (long long)lengths[i], (long long)capacity);
        const int64_t more = lengths[i] / capacity + (lengths[i] % capacity > 0);
        FM_CHECK(more <= INT32_MAX - *pieces, FM_ERROR_LIMIT,
                 "lengths[%lld]: is %lld, with it there are more than 2^31 - 1 pieces of at most %lld tokens", (long long)i,
                 (long long)lengths[i], (long long)capacity);
        *pieces += more;
    }
    return FM_OK;
}

static void cut(int64_t n, const int64_t *lengths, int64_t capacity, fm_piece *pieces) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t start = 0; start < lengths[i]; start += pieces++->length) {
            const int64_t left = lengths[i] - start;
            *pieces = (fm_piece){.document = i, .start = start, .length = left < capacity ? left : capacity};
        }
    }
}

/* Groups the placed pieces by sequence, in input order within one. */
static fm_status gather(const placement *p, fm_packing *out) {
    out->sequences = p->sequences;
    FM_TRY(fm_allocate("packing", out->sequences + 1, sizeof *out->first, (void **)&out->first));
    FM_TRY(fm_allocate("packed pieces", p->pieces, sizeof *out->pieces, (void **)&out->pieces));
    for (int64_t i = 0; i < p->pieces; i++) {
        out->first[p->sequence_of[i] + 1]++;
    }
    for (int64_t s = 0; s < out->sequences; s++) {
        out->first[s + 1] += out->first[s];
    }
    for (int64_t i = p->pieces - 1; i >= 0; i--) { /* ends become starts as the pieces go in from behind */
        out->pieces[--out->first[p->sequence_of[i] + 1]] = p->input[i];
    }
    for (int64_t s = 0; s < out->sequences; s++) {
        out->first[s] = out->first[s + 1];
    }
    out->first[out->sequences] = p->pieces;
    return FM_OK;
}

fm_status fm_pack_place(int64_t n, const int64_t *lengths, int64_t capacity, fm_pack_policy policy, int64_t pieces,
                        fm_packing **out) {
    placement p = {.capacity = capacity, .pieces = pieces};
    fm_packing *packing = NULL;
    fm_piece *input = NULL;
    fm_status status;
    FM_TRY_DONE(fm_allocate("packing", 1, sizeof *packing, (void **)&packing));
    FM_TRY_DONE(fm_allocate("pieces", p.pieces, sizeof *input, (void **)&input));
    FM_TRY_DONE(fm_allocate("placement", p.pieces, sizeof *p.sequence_of, (void **)&p.sequence_of));
    packing->capacity = capacity;
    cut(n, lengths, capacity, input);
    p.input = input;
    if (policy == FM_PACK_BEST_FIT) {
        FM_TRY_DONE(place_best_fit(&p));
    } else {
        place_arrival(&p);
    }
    FM_TRY_DONE(gather(&p, packing));
    *out = packing;
    packing = NULL;
done:
    free(input);
    free(p.sequence_of);
    fm_packing_free(packing);
    return status;
}

fm_status fm_pack_lengths(int64_t n, const int64_t *lengths, int64_t capacity, fm_pack_policy policy, fm_pack_overlong overlong,
                          fm_packing **out) {
    int64_t pieces;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_CHECK(n >= 0, FM_ERROR_ARGUMENT, "n: is %lld, needs 0 or more", (long long)n);
    FM_CHECK(lengths != NULL || n == 0, FM_ERROR_ARGUMENT, "lengths: is NULL");
    FM_TRY(fm_pack_check(capacity, policy));
    FM_CHECK(overlong == FM_PACK_REFUSE || overlong == FM_PACK_SPLIT, FM_ERROR_ARGUMENT,
             "overlong: is %d, needs FM_PACK_REFUSE or FM_PACK_SPLIT", (int)overlong);
    FM_TRY(count_pieces(n, lengths, capacity, overlong, &pieces));
    return fm_pack_place(n, lengths, capacity, policy, pieces, out);
}

void fm_packing_free(fm_packing *packing) {
    if (packing != NULL) {
        free(packing->first);
        free(packing->pieces);
        free(packing->questions);
        free(packing->answer_lengths);
        free(packing);
    }
}

int64_t fm_packing_sequence_count(const fm_packing *packing) { return packing != NULL ? packing->sequences : 0; }

int64_t fm_packing_capacity(const fm_packing *packing) { return packing != NULL ? packing->capacity : 0; }

fm_status fm_packing_sequence(const fm_packing *packing, int64_t sequence, const fm_piece **pieces, int64_t *count) {
    fm_clear_error();
    FM_REQUIRE(packing);
    FM_REQUIRE(pieces);
    FM_REQUIRE(count);
    FM_CHECK(sequence >= 0 && sequence < packing->sequences, FM_ERROR_ARGUMENT, "sequence: is %lld, the packing has %lld",
             (long long)sequence, (long long)packing->sequences);
    *pieces = packing->pieces + packing->first[sequence];
    *count = packing->first[sequence + 1] - packing->first[sequence];
    return FM_OK;
}

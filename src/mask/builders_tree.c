/* Prefix trees: segments that share what comes before them. */
#include "core/memory.h"
#include "mask/builders.h"

#include <stdlib.h>

/* Child lists of the nodes; node `nodes` is the parent of all roots. Ascending within a parent. */
typedef struct tree {
    int64_t nodes;
    int32_t *first_child, *next_sibling; /* [nodes + 1]; -1: none */
    int64_t *start, *end;                /* [nodes + 1]: tokens of the node and everything below it */
} tree;

static void free_tree(tree *t) {
    free(t->first_child);
    free(t->next_sibling);
    free(t->start);
    free(t->end);
}

static fm_status allocate_tree(tree *t) {
    FM_TRY(fm_allocate("prefix tree", t->nodes + 1, sizeof *t->first_child, (void **)&t->first_child));
    FM_TRY(fm_allocate("prefix tree", t->nodes + 1, sizeof *t->next_sibling, (void **)&t->next_sibling));
    FM_TRY(fm_allocate("prefix tree", t->nodes + 1, sizeof *t->start, (void **)&t->start));
    return fm_allocate("prefix tree", t->nodes + 1, sizeof *t->end, (void **)&t->end);
}

static void link_children(tree *t, const int64_t *parent) {
    for (int64_t k = 0; k <= t->nodes; k++) {
        t->first_child[k] = t->next_sibling[k] = -1;
        t->start[k] = -1; /* not placed */
    }
    for (int64_t k = t->nodes - 1; k >= 0; k--) {
        const int64_t above = parent[k] < 0 ? t->nodes : parent[k];
        t->next_sibling[k] = t->first_child[above];
        t->first_child[above] = (int32_t)k;
    }
}

/* Depth first from the roots: a chain of a million nodes takes no stack. */
static void place_nodes(tree *t, const int64_t *parent, const int64_t *length) {
    int64_t at = 0, node = t->nodes;
    t->start[node] = 0;
    while (true) {
        if (t->first_child[node] >= 0) {
            node = t->first_child[node];
        } else {
            while (node < t->nodes && t->next_sibling[node] < 0) { /* last child: the parent is complete too */
                t->end[node] = at;
                node = parent[node] < 0 ? t->nodes : parent[node];
            }
            t->end[node] = at;
            if (node == t->nodes) {
                return;
            }
            node = t->next_sibling[node];
        }
        t->start[node] = at;
        at += length[node];
    }
}

static fm_status check_nodes(int64_t nodes, const int64_t *parent, const int64_t *length, int64_t *total) {
    *total = 0;
    FM_TRY(fm_check_array("nodes", "parent", nodes, parent));
    FM_TRY(fm_check_array("nodes", "length", nodes, length));
    for (int64_t k = 0; k < nodes; k++) {
        FM_CHECK(parent[k] >= -1 && parent[k] < nodes, FM_ERROR_ARGUMENT,
                 "parent[%lld]: is %lld, needs a node 0 .. %lld or -1 for a root", (long long)k, (long long)parent[k],
                 (long long)(nodes - 1));
        FM_CHECK(fm_add_length(length[k], total), FM_ERROR_ARGUMENT,
                 "length[%lld]: is %lld after %lld tokens, needs 0 or more and 2^31 - 1 tokens or fewer in all", (long long)k,
                 (long long)length[k], (long long)*total);
    }
    return FM_OK;
}

/* A node below no root is on a cycle or below one. */
static fm_status check_placed(const tree *t, const int64_t *parent) {
    for (int64_t k = 0; k < t->nodes; k++) {
        FM_CHECK(t->start[k] >= 0, FM_ERROR_ARGUMENT,
                 "parent[%lld]: is %lld, and following parents from there never ends at a root", (long long)k,
                 (long long)parent[k]);
    }
    return FM_OK;
}

fm_status fm_mask_prefix_tree(int64_t nodes, const int64_t *parent, const int64_t *length, int64_t *offset, fm_mask **out) {
    fm_mask_writer writer = {0};
    tree t = {.nodes = nodes};
    int64_t total;
    fm_clear_error();
    FM_REQUIRE(out);
    FM_TRY(check_nodes(nodes, parent, length, &total));
    fm_status status;
    FM_TRY_DONE(allocate_tree(&t));
    link_children(&t, parent);
    place_nodes(&t, parent, length);
    FM_TRY_DONE(check_placed(&t, parent));
    FM_TRY_DONE(fm_builder_open(&writer, 1, total, total, 1));
    for (int64_t k = 0; k < nodes; k++) {
        FM_TRY_DONE(fm_write_window(&writer, 0, t.start[k], t.start[k] + length[k], FM_CAUSAL, t.end[k]));
    }
done:
    status = fm_builder_finish(&writer, status, out);
    for (int64_t k = 0; status == FM_OK && offset != NULL && k < nodes; k++) {
        offset[k] = t.start[k];
    }
    free_tree(&t);
    return status;
}

/* Prefix trees, against the words of their contract. */
#include <flashmask/masks.h>

#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"
#include "support/expect.h"
#include "support/random.h"
#include "support/truth.h"

enum { DRAWS = 400, MOST_NODES = 16, MOST_TOKENS = MOST_NODES * 5 };

typedef struct forest {
    int64_t nodes, parent[MOST_NODES], length[MOST_NODES];
    /* a recursive walk's account: first token, and numbers of the nodes on entering and after the last one below */
    int64_t offset[MOST_NODES], tin[MOST_NODES], tout[MOST_NODES], tokens, entered;
    int64_t node_of[MOST_TOKENS];
} forest;

static void walk(forest *f, int64_t node) {
    f->tin[node] = f->entered++;
    f->offset[node] = f->tokens;
    for (int64_t k = 0; k < f->length[node]; k++) {
        f->node_of[f->tokens++] = node;
    }
    for (int64_t child = 0; child < f->nodes; child++) {
        if (f->parent[child] == node) {
            walk(f, child);
        }
    }
    f->tout[node] = f->entered;
}

/* Nodes in random order: names are shuffled, so that parents come after their children as often as before. */
static forest draw_forest(test_random *r) {
    forest f = {.nodes = random_integer(r, 0, MOST_NODES)};
    int64_t name[MOST_NODES] = {0};
    for (int64_t k = 0; k < f.nodes; k++) {
        const int64_t at = random_integer(r, 0, k);
        name[k] = name[at];
        name[at] = k;
    }
    for (int64_t k = 0; k < f.nodes; k++) {
        f.parent[name[k]] = k == 0 || random_chance(r, 0.2) ? -1 : name[random_integer(r, 0, k - 1)];
        f.length[name[k]] = random_chance(r, 0.2) ? 0 : random_integer(r, 1, 5);
    }
    for (int64_t k = 0; k < f.nodes; k++) {
        if (f.parent[k] < 0) {
            walk(&f, k);
        }
    }
    return f;
}

static bool ancestor_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const forest *f = v;
    (void)b, (void)h;
    if (f->node_of[i] == f->node_of[j]) {
        return j <= i;
    }
    int64_t node = f->node_of[i];
    while (node >= 0 && node != f->node_of[j]) {
        node = f->parent[node];
    }
    return node >= 0;
}

/* As TRL states it: https://github.com/huggingface/trl/pull/7328 */
static bool euler_rule(const void *v, int64_t b, int64_t h, int64_t i, int64_t j) {
    const forest *f = v;
    const int64_t q = f->node_of[i], k = f->node_of[j];
    (void)b, (void)h;
    return f->tin[k] <= f->tin[q] && f->tin[q] < f->tout[k] && j <= i;
}

static void prefix_tree_follows_its_contract(void **state) {
    test_random r = {41};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const forest f = draw_forest(&r);
        int64_t offset[MOST_NODES];
        fm_mask *mask = NULL;
        succeed(fm_mask_prefix_tree(f.nodes, f.parent, f.length, offset, &mask));
        assert_int_equal(fm_mask_get_shape(mask).rows, f.tokens);
        assert_true(fm_mask_interval_count(mask) <= 1);
        assert_memory_equal(offset, f.offset, (size_t)f.nodes * sizeof *offset);
        assert_mask_follows(mask, ancestor_rule, &f);
        succeed(fm_mask_prefix_tree(f.nodes, f.parent, f.length, NULL, &mask));
        assert_mask_follows(mask, euler_rule, &f);
    }
}

/* https://github.com/linkedin/Liger-Kernel/issues/476 */
static void root_with_leaf_answers_is_share_question(void **state) {
    test_random r = {42};
    (void)state;
    for (int k = 0; k < DRAWS; k++) {
        const int64_t answers = random_integer(&r, 0, 6), parent[] = {-1, 0, 0, 0, 0, 0, 0};
        int64_t length[7];
        fm_mask *tree = NULL, *question = NULL;
        for (int64_t a = 0; a <= answers; a++) {
            length[a] = random_integer(&r, 0, 6);
        }
        succeed(fm_mask_prefix_tree(answers + 1, parent, length, NULL, &tree));
        succeed(fm_mask_share_question(1, &(fm_question){length[0], answers, length + 1}, false, 0, &question));
        assert_true(fm_mask_equal(tree, question));
        fm_mask_free(tree);
        fm_mask_free(question);
    }
}

static void broken_trees_are_refused(void **state) {
    const int64_t length[] = {1, 1, 1, 1};
    int64_t offset[4] = {7, 7, 7, 7};
    fm_mask *mask = NULL;
    (void)state;
    const struct {
        int64_t parent[4];
        const char *words;
    } cases[] = {
        {{0, -1, -1, -1}, "parent[0]: is 0, and following parents"},
        {{-1, 2, 1, 0}, "parent[1]: is 2, and following parents"},
        {{-1, 0, 3, 2}, "parent[2]: is 3, and following parents"},
        {{1, 2, 3, 0}, "parent[0]: is 1, and following parents"},
        {{-1, 0, 1, 4}, "parent[3]: is 4, needs a node 0 .. 3 or -1"},
        {{-1, -2, 1, 1}, "parent[1]: is -2, needs a node"},
        {{-1, 0, INT64_MIN, 1}, "parent[2]: is -9223372036854775808, needs a node"},
        {{-1, 0, (INT64_C(1) << 32) + 1, 1}, "parent[2]: is 4294967297, needs a node"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        refuse(fm_mask_prefix_tree(4, cases[k].parent, length, offset, &mask), FM_ERROR_ARGUMENT, cases[k].words);
    }
    const int64_t chain[] = {-1, 0}, huge[] = {INT32_MAX, 1}, negative[] = {1, -1};
    refuse(fm_mask_prefix_tree(2, chain, huge, offset, &mask), FM_ERROR_ARGUMENT, "length[1]: is 1 after 2147483647 tokens");
    refuse(fm_mask_prefix_tree(2, chain, negative, offset, &mask), FM_ERROR_ARGUMENT, "length[1]: is -1");
    refuse(fm_mask_prefix_tree(2, NULL, length, offset, &mask), FM_ERROR_ARGUMENT, "parent: is NULL");
    refuse(fm_mask_prefix_tree(2, chain, NULL, offset, &mask), FM_ERROR_ARGUMENT, "length: is NULL");
    refuse(fm_mask_prefix_tree(-1, chain, length, offset, &mask), FM_ERROR_ARGUMENT, "nodes: is -1");
    refuse(fm_mask_prefix_tree(2, chain, length, offset, NULL), FM_ERROR_ARGUMENT, "out: is NULL");
    assert_null(mask);
    for (int k = 0; k < 4; k++) {
        assert_int_equal(offset[k], 7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefix_tree_follows_its_contract),
        cmocka_unit_test(root_with_leaf_answers_is_share_question),
        cmocka_unit_test(broken_trees_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

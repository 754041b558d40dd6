#include "support/pairwise.h"

#include <stdlib.h>
#include <string.h>

#include "support/cmocka_all.h"

typedef struct pair_table {
    int factors, width; /* width: levels of all factors together */
    int first[PAIRWISE_MOST_FACTORS + 1];
    uint8_t *seen; /* [width, width], used for the lower factor first */
    int left;
} pair_table;

static void table_open(pair_table *t, int factors, const int *levels) {
    assert_in_range(factors, 2, PAIRWISE_MOST_FACTORS);
    *t = (pair_table){.factors = factors};
    for (int f = 0; f < factors; f++) {
        t->first[f + 1] = t->first[f] + levels[f];
        t->left += levels[f] * t->first[f];
    }
    t->width = t->first[factors];
    t->seen = calloc((size_t)t->width * (size_t)t->width, 1);
    assert_non_null(t->seen);
}

static uint8_t *entry(const pair_table *t, int f, int level_f, int g, int level_g) {
    const int a = t->first[f] + level_f, b = t->first[g] + level_g;
    return &t->seen[a < b ? a * t->width + b : b * t->width + a];
}

static void mark_row(pair_table *t, const int *row) {
    for (int f = 0; f < t->factors; f++) {
        for (int g = f + 1; g < t->factors; g++) {
            uint8_t *seen = entry(t, f, row[f], g, row[g]);
            t->left -= *seen == 0;
            *seen = 1;
        }
    }
}

/* New pairs that a level of factor f makes with the levels chosen so far (-1: not chosen). */
static int gain(const pair_table *t, const int *row, int f, int level) {
    int count = 0;
    for (int g = 0; g < t->factors; g++) {
        count += g != f && row[g] >= 0 && *entry(t, f, level, g, row[g]) == 0;
    }
    return count;
}

static void first_unseen(const pair_table *t, int *row) {
    for (int f = 0; f < t->factors; f++) {
        for (int g = f + 1; g < t->factors; g++) {
            for (int a = 0; a < t->first[f + 1] - t->first[f]; a++) {
                for (int b = 0; b < t->first[g + 1] - t->first[g]; b++) {
                    if (*entry(t, f, a, g, b) == 0) {
                        row[f] = a;
                        row[g] = b;
                        return;
                    }
                }
            }
        }
    }
}

static void fill_row(const pair_table *t, const int *levels, test_random *random, int *row) {
    const int start = (int)random_integer(random, 0, t->factors - 1);
    for (int k = 0; k < t->factors; k++) {
        const int f = (start + k) % t->factors;
        if (row[f] >= 0) {
            continue;
        }
        const int offset = (int)random_integer(random, 0, levels[f] - 1);
        int best = offset;
        for (int i = 1; i < levels[f]; i++) {
            const int level = (offset + i) % levels[f];
            best = gain(t, row, f, level) > gain(t, row, f, best) ? level : best;
        }
        row[f] = best;
    }
}

int pairwise_cover(int factors, const int *levels, test_random *random, int **rows) {
    pair_table table;
    table_open(&table, factors, levels);
    int count = 0;
    *rows = NULL;
    while (table.left > 0) {
        *rows = realloc(*rows, (size_t)(count + 1) * (size_t)factors * sizeof **rows);
        assert_non_null(*rows);
        int *row = *rows + count++ * factors;
        memset(row, 0xff, (size_t)factors * sizeof *row);
        first_unseen(&table, row);
        fill_row(&table, levels, random, row);
        mark_row(&table, row);
    }
    free(table.seen);
    return count;
}

bool pairwise_is_covered(int factors, const int *levels, const int *rows, int count) {
    pair_table table;
    table_open(&table, factors, levels);
    for (int i = 0; i < count; i++) {
        mark_row(&table, rows + i * factors);
    }
    free(table.seen);
    return table.left == 0;
}

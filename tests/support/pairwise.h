/* Pairwise covering sets: few rows in which every pair of levels of every two factors occurs. */
#ifndef FM_TESTS_PAIRWISE_H
#define FM_TESTS_PAIRWISE_H

#include "support/random.h"

enum { PAIRWISE_MOST_FACTORS = 16 };

/* Greedy: each row starts from a pair not seen yet and takes, factor by factor, the level that covers most new pairs.
 * Returns the number of rows; *rows is [count][factors], released with free(). */
int pairwise_cover(int factors, const int *levels, test_random *random, int **rows);

/* True if every pair occurs. */
bool pairwise_is_covered(int factors, const int *levels, const int *rows, int count);

#endif

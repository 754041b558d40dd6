/* No data race: every access that two threads share is ordered by a join, a barrier, a critical section or a reduction. */
#include <stdio.h>

enum { COUNT = 10000 };

static double values[COUNT];

int main(void) {
    double sum = 0;
    for (int round = 0; round < 20; round++) {
#pragma omp parallel for num_threads(4) schedule(dynamic)
        for (int i = 0; i < COUNT; i++) {
            values[i] = i * round;
        }
#pragma omp parallel num_threads(4) reduction(+ : sum)
        {
#pragma omp for
            for (int i = 0; i < COUNT; i++) {
                sum += values[COUNT - 1 - i];
            }
#pragma omp critical
            values[0] += 1;
#pragma omp barrier
#pragma omp single
            values[1] = values[0];
        }
        sum += values[1];
    }
    printf("%g\n", sum);
    return 0;
}

/* A data race on purpose: threads add to one counter. */
#include <stdio.h>

int main(void) {
    long sum = 0;
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 1000; i++) {
        sum += i;
    }
    printf("%ld\n", sum);
    return 0;
}

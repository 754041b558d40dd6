/* Prints how long a device plan takes to build from vectors, in microseconds: median of single updates between events, and of
 * replays of a captured update. Not a test. Arguments: numbers of keys. */
#include <flashmask/masks.h>

#include <stdio.h>

#include "device_plan_checks.h"
#include "support/random_mask.h"

enum { ROUNDS = 51 };

typedef struct timer {
    cudaStream_t stream;
    cudaEvent_t start, end;
    float us[ROUNDS];
} timer;

static int by_time(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static float median(timer *t) {
    qsort(t->us, ROUNDS, sizeof *t->us, by_time);
    return t->us[ROUNDS / 2];
}

static void stop(timer *t, int round) {
    float ms;
    cuda(cudaEventRecord(t->end, t->stream));
    cuda(cudaEventSynchronize(t->end));
    cuda(cudaEventElapsedTime(&ms, t->start, t->end));
    t->us[round] = ms * 1000.0f;
}

static float time_updates(timer *t, fm_plan *plan, const fm_mask_vectors *vectors) {
    for (int round = -3; round < ROUNDS; round++) {
        cuda(cudaEventRecord(t->start, t->stream));
        succeed(fm_plan_update_from_vectors(plan, vectors, t->stream));
        stop(t, round < 0 ? 0 : round);
    }
    return median(t);
}

static float time_replays(timer *t, fm_plan *plan, const fm_mask_vectors *vectors) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cuda(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeGlobal));
    succeed(fm_plan_update_from_vectors(plan, vectors, t->stream));
    cuda(cudaStreamEndCapture(t->stream, &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = -3; round < ROUNDS; round++) {
        cuda(cudaEventRecord(t->start, t->stream));
        cuda(cudaGraphLaunch(exec, t->stream));
        stop(t, round < 0 ? 0 : round);
    }
    cuda(cudaGraphExecDestroy(exec));
    cuda(cudaGraphDestroy(graph));
    return median(t);
}

/* The mask's intervals on the device, as FM_VECTORS_INTERVALS: [Sk, intervals, 2]. */
static fm_mask_vectors upload(const fm_mask *mask) {
    const fm_mask_view *view = &mask->view;
    const int64_t keys = view->shape.columns, m = view->intervals, elements = keys * m;
    fm_interval *intervals = malloc((size_t)elements * sizeof *intervals);
    fm_mask_vectors v = FM_MASK_VECTORS_INIT;
    void *data = NULL;
    assert_non_null(intervals);
    for (int64_t i = 0; i < elements; i++) {
        intervals[i] = view->bounds[i % m * keys + i / m];
    }
    cuda(cudaMalloc(&data, (size_t)elements * sizeof *intervals));
    cuda(cudaMemcpy(data, intervals, (size_t)elements * sizeof *intervals, cudaMemcpyHostToDevice));
    free(intervals);
    v.format = FM_VECTORS_INTERVALS;
    v.shape = view->shape;
    v.vectors = (int32_t)(2 * m);
    v.data = data;
    v.device = gpu;
    v.stride[2] = 2 * m;
    v.stride[3] = 1;
    return v;
}

static void time_mask(timer *t, const char *name, fm_mask *mask) {
    const fm_plan_options options = FM_PLAN_OPTIONS_INIT;
    const fm_mask_vectors vectors = upload(mask);
    device_plan d = open_plan(mask->view.shape, mask->view.intervals, &options);
    succeed(fm_plan_create_from_vectors(&vectors, &options, d.buffer, d.bytes, t->stream, &d.plan));
    const float single = time_updates(t, d.plan, &vectors), replayed = time_replays(t, d.plan, &vectors);
    printf("%-17s %8lld keys, %d intervals: %8.1f us, %8.1f us as a graph, %6.1f MB\n", name, (long long)mask->view.shape.columns,
           mask->view.intervals, (double)single, (double)replayed, (double)d.bytes / 1e6);
    cuda(cudaFree((void *)vectors.data));
    close_plan(&d);
    fm_mask_free(mask);
}

static void time_length(timer *t, int64_t n) {
    const int64_t documents[] = {n / 2, n / 4, n / 8, n - n / 2 - n / 4 - n / 8};
    fm_mask *mask = NULL;
    succeed(fm_mask_causal(n, n, &mask));
    time_mask(t, "causal", mask);
    succeed(fm_mask_documents(4, documents, true, 0, &mask));
    time_mask(t, "causal documents", mask);
    succeed(fm_mask_random_eviction(n, 1, n / 2, 1, &mask));
    time_mask(t, "random eviction", mask);
    succeed(fm_mask_global_window(n, n, n / 512, n / 32, n / 32, &mask));
    time_mask(t, "global and window", mask);
    test_random random = {1};
    time_mask(t, "random intervals", random_mask(&random, (fm_mask_shape){1, 1, n, n}, FM_MAX_INTERVALS, NULL));
}

int main(int argc, char **argv) {
    timer t;
    if (!gpu_is_present()) {
        return SKIPPED;
    }
    cuda(cudaStreamCreate(&t.stream));
    cuda(cudaEventCreate(&t.start));
    cuda(cudaEventCreate(&t.end));
    for (int i = 1; i < argc; i++) {
        time_length(&t, atoll(argv[i]));
    }
    return 0;
}

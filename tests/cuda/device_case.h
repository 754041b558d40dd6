/* attention_case.h on the GPU: the same cases and inputs, every array in device memory of the same layout. */
#ifndef FM_TESTS_DEVICE_CASE_H
#define FM_TESTS_DEVICE_CASE_H

#include "device_memory.h"
#include "support/attention_case.h"

/* The largest head dim that this build has kernels for. */
#ifndef FM_TEST_MOST_HEAD_DIM
#define FM_TEST_MOST_HEAD_DIM 256
#endif
static inline int64_t device_head_dim(int64_t dim) { return dim < FM_TEST_MOST_HEAD_DIM ? dim : FM_TEST_MOST_HEAD_DIM; }

/* A simple case in bf16 with a GPU's tolerance; and the mask of documents of a pack. */
attention_case device_half_case(int64_t batch, int64_t rows, int64_t columns, int64_t heads, int64_t heads_kv, int64_t head_dim);
fm_mask *device_documents(const int32_t *cu_q, const int32_t *cu_k, int64_t documents, bool causal, int64_t Sq, int64_t Sk);

/* Blocks of 64 x 64 pairs, each visible with this probability; at most 512 rows, so no key has more than FM_MAX_INTERVALS intervals. */
fm_mask *device_blocks(test_random *random, int64_t rows, int64_t columns, double probability);

/* ---- plans ---- */

typedef struct device_plan {
    fm_plan *plan;
    device_memory buffer, vectors; /* vectors: none in a plan of a host mask */
    fm_mask_vectors description;
} device_plan;

/* Of the case's mask (a full one where it has none) and flags. */
device_plan device_plan_of_mask(const attention_case *c, cudaStream_t stream);
/* The same by its visible intervals in device memory; the mask has no fallback. */
device_plan device_plan_of_vectors(const attention_case *c, cudaStream_t stream);
/* Such vectors on the host, [Bm, Hm, Sk, 2 k], k intervals a key; the caller frees them. And what says so of data on the device. */
int32_t *device_plan_vectors(const fm_mask *mask, size_t *bytes);
fm_mask_vectors device_plan_description(const fm_mask *mask, const int32_t *data);
void device_plan_free(device_plan *plan); /* checks the guards of its buffer */

/* ---- one call in each direction ---- */

typedef struct device_options {
    const device_plan *plan; /* NULL: built inside the calls */
    bool deterministic, no_skip;
    cudaStream_t stream;
    fm_backend_id backend; /* AUTO by default: the newest kernels that the device has */
    size_t shift;          /* bytes by which each tensor's data is off its alignment of 256 */
} device_options;

enum { INPUT_QUERY, INPUT_KEY, INPUT_VALUE, INPUT_GRAD_OUTPUT, INPUT_SINKS, INPUT_GRAD_LSE, INPUT_COUNT };
enum { WORKSPACE_FORWARD, WORKSPACE_BACKWARD, WORKSPACE_COUNT };

typedef struct device_call {
    attention_case attention;
    attention_results results; /* on the host, of the layout that the device's have */
    fm_attention_forward_args forward;
    fm_attention_backward_args backward;
    device_memory inputs[INPUT_COUNT], outputs[RESULT_COUNT], workspace[WORKSPACE_COUNT];
} device_call;

/* Copies the inputs to the device, poisons results and workspaces. */
device_call device_call_make(const attention_case *c, const attention_inputs *inputs, device_options options);
/* New contents for the inputs, extents as before. */
void device_call_write(const device_call *call, const attention_inputs *inputs);
/* Results and workspaces poisoned again. */
void device_call_poison(const device_call *call);
/* On the stream of the options; wait for nothing. */
void device_call_launch_forward(device_call *call);
void device_call_launch_backward(device_call *call);
void device_call_launch(device_call *call); /* both */
/* Waits; the device's results into call->results. Fails the test if a byte outside of them was written. */
void device_call_read(const device_call *call);
/* Reads, frees the device memory; the results are the caller's. */
attention_results device_call_finish(device_call *call);
void device_call_free(device_call *call);

/* All of it: the results of one forward and one backward call. */
attention_results device_run(const attention_case *c, const attention_inputs *inputs, device_options options);

/* ---- cases ---- */

/* Ways to run a case, all of which must agree with the oracle: plan built inside; plan of the mask, deterministic; plan of vectors
 * (of the mask where it has a fallback), on a stream, tensors 4 bytes off their alignment; plan built inside, the kernels of
 * sm_80. */
enum { DEVICE_WAYS = 4 };
attention_results device_run_way(const attention_case *c, const attention_inputs *inputs, int way);

/* Draws inputs and compares every way with the oracle. */
void device_assert_case(const attention_case *c, test_random *random);

#endif

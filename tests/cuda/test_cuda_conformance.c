/* The CUDA backend against the f64 oracle: the cases of support/conformance_cases.h, each in every way of device_case.h.
 * `test_cuda_conformance draws FIRST COUNT` runs random draws instead. */
#include "device_case.h"
#include "support/conformance_cases.h"

int main(int argc, char **argv) {
    device_require();
    return conformance_main(argc, argv,
                            &(conformance_subject){.head_dim_step = 8,
                                                   .most_head_dim = FM_TEST_MOST_HEAD_DIM,
                                                   .is_gpu = true,
                                                   .ways = DEVICE_WAYS,
                                                   .run = device_run_way});
}

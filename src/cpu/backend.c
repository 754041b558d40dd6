#include "cpu/passes.h"

/* Scratch is allocated by the calls themselves, 0.4 MB for each thread. */
static fm_status forward_workspace(const fm_problem *problem, size_t *bytes) {
    (void)problem;
    *bytes = 0;
    return FM_OK;
}

static fm_status backward_workspace(const fm_backward_problem *problem, size_t *bytes) {
    (void)problem;
    *bytes = 0;
    return FM_OK;
}

const fm_backend fm_backend_cpu = {
    .id = FM_BACKEND_CPU,
    .name = "cpu",
    .device = FM_CPU,
    .uses_plan = true,
    .takes_f64 = false,
    .forward_workspace = forward_workspace,
    .backward_workspace = backward_workspace,
    .forward = fm_cpu_forward,
    .backward = fm_cpu_backward,
};

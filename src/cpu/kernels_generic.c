#include "cpu/vec_generic.h"
#define FM_CPU_KERNELS fm_cpu_kernels_generic
#define FM_CPU_KERNELS_NAME "generic"
#include "cpu/kernels.inc"

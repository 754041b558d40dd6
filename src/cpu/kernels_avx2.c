#include "cpu/vec_avx2.h"
#define FM_CPU_KERNELS fm_cpu_kernels_avx2
#define FM_CPU_KERNELS_NAME "avx2"
#include "cpu/kernels.inc"

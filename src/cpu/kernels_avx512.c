#include "cpu/vec_avx512.h"
#define FM_CPU_KERNELS fm_cpu_kernels_avx512
#define FM_CPU_KERNELS_NAME "avx512"
#include "cpu/kernels.inc"

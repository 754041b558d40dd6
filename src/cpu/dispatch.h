/* Which tile kernels run: the best that the processor has, capped by the environment. */
#ifndef FM_CPU_DISPATCH_H
#define FM_CPU_DISPATCH_H

#include "cpu/kernels.h"

/* The best table that this processor runs and that the environment variable FLASHMASK_CPU_ISA allows: generic, avx2 or
 * avx512 is the highest to use; unset or empty: no cap. Read on every call. FM_ERROR_ARGUMENT for another value. */
fm_status fm_cpu_kernels_choose(const fm_cpu_kernels **out);

/* All tables that this processor runs, worst first; returns their number, at most FM_CPU_ISA_COUNT. */
enum { FM_CPU_ISA_COUNT = 3 };
int32_t fm_cpu_kernels_list(const fm_cpu_kernels *out[FM_CPU_ISA_COUNT]);

#endif

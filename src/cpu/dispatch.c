#include "cpu/dispatch.h"

#include <stdlib.h>
#include <string.h>

static const char *const isa_names[FM_CPU_ISA_COUNT] = {"generic", "avx2", "avx512"};

int32_t fm_cpu_kernels_list(const fm_cpu_kernels *out[FM_CPU_ISA_COUNT]) {
    int32_t count = 0;
    out[count++] = &fm_cpu_kernels_generic;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) { /* every such processor has F16C */
        return count;
    }
    out[count++] = &fm_cpu_kernels_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        out[count++] = &fm_cpu_kernels_avx512;
    }
#endif
    return count;
}

fm_status fm_cpu_kernels_choose(const fm_cpu_kernels **out) {
    const fm_cpu_kernels *present[FM_CPU_ISA_COUNT];
    const int32_t count = fm_cpu_kernels_list(present);
    const char *cap = getenv("FLASHMASK_CPU_ISA");
    int32_t highest = FM_CPU_ISA_COUNT - 1;
    if (cap != NULL && cap[0] != '\0') {
        while (highest >= 0 && strcmp(cap, isa_names[highest]) != 0) {
            highest--;
        }
        FM_CHECK(highest >= 0, FM_ERROR_ARGUMENT, "FLASHMASK_CPU_ISA: is \"%s\", needs generic, avx2 or avx512", cap);
    }
    *out = present[highest < count ? highest : count - 1];
    return FM_OK;
}

fm_status fm_cpu_isa(const char **name) {
    fm_clear_error();
    FM_REQUIRE(name);
    const fm_cpu_kernels *kernels = NULL;
    FM_TRY(fm_cpu_kernels_choose(&kernels));
    *name = kernels->name;
    return FM_OK;
}

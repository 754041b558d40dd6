#include "cpu/vec_avx512.h"
#define VEC_NAME "avx512"
#include "vec_checks.inc"

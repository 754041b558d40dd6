#include "cpu/vec_avx2.h"
#define VEC_NAME "avx2"
#include "vec_checks.inc"

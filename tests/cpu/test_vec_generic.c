#include "cpu/vec_generic.h"
#define VEC_NAME "generic"
#include "vec_checks.inc"

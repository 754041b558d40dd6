/* The kernels of a head dim bucket and half type, in one object; names in these files are unlike for that. backward.cu is an object by
 * itself too, compiled with FM_COMPACT. */
#include "cuda/sm80/backward.cu"
#include "cuda/sm80/forward.cu"
#include "cuda/sm80/grad_query.cu"

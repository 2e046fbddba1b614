/* Every kernel for one instruction set. */
#define vf NAME(vf)
#define vu NAME(vu)
#define vi NAME(vi)
#include "vector.h"
#include "sparse.h"
#include "backward.h"
#include "norm.h"
#include "pool.h"
#include "perturb.h"
#include "convolution.h"
#include "gaussian.h"
#include "divergence.h"
#include "moments.h"
#undef vf
#undef vu
#undef vi
#undef NAME
#undef WIDTH

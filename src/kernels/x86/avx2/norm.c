#include "kernels/x86/avx2/vec16.h"

#include "kernels/x86/norm_body.h"

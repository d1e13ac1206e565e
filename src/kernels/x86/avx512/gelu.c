#include "kernels/x86/avx512/vec16.h"

#include "kernels/x86/gelu_body.h"

#include "kernels/x86/vec16_avx512.h"

#include "kernels/x86/lora_body.h"

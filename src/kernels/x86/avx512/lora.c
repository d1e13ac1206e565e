#include "kernels/x86/avx512/vec16.h"

#include "kernels/vector/lora_body.h"

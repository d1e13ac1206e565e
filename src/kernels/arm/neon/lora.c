#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/lora_body.h"

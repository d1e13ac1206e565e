#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/attention_body.h"

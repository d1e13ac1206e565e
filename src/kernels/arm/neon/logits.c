#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/logits_body.h"

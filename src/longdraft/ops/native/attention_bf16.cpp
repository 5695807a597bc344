// Attention over keys and values of type bf16.
#include "layer_attention.h"

template HeadAttention head_attention<bf16>(int64_t dim);

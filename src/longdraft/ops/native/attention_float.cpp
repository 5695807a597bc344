// Attention over keys and values of type float.
#include "layer_attention.h"

template HeadAttention head_attention<float>(int64_t dim);

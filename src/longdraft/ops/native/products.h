// The products of a linear layer, compiled in a file of their own because that takes half a minute.
#pragma once
#include <cstdint>

#include "interface.h"

// y [T,outputs] = x W^T + bias; or is added to y. Called by every thread of a parallel region; no barrier follows.
// approximate: of a draft, which may be computed in integers. own: memory of this thread, product_bytes bytes.
template <typename E>
void multiply(const Linear& f, const float* x, int64_t T, float* y, bool add, bool approximate, void* own);

// Bytes that a thread needs for products of T rows of `in` numbers, in whatever form the weights are.
int64_t product_bytes(int64_t T, int64_t in, bool approximate);

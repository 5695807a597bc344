// Chooses the products of a linear layer by its weights and by what it is computed for.
#include "products.h"

#include "integer_products.h"
#include "simd.h"

template <typename E>
void multiply(const Linear& f, const float* x, int64_t T, float* y, bool add, bool approximate, void* own) {
#ifdef INTEGER_PRODUCTS
    if (approximate && in_integers(f, T))
        return with_integers(f, x, T, Arena(own), [&](auto&& products) { outputs(f, products, y, add); });
#endif
    linear<E>(f, x, T, y, add, own);
}
template void multiply<float>(const Linear&, const float*, int64_t, float*, bool, bool, void*);
template void multiply<bf16>(const Linear&, const float*, int64_t, float*, bool, bool, void*);

int64_t product_bytes(int64_t T, int64_t in, bool approximate) {
#ifdef INTEGER_PRODUCTS
    if (approximate) return std::max(linear_bytes(T, in), integer_bytes(T, in));
#endif
    return linear_bytes(T, in);
}

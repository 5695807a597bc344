// Keys and values of 4 or 8 bits, as ops/coded.py specifies them: a slot of a head is a row of blocks.
#pragma once
#include <algorithm>

#include "codes.h"
#include "hadamard.h"

constexpr int64_t CODED = 32;  // numbers of a block
constexpr int64_t LONGEST = 1024;  // numbers of a key that is encoded

// A number is code * scale + offset.
template <int BITS>
struct CodedBlock;
template <>
struct CodedBlock<8> {
    bf16 scale;
    uint8_t codes[CODED];  // signed
};
template <>
struct CodedBlock<4> {
    bf16 scale, offset;
    uint8_t codes[CODED / 2];  // byte i: number i in the low half, number i + 16 in the high half
};
static_assert(sizeof(CodedBlock<8>) == 34 && sizeof(CodedBlock<4>) == 20, "as BYTES in ops/coded.py");

constexpr int64_t coded_blocks(int64_t D) { return (D + CODED - 1) / CODED; }
constexpr int64_t coded_bytes(int64_t D, int64_t bits) {
    return coded_blocks(D) * static_cast<int64_t>(bits == 8 ? sizeof(CodedBlock<8>) : sizeof(CodedBlock<4>));
}

static inline float number(float x) { return x; }
static inline float number(bf16 x) { return as<float>(static_cast<uint32_t>(x.bits) << 16); }
static inline bf16 nearest_bf16(float x) {
    const uint32_t w = as<uint32_t>(x);
    return {static_cast<uint16_t>((w + 0x7fff + ((w >> 16) & 1)) >> 16)};
}
static inline float least(vec x) { return folded(x, vmin)[0]; }

// The integers nearest to x * inverse, from low to high, in the lower half of each element. Added to this number, a float has no
// bits behind the point, and its last bits are the integer.
static inline ivec nearest_integers(vec x, float inverse, float low, float high) {
    constexpr float BIG = 12582912.0f;
    const vec y = fused(x, splat(inverse), splat(BIG));
    return as<ivec>(vmin(vmax(y, splat(BIG + low)), splat(BIG + high)));
}

// The last byte of each element.
static inline void store_bytes(uint8_t* p, ivec x) {
    typedef uint8_t bytes __attribute__((vector_size(V)));
    const bytes b = __builtin_convertvector(x & 255, bytes);
    std::memcpy(p, &b, sizeof b);
}

static inline bf16 scale_of(float span, float codes) { return nearest_bf16(std::max(span / codes, 1e-30f)); }

static inline void put_codes(const vec* x, bf16 scale, CodedBlock<8>& to) {
    to.scale = scale;
    const float inverse = 1 / number(scale);
    for (int i = 0; i < CODED / V; i++) store_bytes(to.codes + i * V, nearest_integers(x[i], inverse, -127, 127));
}

static inline void encode_block(const vec* x, CodedBlock<8>& to) {
    vec top = splat(0);
    for (int i = 0; i < CODED / V; i++) top = vmax(top, vmax(x[i], -x[i]));
    put_codes(x, scale_of(greatest(top), 127), to);
}

// The scale and the offset of numbers from `bottom` to `top`.
static inline CodedBlock<4> spanned(float bottom, float top) {
    CodedBlock<4> found;
    found.offset = nearest_bf16(bottom + 0.0f);
    found.scale = scale_of(top - number(found.offset), 15);
    return found;
}

static inline void put_codes(const vec* x, const CodedBlock<4>& span, CodedBlock<4>& to) {
    to.scale = span.scale, to.offset = span.offset;
    const float offset = number(to.offset), inverse = 1 / number(to.scale);
    for (int i = 0; i < 16 / V; i++) {
        const ivec low = nearest_integers(x[i] - offset, inverse, 0, 15) & 15;
        store_bytes(to.codes + i * V, low | nearest_integers(x[i + 16 / V] - offset, inverse, 0, 15) << 4);
    }
}

static inline void encode_block(const vec* x, CodedBlock<4>& to) {
    vec bottom = x[0], top = x[0];
    for (int i = 1; i < CODED / V; i++) bottom = vmin(bottom, x[i]), top = vmax(top, x[i]);
    put_codes(x, spanned(least(bottom), greatest(top)), to);
}

// The blocks of x [D], D a multiple of 16, as vectors. A last block of 16 numbers is filled up with the last of them.
template <typename E, typename Call>
static inline void each_block(const E* x, int64_t D, Call call) {
    for (int64_t d = 0; d < D; d += CODED) {
        vec v[CODED / V];
        for (int64_t i = 0; i < CODED / V; i++) v[i] = d + i * V < D ? load(x + d + i * V) : splat(number(x[D - 1]));
        call(v);
    }
}

template <int BITS, typename E>
static inline void encode(const E* x, int64_t D, void* to) {
    CodedBlock<BITS>* block = static_cast<CodedBlock<BITS>*>(to);
    each_block(x, D, [&](const vec* v) { encode_block(v, *block++); });
}

// As a value: all its blocks have one scale and one offset, so that attention multiplies a slot's weight with them once.
template <int BITS, typename E>
static inline void encode_value(const E* x, int64_t D, void* to) {
    vec bottom = load(x), top = load(x);
    for (int64_t d = V; d < D; d += V) bottom = vmin(bottom, load(x + d)), top = vmax(top, load(x + d));
    CodedBlock<BITS>* block = static_cast<CodedBlock<BITS>*>(to);
    if constexpr (BITS == 8) {
        const bf16 scale = scale_of(std::max(greatest(top), -least(bottom)), 127);
        each_block(x, D, [&](const vec* v) { put_codes(v, scale, *block++); });
    } else {
        const CodedBlock<4> own = spanned(least(bottom), greatest(top));
        each_block(x, D, [&](const vec* v) { put_codes(v, own, *block++); });
    }
}

// x [D], D a multiple of 16 up to LONGEST, as a key: its transform is encoded, without the offset [D] if there is one.
template <int BITS, typename E>
static inline void encode_key(const E* x, const float* offset, int64_t D, void* to) {
    alignas(64) float own[LONGEST];
    for (int64_t d = 0; d < D; d += V) store(own + d, offset ? load(x + d) - load(offset + d) : load(x + d));
    hadamard(own, D);
    encode<BITS>(own, D, to);
}

// A value of 8 bits [D], D a multiple of 16 up to LONGEST.
static inline void decode_value(const void* from, int64_t D, float* x) {
    const CodedBlock<8>* block = static_cast<const CodedBlock<8>*>(from);
    typedef int8_t bytes __attribute__((vector_size(V)));
    for (int64_t d = 0; d < D; d += V) {
        const CodedBlock<8>& b = block[d / CODED];
        bytes codes;
        std::memcpy(&codes, b.codes + d % CODED, sizeof codes);
        store(x + d, __builtin_convertvector(codes, vec) * splat(number(b.scale)));
    }
}

// A key of 8 bits that was encoded with this offset [D], if with any.
static inline void decode_key(const void* from, const float* offset, int64_t D, float* x) {
    decode_value(from, D, x);
    hadamard(x, D);
    for (int64_t d = 0; offset && d < D; d += V) store(x + d, load(x + d) + load(offset + d));
}

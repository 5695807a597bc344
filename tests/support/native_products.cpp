// Checks the kernels' products against sums in double precision, and that no row depends on the rows beside it.
// Prints the build's vector width and exits with 0; or prints what is wrong. test_products.py compiles it for every build.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "integer_attention.h"
#include "integer_products.h"
#include "pair_products.h"
#include "vector_products.h"

bool request_must_fail() { return false; }

static std::mt19937 randomness(1);
static float any() { return std::uniform_real_distribution<float>(-1, 1)(randomness); }

static float value(float x) { return number(x); }
static float value(bf16 x) { return number(x); }
static void put(float& to, float x) { to = x; }
static void put(bf16& to, float x) { to = bf16{static_cast<uint16_t>(as<uint32_t>(x) >> 16)}; }

template <typename E>
static std::vector<E> numbers(int64_t n) {
    std::vector<E> x(n);
    for (E& e : x) put(e, any());
    return x;
}

static void require(bool good, const char* what, int64_t a, int64_t b, int64_t c) {
    if (good) return;
    std::printf("%s: %d %d %d\n", what, static_cast<int>(a), static_cast<int>(b), static_cast<int>(c));
    std::exit(1);
}

static bool near(double found, double exact) { return std::fabs(found - exact) <= 1e-5 * (8 + std::fabs(exact)); }

static void shuffles() {
    alignas(64) float in[V * V], added[V];
    for (int i = 0; i < V * V; i++) in[i] = i;
    vec rows[V];
    for (int i = 0; i < V; i++) rows[i] = load(in + i * V);
    store(added, sums(rows));
    turned column[4];
    four_columns(reinterpret_cast<const char*>(in), V * sizeof(float), column);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < TURNED && j < V; j++) {
            float element;
            std::memcpy(&element, reinterpret_cast<const char*>(&column[i]) + 4 * j, 4);
            require(element == in[j * V + i], "columns", i, j, 0);
        }
    for (int i = 0; i < V; i++) {
        float exact = 0;
        for (int j = 0; j < V; j++) exact += in[i * V + j];
        require(added[i] == exact && sum(load(in + i * V)) == exact, "sums", i, 0, 0);
        require(greatest(load(in + i * V)) == in[i * V + V - 1], "greatest", i, 0, 0);
    }
}

static void exponentials() {
    for (float x = -100; x < 88; x += 0.37f) {
        const double found = vexp(splat(x))[0], exact = x < -87 ? 0 : std::exp(static_cast<double>(x));
        require(std::fabs(found - exact) <= 4e-7 * exact, "exp", x * 100, 0, 0);
    }
    require(vexp(splat(NONE))[V - 1] == 0, "exp of -inf", 0, 0, 0);
    for (float x = -100; x <= 0; x += 0.0371f) {
        const double found = vexp_of_negative(splat(x))[0], exact = x < -87 ? 0 : std::exp(static_cast<double>(x));
        require(std::fabs(found - exact) <= 4e-7 * exact, "exp below 0", x * 100, 0, 0);
    }
    require(vexp_of_negative(splat(0))[0] == 1, "exp of 0", 0, 0, 0);
    require(vexp_of_negative(splat(NONE))[V - 1] == 0, "exp below 0 of -inf", 0, 0, 0);
}

// Numbers that bf16 can hold, for kernels that would round others.
static std::vector<float> coarse(int64_t n) {
    std::vector<float> x;
    for (const bf16 e : numbers<bf16>(n)) x.push_back(value(e));
    return x;
}

template <typename KeyProducts, typename E, int ND>
static void attention(int64_t R, int64_t n) {
    constexpr int64_t D = 16 * ND;
    const auto q = coarse(R * D);
    const auto k = numbers<E>((n + 1) * D), v = numbers<E>((n + 1) * D);
    const auto before = numbers<float>(R * D), keep = numbers<float>(R);
    std::vector<float> scores(R * CHUNK), out = before, weights = coarse(R * CHUNK);
    Buffer<float> memory;
    memory.reserve(KeyProducts::floats(R));
    Prefetch none;
    const auto run = [&](int64_t first, int64_t rows, float* scores, float* out) {
        Queries x = {};
        x.q = q.data() + first * D, x.R = rows;
        KeyProducts products(x, memory.data());
        products.scores(k.data(), n, scores, none);
        products.values(weights.data() + first * CHUNK, keep.data() + first, v.data(), n, out, none);
    };
    run(0, R, scores.data(), out.data());
    for (int64_t r = 0; r < R; r++) {
        std::vector<float> alone(CHUNK), own(before.begin() + r * D, before.begin() + (r + 1) * D);
        run(r, 1, alone.data(), own.data());
        require(!std::memcmp(alone.data(), &scores[r * CHUNK], n * sizeof(float)), "a row's scores alone", r, R, n);
        require(!std::memcmp(own.data(), &out[r * D], D * sizeof(float)), "a row's output alone", r, R, n);
        for (int64_t j = 0; j < n; j++) {
            double exact = 0;
            for (int64_t d = 0; d < D; d++) exact += double(q[r * D + d]) * value(k[j * D + d]);
            require(near(scores[r * CHUNK + j], exact), "scores", r, j, n);
        }
        for (int64_t d = 0; d < D; d++) {
            double exact = double(before[r * D + d]) * keep[r];
            for (int64_t j = 0; j < n; j++) exact += double(weights[r * CHUNK + j]) * value(v[j * D + d]);
            require(near(out[r * D + d], exact), "values", r, d, n);
        }
    }
}

// Attention of R rows over n keys, of which the last are scratch nodes that only some of the rows see: against sums in double
// precision, and each row alone. BF16: whether weights are rounded to 8 bits.
template <typename KeyProducts, typename E, int ND, bool BF16>
static void softmax_and_sums(int64_t R, int64_t W, int64_t n) {
    constexpr int64_t D = 16 * ND;
    auto q = coarse(R * D);
    for (float& x : q) x *= 0.5f;
    const auto k = numbers<E>(n * D), v = numbers<E>(n * D);
    const int64_t scratch = W, length = n - scratch;
    std::vector<uint8_t> mask(W * scratch);
    std::vector<int64_t> position(W), depth(scratch);
    for (int64_t w = 0; w < W; w++)
        for (int64_t i = 0; i < scratch; i++) mask[w * scratch + i] = i <= w;
    const auto run = [&](int64_t first, int64_t rows, int64_t nodes, const uint8_t* mask) {
        Queries x = {q.data() + first * D, rows, nodes, position.data(), depth.data(), mask, scratch, length, 0};
        std::vector<float> result(rows * (D + 2));
        const Partial partial = {result.data(), result.data() + rows, result.data() + 2 * rows};
        clear(partial, rows, D);
        Arena size;
        KeysMemory<KeyProducts> unused(size, rows);
        Buffer<char> memory;
        Arena arena(memory.reserve(size.bytes()));
        attend_keys<KeyProducts>(x, k.data(), v.data(), n, 0, partial, nullptr, KeysMemory<KeyProducts>(arena, rows));
        return result;
    };
    const auto all = run(0, R, W, mask.data());
    for (int64_t r = 0; r < R; r++) {
        const auto alone = run(r, 1, 1, &mask[r % W * scratch]);
        require(alone[0] == all[r] && alone[1] == all[R + r], "a row's softmax alone", r, R, n);
        require(!std::memcmp(&alone[2], &all[2 * R + r * D], D * sizeof(float)), "a row's attention alone", r, R, n);
        std::vector<double> weight(n), sum(D);
        double top = -1e9, total = 0;
        for (int64_t j = 0; j < n; j++) {
            for (int64_t d = 0; d < D; d++) weight[j] += double(q[r * D + d]) * value(k[j * D + d]);
            if (j > length + r % W) weight[j] = -1e9;
            top = std::max(top, weight[j]);
        }
        for (int64_t j = 0; j < n; j++) {
            total += weight[j] = std::exp(weight[j] - top);
            for (int64_t d = 0; d < D; d++) sum[d] += weight[j] * value(v[j * D + d]);
        }
        require(std::fabs(all[r] - top) <= 1e-5 && std::fabs(all[R + r] - total) <= 1e-4 * total, "a softmax", r, R, n);
        for (int64_t d = 0; d < D; d++)
            require(std::fabs(all[2 * R + r * D + d] - sum[d]) <= (BF16 ? 1e-3 : 1e-5) * total, "attention", r, d, n);
    }
}

// Six or seven queries to a key head, in plain decoding and in verification of four and of eight nodes.
template <typename KeyProducts, typename E, int ND, bool BF16>
static void grouped() {
    for (const int64_t G : {6, 7})
        for (const int64_t W : {1, 4, 8})
            for (const int64_t n : {61, 600}) softmax_and_sums<KeyProducts, E, ND, BF16>(G * W, W, n);
}

// Number d of a slot of codes.
static double decoded(const CodedBlock<8>* slot, int64_t d) {
    return double(number(slot[d / 32].scale)) * static_cast<int8_t>(slot[d / 32].codes[d % 32]);
}
static double decoded(const CodedBlock<4>* slot, int64_t d) {
    const CodedBlock<4>& block = slot[d / 32];
    const int byte = block.codes[d % 16], code = d % 32 < 16 ? byte & 15 : byte >> 4;
    return double(number(block.scale)) * code + number(block.offset);
}

// That these are the codes nearest to x [D].
template <int BITS>
static void nearest(const CodedBlock<BITS>* slot, const float* x, int64_t D, int64_t j, int64_t n) {
    for (int64_t d = 0; d < D; d++) {
        const double step = number(slot[d / 32].scale), error = decoded(slot, d) - x[d];
        require(std::fabs(error) <= step * 0.51 + (BITS == 4 ? 0.004 : 0), "codes", j, d, n);
    }
}

// The largest of `size` numbers, over this many steps and two: how far one is at most from its code.
static double half_step(const float* x, int64_t size, int64_t steps) {
    double top = 0;
    for (int64_t i = 0; i < size; i++) top = std::max<double>(top, std::fabs(x[i]));
    return 0.51 * top / steps;
}

// Codes of n slots, and products with them; queries are rounded for each block, weights for each group.
template <int BITS, int ND>
static void coded(int64_t R, int64_t n) {
    constexpr int64_t D = 16 * ND, KEY = coded_blocks(D);
    using Products = IntegerVectors<ND, BITS>;
    const auto x = numbers<float>(n * D), q = numbers<float>(R * D), before = numbers<float>(R * D), keep = numbers<float>(R);
    std::vector<CodedBlock<BITS>> keys(n * KEY), values(n * KEY);
    for (int64_t j = 0; j < n; j++) {
        encode<BITS>(&x[j * D], D, &keys[j * KEY]), encode_value<BITS>(&x[j * D], D, &values[j * KEY]);
        nearest(&keys[j * KEY], &x[j * D], D, j, n), nearest(&values[j * KEY], &x[j * D], D, j, n);
    }
    auto weights = numbers<float>(R * CHUNK);
    for (float& w : weights) w = std::fabs(w);
    Buffer<float> memory;
    memory.reserve(Products::floats(R));
    Prefetch none;
    const auto run = [&](int64_t first, int64_t count, float* scores, float* out) {
        Queries rows = {};
        rows.q = &q[first * D], rows.R = count;
        Products products(rows, memory.data());
        products.scores(keys.data(), n, scores, none);
        products.values(&weights[first * CHUNK], &keep[first], values.data(), n, out, none);
    };
    std::vector<float> scores(R * CHUNK), out = before;
    run(0, R, scores.data(), out.data());
    for (int64_t r = 0; r < R; r++) {
        std::vector<float> alone(CHUNK), own(before.begin() + r * D, before.begin() + (r + 1) * D), turned(&q[r * D], &q[r * D] + D);
        run(r, 1, alone.data(), own.data());
        require(!std::memcmp(alone.data(), &scores[r * CHUNK], n * sizeof(float)), "a row's scores of codes alone", r, R, n);
        require(!std::memcmp(own.data(), &out[r * D], D * sizeof(float)), "a row's output of codes alone", r, R, n);
        hadamard(turned.data(), D);
        for (int64_t j = 0; j < n; j++) {
            double exact = 0, most = 1e-4;
            for (int64_t d = 0; d < D; d++) {
                const double key = decoded(&keys[j * KEY], d);
                exact += turned[d] * key;
                most += half_step(&turned[d / 32 * 32], std::min<int64_t>(32, D), 127) * std::fabs(key);
            }
            require(std::fabs(scores[r * CHUNK + j] - exact) <= most, "scores of codes", r, j, n);
        }
        for (int64_t d = 0; d < D; d++) {
            double exact = double(before[r * D + d]) * keep[r], most = 1e-4 * n;
            for (int64_t j = 0; j < n; j++) {
                const CodedBlock<BITS>* slot = &values[j * KEY];
                exact += double(weights[r * CHUNK + j]) * decoded(slot, d);
                float sizes[GROUP] = {};
                for (int64_t i = j / GROUP * GROUP; i < std::min(n, (j / GROUP + 1) * GROUP); i++)
                    sizes[i % GROUP] = weights[r * CHUNK + i] * number(values[i * KEY].scale);
                most += half_step(sizes, GROUP, 255) * (BITS == 8 ? 127 : 15);
            }
            require(std::fabs(out[r * D + d] - exact) <= most, "values of codes", r, d, n);
        }
    }
}

template <int ND>
static void each_code() {
    for (int64_t R = 1; R <= TALLEST + 1; R++) coded<4, ND>(R, 37), coded<8, ND>(R, 37);
    for (const int64_t n : {1, 15, 16, 31, 200, 256}) coded<4, ND>(3, n), coded<8, ND>(3, n);
    for (const int64_t n : {20, 71, 256}) coded<4, ND>(2 * TALLEST + 1, n), coded<8, ND>(2 * TALLEST + 1, n);
}

// Products with f of all rows, and of each row alone; weight(o, i) is the weight of output o and input i.
template <typename E, typename Weight>
static void each_row_alone(const Linear& f, const std::vector<float>& x, const std::vector<float>& before, int64_t T, bool add,
                           Weight weight) {
    const int64_t in = f.inputs, outputs = f.outputs;
    Buffer<char> own;
    own.reserve(linear_bytes(T, in));
    std::vector<float> y = before;
    linear<E>(f, x.data(), T, y.data(), add, own.data());
    for (int64_t t = 0; t < T; t++) {
        std::vector<float> alone(before.begin() + t * outputs, before.begin() + (t + 1) * outputs);
        linear<E>(f, x.data() + t * in, 1, alone.data(), add, own.data());
        require(!std::memcmp(alone.data(), &y[t * outputs], outputs * sizeof(float)), "a row's outputs alone", t, T, in);
        for (int64_t o = 0; o < outputs; o++) {
            double exact = (add ? before[t * outputs + o] : 0) + (f.bias ? double(f.bias[o]) : 0);
            for (int64_t i = 0; i < in; i++) exact += double(x[t * in + i]) * weight(o, i);
            require(std::fabs(y[t * outputs + o] - exact) <= 1e-6 * in * (f.format ? 128 : 1), "outputs", t, o, in);
        }
    }
}

template <typename E>
static void linear_outputs(int64_t T, int64_t in, int64_t outputs, bool add) {
    const auto x = coarse(T * in);
    const auto bias = numbers<float>(outputs), before = numbers<float>(T * outputs);
    const auto w = numbers<E>(outputs * in);
    const Linear f = {w.data(), bias.data(), outputs, in, NUMBERS, FLOATS, nullptr, nullptr, nullptr, nullptr};
    each_row_alone<E>(f, x, before, T, add, [&](int64_t o, int64_t i) { return double(value(w[o * in + i])); });
}

static void every_half() {
    for (uint32_t first = 0; first < 1 << 16; first += V) {
        half from[V];
        for (int i = 0; i < V; i++) from[i] = {static_cast<uint16_t>(first + i)};
        const vec found = load(from);
        for (int i = 0; i < V; i++) {
            const int bits = from[i].bits, exponent = bits >> 10 & 31, mantissa = bits & 1023;
            if (exponent == 31) continue;
            const double size = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
            const float exact = bits >> 15 ? -size : size;
            require(std::memcmp(&exact, reinterpret_cast<const float*>(&found) + i, 4) == 0, "a half", bits, 0, 0);
        }
    }
}

static float rounded(float x) {  // to a half, of normal size
    uint32_t w;
    std::memcpy(&w, &x, sizeof w);
    w &= ~0x1fffu;
    std::memcpy(&x, &w, sizeof x);
    return x;
}

static half as_half(float x) {
    uint32_t w;
    std::memcpy(&w, &x, sizeof w);
    return {static_cast<uint16_t>(w >> 16 & 0x8000 | ((w >> 13 & 0x3ffff) - (112 << 10)) & 0x7fff)};
}

static const int FP4_LEVELS[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int IQ4_LEVELS[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// A layer of random packed weights. Every form of scales; tails of rows that are not whole blocks have other bits than zeros.
struct PackedLayer {
    int64_t outputs, in, blocks, groups, bits, group;
    bool has_offset;
    std::vector<uint8_t> low, high, bytes;
    std::vector<float> scale, offset, float_scale, float_offset;
    std::vector<half> half_scale, half_offset, unit;
    Linear f;

    PackedLayer(Format format, ScaleForm form, bool has_offset, int64_t outputs, int64_t in, const float* bias)
        : outputs(outputs), in(in), blocks((in + 63) / 64), has_offset(has_offset) {
        bits = form_bits(format), group = format == BITS_6 || format == BITS_8_OF_16 ? 16 : 32;
        groups = blocks * 64 / group;
        low.resize(outputs * blocks * (bits == 8 ? 64 : 32)), high.resize(outputs * blocks * (bits == 5 ? 8 : bits == 6 ? 16 : 0));
        for (uint8_t& c : low) c = randomness();
        for (uint8_t& c : high) c = randomness();
        f = {low.data(), bias, outputs, in, format, form, high.empty() ? nullptr : high.data(), nullptr, nullptr, nullptr};
        if (form == SIX_BITS || form == EIGHT_BITS)
            codes_of_scales(form);
        else
            numbers_of_scales(form);
    }

    static int64_t form_bits(Format format) {
        switch (format) {
            case BITS_5: return 5;
            case BITS_6: return 6;
            case BITS_8: case BITS_8_OF_16: return 8;
            default: return 4;
        }
    }

    void numbers_of_scales(ScaleForm form) {
        for (int64_t i = 0; i < outputs * groups; i++) {
            const float a = any(), b = any();
            scale.push_back(rounded(a + std::copysign(0.01f, a))), offset.push_back(i % 7 ? rounded(b + std::copysign(0.01f, b)) : 0);
            if (form == FLOATS) scale[i] += 1e-6f, offset[i] += 1e-6f;
            half_scale.push_back(as_half(scale[i])), half_offset.push_back(offset[i] == 0 ? half{0} : as_half(offset[i]));
        }
        float_scale = scale, float_offset = offset;
        f.scale = form == HALVES ? (void*)half_scale.data() : float_scale.data();
        if (has_offset) f.offset = form == HALVES ? (void*)half_offset.data() : float_offset.data();
    }

    // As ggml reads them, one after another.
    void codes_of_scales(ScaleForm form) {
        const int64_t per = 256 / group, units = outputs * groups / per;
        const int64_t size = form == SIX_BITS ? 12 : per;
        bytes.resize(units * size);
        for (uint8_t& c : bytes) c = randomness();
        std::vector<float> by;
        for (int64_t i = 0; i < units * (form == SIX_BITS ? 2 : 1); i++) {
            const float a = any();
            by.push_back(rounded(a + std::copysign(0.01f, a))), unit.push_back(as_half(by[i]));
        }
        for (int64_t g = 0; g < outputs * groups; g++) {
            const int64_t u = g / per, j = g % per;
            const uint8_t* q = &bytes[u * size];
            if (form == EIGHT_BITS) {
                scale.push_back(by[u] * static_cast<int8_t>(q[j])), offset.push_back(0);
                continue;
            }
            const int s = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
            const int m = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | (q[j] >> 6) << 4;
            scale.push_back(by[2 * u] * s), offset.push_back(-(by[2 * u + 1] * m));
        }
        f.scale = bytes.data(), f.unit = unit.data();
    }

    int code(int64_t o, int64_t i) const {
        const int64_t block = o * blocks + i / 64, at = i % 64;
        if (bits == 8) return static_cast<int8_t>(low[block * 64 + at]);
        int code = low[block * 32 + at % 32] >> (at < 32 ? 0 : 4) & 15;
        if (f.format == FP4) return FP4_LEVELS[code];
        if (f.format == IQ4) return IQ4_LEVELS[code];
        if (bits == 5) code |= (high[block * 8 + at / 8] >> at % 8 & 1) << 4;
        if (bits == 6) code |= (high[block * 16 + at % 16] >> at / 16 * 2 & 3) << 4;
        return has_offset ? code : code - (1 << (bits - 1));
    }
    double weight(int64_t o, int64_t i) const {
        const int64_t g = o * groups + i / group;
        return static_cast<float>(double(code(o, i)) * scale[g] + (has_offset ? double(offset[g]) : 0));
    }
};

// What a kernel for numbers E makes of a weight in a row of so many.
template <typename E>
static double held(float w, int64_t in) {
#ifdef BF16_PAIRS
    bf16 to[V];
    store(to, splat(w));
    if (sizeof(E) == 2 && in % 32 == 0) return value(to[0]);
#endif
    return w;
}

struct Kind {
    Format format;
    ScaleForm form;
    bool has_offset;
};
static const Kind kinds[] = {
    {BITS_4, FLOATS, true},   {BITS_4, HALVES, true}, {BITS_4, HALVES, false}, {BITS_4, SIX_BITS, true},  {BITS_5, HALVES, true},
    {BITS_5, HALVES, false},  {BITS_5, FLOATS, false}, {BITS_5, SIX_BITS, true}, {BITS_6, HALVES, false}, {BITS_6, EIGHT_BITS, false},
    {BITS_8, HALVES, false},  {BITS_8, FLOATS, false}, {BITS_8_OF_16, HALVES, true}, {BITS_8_OF_16, FLOATS, true},
    {FP4, HALVES, false},     {FP4, FLOATS, false},   {IQ4, HALVES, false},    {IQ4, EIGHT_BITS, false},
};

template <typename E>
static void packed_outputs(const Kind& kind, int64_t T, int64_t in, int64_t outputs) {
    const auto x = coarse(T * in), before = numbers<float>(T * outputs);
    const PackedLayer layer(kind.format, kind.form, kind.has_offset, outputs, in, nullptr);
    require(packed_fits(layer.f), "a layer that fits", kind.format, kind.form, in);
    each_row_alone<E>(layer.f, x, before, T, false, [&](int64_t o, int64_t i) { return held<E>(layer.weight(o, i), in); });
}

#ifdef INTEGER_PRODUCTS
// Inputs of a group are rounded to 127 steps of its largest, so each is at most half a step off; rows with zeros and outliers.
static void integer_outputs(const Kind& kind, int64_t T, int64_t in, int64_t outputs) {
    auto x = numbers<float>(T * in);
    for (int64_t i = 0; i < T * in; i += 5) x[i] *= i % 3 ? 0 : 100;
    std::fill(x.begin(), x.begin() + 32, 0.0f);
    const auto before = numbers<float>(T * outputs), bias = numbers<float>(outputs);
    const PackedLayer layer(kind.format, kind.form, kind.has_offset, outputs, in, bias.data());
    require(in_integers(layer.f, T) == (T <= 4 && kind.format < BITS_8_OF_16), "which products are in integers", T, in, kind.format);
    if (!in_integers(layer.f, T)) return;
    Buffer<char> own;
    own.reserve(integer_bytes(T, in));
    auto y = before;
    with_integers(layer.f, x.data(), T, Arena(own.data()), [&](auto&& products) { ::outputs(layer.f, products, y.data(), true); });
    for (int64_t t = 0; t < T; t++)
        for (int64_t o = 0; o < outputs; o++) {
            double exact = before[t * outputs + o] + bias[o], most = 1e-4 * (1 + std::fabs(exact));
            for (int64_t g = 0; g < in / 32; g++) {
                double top = 0, sizes = 0;
                for (int64_t i = g * 32; i < g * 32 + 32; i++) {
                    exact += double(x[t * in + i]) * layer.weight(o, i);
                    const double scale = layer.scale[o * layer.groups + i / layer.group];
                    const int code = layer.bits < 6 && !layer.has_offset ? layer.code(o, i) + (1 << (layer.bits - 1)) : layer.code(o, i);
                    top = std::max<double>(top, std::fabs(x[t * in + i])), sizes += std::fabs(code * scale);
                }
                most += (0.5 / 127 + 1e-5) * top * sizes + 1e-4 * top * 32;
            }
            require(std::fabs(y[t * outputs + o] - exact) <= most, "outputs in integers", t, o, in);
        }
}

static void each_integer() {
    for (int64_t T = 1; T <= 5; T++)
        for (const Kind& kind : kinds)
            for (const int64_t in : {32, 96, 256, 288, 576, 768})
                if (kind.form < SIX_BITS || in % 256 == 0) integer_outputs(kind, T, in, 49);
}
#endif

#ifdef __AVX2__
// The bytes of a layer in the order of sixteen rows, as ops/interleaved.py specifies it.
struct Interleaved {
    std::vector<uint8_t> low, high, scale, offset, unit;
    Linear f;
    explicit Interleaved(const PackedLayer& layer) : f(layer.f) {
        const int64_t n = layer.outputs, blocks = layer.blocks, groups = layer.groups;
        low = turned(f.weight, n, layer.low.size(), 4);
        f.weight = low.data();
        high.resize(layer.high.size());
        for (int64_t o = 0; o < n; o++)
            for (int64_t i = 0; i < blocks * 64; i++) {
                const int64_t word = i % 32 / 4, width = layer.bits - 4, each = 8 / width;
                const int64_t at = (i / 32 * (8 / each) + word / each) * 4 + i % 4, words = blocks * 2 * (8 / each);
                if (!high.empty()) high[(o / 16 * words + at / 4) * 64 + o % 16 * 4 + at % 4] |= over(layer, o, i) << word % each * width;
            }
        if (!high.empty()) f.high = high.data();
        const int64_t size = f.scales == FLOATS ? 4 : f.scales == HALVES ? 2 : f.scales == SIX_BITS ? 4 : 1;
        scale = turned(f.scale, n, f.scales == SIX_BITS ? n * groups / 8 * 12 : n * groups * size, size);
        f.scale = scale.data();
        if (f.offset) offset = turned(f.offset, n, n * groups * size, size), f.offset = offset.data();
        if (f.unit) unit = turned(f.unit, n, layer.unit.size() * 2, 2), f.unit = unit.data();
        f.interleaved = 1;
    }

   private:
    static int over(const PackedLayer& layer, int64_t o, int64_t i) {
        const int64_t block = o * layer.blocks + i / 64, at = i % 64;
        return layer.bits == 5 ? layer.high[block * 8 + at / 8] >> at % 8 & 1 : layer.high[block * 16 + at % 16] >> at / 16 * 2 & 3;
    }
    static std::vector<uint8_t> turned(const void* from, int64_t outputs, int64_t bytes, int64_t piece) {
        std::vector<uint8_t> to(bytes);
        const int64_t row = bytes / outputs;
        for (int64_t i = 0; i < bytes; i++) {
            const int64_t o = i / row, at = i % row;
            to[((o / 16 * (row / piece) + at / piece) * 16 + o % 16) * piece + at % piece] = static_cast<const uint8_t*>(from)[i];
        }
        return to;
    }
};

// Products with rounded inputs are exact but for the order in which groups are added; rows with zeros and outliers.
static void interleaved_outputs(const Kind& kind, int64_t T, int64_t in, int64_t outputs) {
    auto x = numbers<float>(T * in);
    for (int64_t i = 0; i < T * in; i += 5) x[i] *= i % 3 ? 0 : 100;
    std::fill(x.begin(), x.begin() + std::min<int64_t>(in, 32), 0.0f);
    std::fill(x.end() - in / 2, x.end(), -0.7f);  // the largest sums of products that there are
    const auto before = numbers<float>(T * outputs), bias = numbers<float>(outputs);
    const PackedLayer layer(kind.format, kind.form, kind.has_offset, outputs, in, bias.data());
    const Interleaved interleaved(layer);
    require(packed_fits(interleaved.f), "interleaved that fit", kind.format, kind.form, in);
    Buffer<char> own;
    own.reserve(linear_bytes(T, in));
    auto y = before;
    linear<bf16>(interleaved.f, x.data(), T, y.data(), true, own.data());
    for (int64_t t = 0; t < T; t++) {
        std::vector<float> alone(before.begin() + t * outputs, before.begin() + (t + 1) * outputs), rounded(in);
        linear<float>(interleaved.f, x.data() + t * in, 1, alone.data(), true, own.data());
        require(!std::memcmp(alone.data(), &y[t * outputs], outputs * sizeof(float)), "a row's rounded outputs alone", t, T, in);
        for (int64_t g = 0; g < in; g += 32) {
            float top = 0;
            for (int64_t i = g; i < std::min(in, g + 32); i++) top = std::max(top, std::fabs(x[t * in + i]));
            const float size = std::max(top, 1e-30f) / 127;
            for (int64_t i = g; i < std::min(in, g + 32); i++) rounded[i] = std::nearbyint(double(x[t * in + i]) * (1 / size)) * size;
        }
        for (int64_t o = 0; o < outputs; o++) {
            double exact = before[t * outputs + o] + bias[o], most = 1 + std::fabs(exact);
            for (int64_t i = 0; i < in; i++) {
                const double product = double(rounded[i]) * layer.weight(o, i);
                exact += product, most += std::fabs(product) + std::fabs(rounded[i] * layer.offset[o * layer.groups + i / layer.group]);
            }
            require(std::fabs(y[t * outputs + o] - exact) <= 1e-6 * most, "rounded outputs", t, o, in);
        }
    }
}

static void each_interleaved() {
    for (const int64_t T : {1, 2, 3, 4, 5, 9, 12, 13, 29})
        for (const Kind& kind : kinds)
            for (const int64_t in : {32, 96, 256, 288, 576, 768})
                if (kind.form < SIX_BITS || in % 256 == 0) interleaved_outputs(kind, T, in, T % 2 ? 48 : 32);
    for (const Kind& kind : kinds)
        if (kind.format == BITS_8_OF_16) interleaved_outputs(kind, 3, 48, 16);
}
#endif

template <typename KeyProducts, typename E, int ND>
static void each_size_of() {
    for (int64_t R = 1; R <= 2 * TALLEST + 3; R++) attention<KeyProducts, E, ND>(R, 37);
    for (const int64_t n : {1, 15, 16, 31, 64, 65, 200, 256}) attention<KeyProducts, E, ND>(3, n);
    attention<KeyProducts, E, ND>(130, 33);
    for (const int64_t R : {28, 48, 56}) attention<KeyProducts, E, ND>(R, 255);
}

template <typename E, int ND>
static void each_size() {
    each_size_of<Vectors<E, ND>, E, ND>();
#ifdef BF16_PAIRS
    if constexpr (sizeof(E) == 2) each_size_of<PairVectors<ND>, E, ND>();
#endif
}

template <typename E>
static void each_type() {
    each_size<E, 1>(), each_size<E, 2>(), each_size<E, 4>(), each_size<E, 6>(), each_size<E, 8>(), each_size<E, 16>();
    for (int64_t T = 1; T <= 3 * TALLEST + 3; T++) {
        linear_outputs<E>(T, 80, 16 + 32 * (T % 2) + T % 3, T % 2);
        linear_outputs<E>(T, 96, 18, T % 2);
    }
    linear_outputs<E>(130, 48, 96, false);
}

template <typename E>
static void each_packed() {
    for (const int64_t T : {1, 2, 3, 8, 13, 40})
        for (const Kind& kind : kinds)
            for (const int64_t in : {32, 96, 288, 256, 768})
                if (kind.form < SIX_BITS || in % 256 == 0) packed_outputs<E>(kind, T, in, 49);
    for (const Kind& kind : kinds)
        if (kind.format == BITS_8_OF_16) packed_outputs<E>(kind, 3, 48, 49);
}

int main() {
    shuffles();
    exponentials();
    every_half();
    each_type<float>();
    each_type<bf16>();
    grouped<Vectors<bf16, 4>, bf16, 4, false>(), grouped<Vectors<bf16, 8>, bf16, 8, false>();
    grouped<Vectors<float, 4>, float, 4, false>();
#ifdef BF16_PAIRS
    grouped<PairVectors<4>, bf16, 4, true>(), grouped<PairVectors<8>, bf16, 8, true>();
#endif
    each_packed<float>();
    each_packed<bf16>();
#ifdef INTEGER_PRODUCTS
    each_integer();
#endif
#ifdef __AVX2__
    each_interleaved();
#endif
    each_code<1>(), each_code<2>(), each_code<4>(), each_code<6>(), each_code<8>(), each_code<16>();
    std::printf("vectors of %d floats\n", V);
}

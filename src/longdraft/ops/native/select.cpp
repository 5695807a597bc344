// From scores to a compact copy of the best keys: what stands between a verify pass and the next draft.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

// Unsigned integers in the order of the floats.
static inline uint32_t ordered(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// The key of the count-th largest of n (count >= 1), and how many are above it: radix selection, 11 + 11 + 10 bits. Only
// the first pass sees all keys; the next ones those of the bin that the threshold lies in.
static uint32_t threshold(const uint32_t* keys, int64_t n, int64_t count, int64_t& above) {
    constexpr int WAYS = 4;  // neighbours often fall into one bin: each way counts for itself
    static thread_local std::vector<uint32_t> left, next;
    int32_t found[WAYS * 2048];
    uint32_t prefix = 0;
    above = 0;
    for (int shift : {21, 10, 0}) {
        const uint32_t bins = shift ? 2048 : 1024, last = bins - 1;
        std::fill(found, found + WAYS * 2048, 0);
        for (int64_t i = 0; i < n; i++) found[(i % WAYS) * 2048 + (keys[i] >> shift & last)]++;
        uint32_t bin = bins;
        int64_t here = 0;
        do {
            above += here;
            bin--;
            here = 0;
            for (int way = 0; way < WAYS; way++) here += found[way * 2048 + bin];
        } while (above + here < count);
        prefix |= bin << shift;
        next.resize(here);
        int64_t at = 0;
        for (int64_t i = 0; i < n; i++)
            if ((keys[i] >> shift & last) == bin) next[at++] = keys[i];
        left.swap(next);
        keys = left.data(), n = here;
    }
    return prefix;
}

extern "C" {
// The count best of each row of scores [rows, n of stride], in ascending order of place: picks [rows,count].
// A score lends `share` of itself to each of the next `reach` places. Of equals the earlier are taken.
void longdraft_choose(const float* scores, int64_t rows, int64_t stride, int64_t n, int64_t reach, float share, int64_t count, int64_t* picks) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t row = 0; row < rows; row++) {
        const float* s = scores + row * stride;
        static thread_local std::vector<float> lent;  // kept: fresh memory of this size costs more than the work
        static thread_local std::vector<uint32_t> keys;
        lent.assign(n, 0.0f), keys.resize(n);
        for (int64_t j = 1; j <= reach; j++)
            for (int64_t i = j; i < n; i++) lent[i] += s[i - j];
        for (int64_t i = 0; i < n; i++) keys[i] = ordered(s[i] + share * lent[i]);
        int64_t above, at = 0;
        const uint32_t least = threshold(keys.data(), n, count, above);
        int64_t equal = count - above;
        int64_t* out = picks + row * count;
        for (int64_t i = 0; i < n && at < count; i++) {
            const bool tie = keys[i] == least && equal > 0;
            out[at] = i;
            at += keys[i] > least || tie;
            equal -= tie;
        }
    }
}

// Rows x [heads, slots, bytes] at slots [n], or [heads,n] where `apart`: out [heads,n,bytes]. pitch: bytes between heads.
void longdraft_take(const char* x, int64_t heads, int64_t pitch, int64_t bytes, const int64_t* slots, int64_t n, int64_t apart, char* out) {
    const int64_t slice = 128, slices = (n + slice - 1) / slice;
#pragma omp parallel for schedule(static)
    for (int64_t unit = 0; unit < heads * slices; unit++) {
        const int64_t h = unit / slices, begin = unit % slices * slice, end = std::min(n, begin + slice);
        const int64_t* from = slots + apart * h * n;
        for (int64_t i = begin; i < end; i++) {
            if (i + 16 < end)
                for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(x + h * pitch + from[i + 16] * bytes + b);
            std::memcpy(out + (h * n + i) * bytes, x + h * pitch + from[i] * bytes, bytes);
        }
    }
}
}

// From scores to a compact copy of the best keys: what stands between a verify pass and the next draft.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

// Unsigned integers in the order of the floats.
static inline uint32_t ordered(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// The key of the count-th largest of n (count >= 1), and how many are above it. A sample says between which two keys it
// lies; one pass counts those above and collects the few between. Where the sample misled, everything is between.
static uint32_t threshold(const uint32_t* keys, int64_t n, int64_t count, int64_t& above) {
    constexpr int64_t EACH = 16;
    static thread_local std::vector<uint32_t> sample, between;
    const int64_t size = n / EACH, place = count / EACH, margin = 8 + 4 * static_cast<int64_t>(std::sqrt(place));
    uint32_t high = ~0u, low = 0;
    sample.resize(size);
    for (int64_t i = 0; i < size; i++) sample[i] = keys[i * EACH + i * 7 % EACH];
    const auto ranked = [&](int64_t rank) {
        std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<uint32_t>());
        return sample[rank];
    };
    if (place + margin < size) low = ranked(place + margin);
    if (place - margin > 0 && place - margin < size) high = ranked(place - margin);
    between.resize(n + 1);
    for (;;) {
        int64_t found = 0;
        above = 0;
        for (int64_t i = 0; i < n; i++) above += keys[i] > high;
        for (int64_t i = 0; i < n; i++) {
            between[found] = keys[i];
            found += keys[i] >= low && keys[i] <= high;
        }
        if (above < count && count <= above + found) {
            const auto at = between.begin() + (count - above - 1);
            std::nth_element(between.begin(), at, between.begin() + found, std::greater<uint32_t>());
            const uint32_t least = *at;
            for (auto x = between.begin(); x != at; ++x) above += *x > least;
            return least;
        }
        low = 0, high = ~0u;
    }
}

extern "C" {
// The count best of each row of n scores, in ascending order of place: picks [rows,count].
// A score lends `share` of itself to each of the next `reach` places. Of equals the earlier are taken.
void longdraft_choose(const float* const* scores, int64_t rows, int64_t n, int64_t reach, float share, int64_t count, int64_t* picks) {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t row = 0; row < rows; row++) {
        const float* s = scores[row];
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

// Change a compact copy of `had` slots into one of n others. k, v [heads, slots, bytes], pitch bytes between heads; out_k,
// out_v [heads, room, bytes] with out_pitch between heads. slots [n], ascending, are wanted; those of the copy are held
// [had], ascending, at places held_at. What is wanted and held stays where it is -> place [n] of each wanted slot.
void longdraft_retake(const char* k, const char* v, int64_t heads, int64_t pitch, int64_t bytes, const int64_t* slots, int64_t n,
                      const int64_t* held, const int64_t* held_at, int64_t had, char* out_k, char* out_v, int64_t out_pitch, int64_t* place) {
    static thread_local std::vector<int64_t> free, fresh;
    free.clear(), fresh.clear();
    for (int64_t i = had; i < n; i++) free.push_back(i);
    int64_t h = 0;
    for (int64_t i = 0; i < n; i++) {
        for (; h < had && held[h] < slots[i]; h++)
            if (held_at[h] < n) free.push_back(held_at[h]);
        const bool here = h < had && held[h] == slots[i];
        if (here && held_at[h] < n)
            place[i] = held_at[h];
        else
            fresh.push_back(i);
        h += here;
    }
    for (; h < had; h++)
        if (held_at[h] < n) free.push_back(held_at[h]);
    const int64_t count = fresh.size();
    for (int64_t j = 0; j < count; j++) place[fresh[j]] = free[j];
    const int64_t* which = fresh.data();
    const int64_t slice = 64, slices = (count + slice - 1) / slice;
#pragma omp parallel for schedule(static)
    for (int64_t unit = 0; unit < 2 * heads * slices; unit++) {
        const int64_t head = unit / slices % heads, begin = unit % slices * slice, end = std::min(count, begin + slice);
        const char* from = (unit < heads * slices ? k : v) + head * pitch;
        char* to = (unit < heads * slices ? out_k : out_v) + head * out_pitch;
        for (int64_t j = begin; j < end; j++) {
            if (j + 16 < end)
                for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(from + slots[which[j + 16]] * bytes + b);
            std::memcpy(to + place[which[j]] * bytes, from + slots[which[j]] * bytes, bytes);
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

// From scores to a compact copy of the best keys: what stands between a verify pass and the next draft.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

constexpr int64_t BLOCK = 64;  // places that are passed over together where none of them is wanted

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
        for (int64_t block = 0; block < n; block += BLOCK) {
            const int64_t end = std::min(n, block + BLOCK);
            uint32_t some = 0;
            for (int64_t i = block; i < end; i++) some |= keys[i] >= low && keys[i] <= high;
            for (int64_t i = block; some && i < end; i++) {
                between[found] = keys[i];
                found += keys[i] >= low && keys[i] <= high;
            }
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

// A compact copy of `had` slots that is to hold n others. k, v [heads, slots, bytes], pitch bytes between heads; out_k, out_v
// [heads, room, bytes] with out_pitch between heads. slots [n], ascending, are wanted; those of the copy are held [had],
// ascending, at places held_at -> place [n] of each wanted slot.
struct Copy {
    const char *k, *v;
    int64_t heads, pitch, bytes;
    const int64_t* slots;
    int64_t n;
    const int64_t *held, *held_at;
    int64_t had;
    char *out_k, *out_v;
    int64_t out_pitch;
    int64_t* place;
};

// A slot to copy, and to which place.
struct Move {
    int64_t from, to;
};

struct Part {
    const Copy* copy;
    const std::vector<Move>* moves;
    int64_t head;
    bool value;
};

static std::vector<Move> changes(const Copy& c) {
    std::vector<int64_t> free, fresh;
    for (int64_t i = c.had; i < c.n; i++) free.push_back(i);
    int64_t h = 0;
    for (int64_t i = 0; i < c.n; i++) {
        for (; h < c.had && c.held[h] < c.slots[i]; h++)
            if (c.held_at[h] < c.n) free.push_back(c.held_at[h]);
        const bool here = h < c.had && c.held[h] == c.slots[i];
        if (here && c.held_at[h] < c.n)
            c.place[i] = c.held_at[h];
        else
            fresh.push_back(i);
        h += here;
    }
    for (; h < c.had; h++)
        if (c.held_at[h] < c.n) free.push_back(c.held_at[h]);
    std::vector<Move> moves;
    moves.reserve(fresh.size());
    for (size_t j = 0; j < fresh.size(); j++) {
        c.place[fresh[j]] = free[j];
        moves.push_back({c.slots[fresh[j]], free[j]});
    }
    return moves;
}

// Copy one head's keys or values. They lie far apart: many are asked for ahead of time.
static void carry(const Part& part) {
    constexpr size_t AHEAD = 24;
    const Copy& c = *part.copy;
    const std::vector<Move>& moves = *part.moves;
    const char* from = (part.value ? c.v : c.k) + part.head * c.pitch;
    char* to = (part.value ? c.out_v : c.out_k) + part.head * c.out_pitch;
    for (size_t j = 0; j < moves.size(); j++) {
        if (j + AHEAD < moves.size())
            for (int64_t b = 0; b < c.bytes; b += 64) {
                __builtin_prefetch(from + moves[j + AHEAD].from * c.bytes + b, 0, 2);
                __builtin_prefetch(to + moves[j + AHEAD].to * c.bytes + b, 1, 2);
            }
        std::memcpy(to + moves[j].to * c.bytes, from + moves[j].from * c.bytes, c.bytes);
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
        for (int64_t block = 0; block < n && at < count; block += BLOCK) {
            const int64_t end = std::min(n, block + BLOCK);
            uint32_t some = 0;
            for (int64_t i = block; i < end; i++) some |= keys[i] >= least;
            for (int64_t i = block; some && i < end && at < count; i++) {
                const bool tie = keys[i] == least && equal > 0;
                out[at] = i;
                at += keys[i] > least || tie;
                equal -= tie;
            }
        }
    }
}

// Every copy becomes one of other slots: what is wanted and held stays where it is.
void longdraft_retake(const Copy* copies, int64_t count) {
    std::vector<std::vector<Move>> moves(count);
    std::vector<Part> parts;
#pragma omp parallel
    {
#pragma omp for schedule(static, 1)
        for (int64_t i = 0; i < count; i++) moves[i] = changes(copies[i]);
#pragma omp single
        for (int64_t i = 0; i < count; i++)
            for (int64_t head = 0; head < copies[i].heads; head++)
                for (const bool value : {false, true}) parts.push_back({&copies[i], &moves[i], head, value});
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < parts.size(); i++) carry(parts[i]);
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

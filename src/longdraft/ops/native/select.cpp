// From scores to a compact copy of the best keys: what stands between a verify pass and the next draft.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include <omp.h>

#include "codes.h"
#include "room.h"
#include "types.h"

constexpr int64_t BLOCK = 64;  // places that are passed over together where none of them is wanted

// Unsigned integers in the order of the floats.
static inline uint32_t ordered(float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// The key of the count-th largest of n (count >= 1), and how many are above it. A sample says between which two keys it
// lies; one pass counts those above and collects the few between. Where the sample misled, everything is between.
// sample: room for n / EACH, between: for n + 1.
constexpr int64_t EACH = 16;
static uint32_t threshold(const uint32_t* keys, int64_t n, int64_t count, int64_t& above, uint32_t* sample, uint32_t* between) {
    const int64_t size = n / EACH, place = count / EACH, margin = 8 + 4 * static_cast<int64_t>(std::sqrt(place));
    uint32_t high = ~0u, low = 0;
    for (int64_t i = 0; i < size; i++) sample[i] = keys[i * EACH + i * 7 % EACH];
    const auto ranked = [&](int64_t rank) {
        std::nth_element(sample, sample + rank, sample + size, std::greater<uint32_t>());
        return sample[rank];
    };
    if (place + margin < size) low = ranked(place + margin);
    if (place - margin > 0 && place - margin < size) high = ranked(place - margin);
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
            uint32_t* at = between + (count - above - 1);
            std::nth_element(between, at, between + found, std::greater<uint32_t>());
            const uint32_t least = *at;
            for (const uint32_t* x = between; x != at; ++x) above += *x > least;
            return least;
        }
        low = 0, high = ~0u;
    }
}

// A slot to copy, and to which place.
struct Move {
    int64_t from, to;
};

// What one copy is to do: its moves, `count` of them; and room for places that are free.
struct Plan {
    Move* moves;
    int64_t* free;
    int64_t count;
};

struct Part {
    const Copy* copy;
    const Plan* plan;
    int64_t head;
    bool value;
};

static int64_t most_free(const Copy& c) { return std::max(c.n, c.had); }

static bool fits(const Copy& c) {
    return from_to(c.n, 0, std::min(c.room, c.size)) && from_to(c.had, 0, c.room) && from_to(c.heads, 1, MANY) && from_to(c.bytes, 1, MANY);
}

// Whether all slots are there.
static bool sound(const Copy& c) {
    bool good = true;
    for (int64_t i = 0; i < c.n; i++) good &= c.slots[i] >= 0 && c.slots[i] < c.size;
    for (int64_t i = 0; i < c.had; i++) good &= c.held_at[i] >= 0 && c.held_at[i] < c.room;
    return good;
}

static bool ascending(const int64_t* x, int64_t n) {
    bool good = true;
    for (int64_t i = 1; i < n; i++) good &= x[i - 1] < x[i];
    return good;
}

// Fills the plan of a sound copy -> whether there was a place for everything. Slots in another order than ascending are all
// copied anew: what is held is not found among them.
static bool changes(const Copy& c, Plan& plan) {
    const int64_t had = ascending(c.slots, c.n) && ascending(c.held, c.had) ? c.had : 0;
    int64_t h = 0, open = 0, fresh = 0;
    for (int64_t i = had; i < c.n; i++) plan.free[open++] = i;
    const auto lose = [&](int64_t at) {
        if (at < c.n && open < most_free(c)) plan.free[open++] = at;
    };
    for (int64_t i = 0; i < c.n; i++) {
        for (; h < had && c.held[h] < c.slots[i]; h++) lose(c.held_at[h]);
        const bool here = h < had && c.held[h] == c.slots[i];
        if (here && c.held_at[h] < c.n)
            c.place[i] = c.held_at[h];
        else
            plan.moves[fresh++].to = i;
        h += here;
    }
    for (; h < had; h++) lose(c.held_at[h]);
    if (fresh > open) return false;
    for (int64_t j = 0; j < fresh; j++) {
        const int64_t i = plan.moves[j].to;
        c.place[i] = plan.free[j];
        plan.moves[j] = {c.slots[i], plan.free[j]};
    }
    plan.count = fresh;
    return true;
}

// Copy one head's keys or values. They lie far apart: many are asked for ahead of time.
static void carry(const Part& part) {
    constexpr int64_t AHEAD = 24;
    const Copy& c = *part.copy;
    const Move* moves = part.plan->moves;
    const int64_t count = part.plan->count;
    const char* from = (part.value ? c.v : c.k) + part.head * c.pitch;
    char* to = (part.value ? c.out_v : c.out_k) + part.head * c.out_pitch;
    for (int64_t j = 0; j < count; j++) {
        if (j + AHEAD < count)
            for (int64_t b = 0; b < c.bytes; b += 64) {
                __builtin_prefetch(from + moves[j + AHEAD].from * c.bytes + b, 0, 2);
                __builtin_prefetch(to + moves[j + AHEAD].to * c.bytes + b, 1, 2);
            }
        std::memcpy(to + moves[j].to * c.bytes, from + moves[j].from * c.bytes, c.bytes);
    }
}

// What a thread needs to choose of n.
struct ChooseRoom {
    float* lent;
    uint32_t *keys, *sample, *between;
    ChooseRoom(Cut& cut, int64_t n) : lent(cut.take<float>(n)), keys(cut.take<uint32_t>(n)), sample(cut.take<uint32_t>(n / EACH)), between(cut.take<uint32_t>(n + 1)) {}
};

static void choose(const float* s, int64_t n, int64_t reach, float share, int64_t count, int64_t* out, const ChooseRoom& t) {
    std::fill(t.lent, t.lent + n, 0.0f);
    for (int64_t j = 1; j <= reach; j++)
        for (int64_t i = j; i < n; i++) t.lent[i] += s[i - j];
    for (int64_t i = 0; i < n; i++) t.keys[i] = ordered(s[i] + share * t.lent[i]);
    int64_t above, at = 0;
    const uint32_t least = threshold(t.keys, n, count, above, t.sample, t.between);
    int64_t equal = count - above;
    for (int64_t block = 0; block < n && at < count; block += BLOCK) {
        const int64_t end = std::min(n, block + BLOCK);
        uint32_t some = 0;
        for (int64_t i = block; i < end; i++) some |= t.keys[i] >= least;
        for (int64_t i = block; some && i < end && at < count; i++) {
            const bool tie = t.keys[i] == least && equal > 0;
            out[at] = i;
            at += t.keys[i] > least || tie;
            equal -= tie;
        }
    }
}

// The plans of some copies, and a part for each head's keys and values.
struct RetakeRoom {
    Plan* plans;
    Part* parts;
    int64_t total = 0;
    RetakeRoom(Cut& cut, const Copy* copies, int64_t count) : plans(cut.take<Plan>(count)) {
        for (int64_t i = 0; i < count; i++) {
            Move* moves = cut.take<Move>(copies[i].n);
            int64_t* free = cut.take<int64_t>(most_free(copies[i]));
            if (plans) plans[i] = {moves, free, 0};
            total += 2 * copies[i].heads;
        }
        parts = cut.take<Part>(total);
    }
};

// Kept by each thread that calls: fresh memory of this size costs more than the work. Threads of the pool have their parts.
template <typename Kind>
static Buffer<char>& kept_room() {
    static thread_local Buffer<char> room;
    return room;
}
constexpr int64_t KEPT = int64_t{64} << 20;  // a wider call gives its memory back

template <typename Kind, typename Call>
static int with_room(Call call) noexcept {
    Buffer<char>& room = kept_room<Kind>();
    const int code = guarded([&] { return call(room); });
    if (room.bytes() > KEPT) room.clear();
    return code;
}

extern "C" {
// The count best of each row of n scores, in ascending order of place: picks [rows,count].
// A score lends `share` of itself to each of the next `reach` places. Of equals the earlier are taken.
int longdraft_choose(const float* const* scores, int64_t rows, int64_t n, int64_t reach, float share, int64_t count, int64_t* picks) {
    if (!from_to(rows, 1, MANY) || !from_to(n, 1, MANY) || !from_to(count, 1, n) || !from_to(reach, 0, MANY)) return SCORES;
    return with_room<ChooseRoom>([&](Buffer<char>& room) {
        Cut size;
        ChooseRoom(size, n);
        const int threads = omp_get_max_threads();
        char* own = room.room(threads * size.bytes());
#pragma omp parallel num_threads(threads)
        {
            Cut cut(own + omp_get_thread_num() * size.bytes());
            const ChooseRoom mine(cut, n);
#pragma omp for schedule(dynamic, 1)
            for (int64_t row = 0; row < rows; row++) choose(scores[row], n, reach, share, count, picks + row * count, mine);
        }
        return DONE;
    });
}

// Every copy becomes one of other slots: what is wanted and held stays where it is.
int longdraft_retake(const Copy* copies, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!fits(copies[i])) return COPIES;
    return with_room<Plan>([&](Buffer<char>& room) {
        Cut size;
        RetakeRoom(size, copies, count);
        Cut cut(room.room(size.bytes()));
        const RetakeRoom t(cut, copies, count);
        for (int64_t i = 0, at = 0; i < count; i++)
            for (int64_t head = 0; head < copies[i].heads; head++)
                for (const bool value : {false, true}) t.parts[at++] = {&copies[i], &t.plans[i], head, value};
        std::atomic<bool> whole{true};
#pragma omp parallel
        {
#pragma omp for schedule(static, 1)
            for (int64_t i = 0; i < count; i++)
                if (!sound(copies[i]) || !changes(copies[i], t.plans[i])) whole = false;
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < t.total; i++)
                if (whole) carry(t.parts[i]);
        }
        return whole ? DONE : COPIES;
    });
}

// Rows x [heads, size, bytes] at slots [n], or [heads,n] where `apart`: out [heads,n,bytes]. pitch: bytes between heads.
int longdraft_take(const char* x, int64_t heads, int64_t size, int64_t pitch, int64_t bytes, const int64_t* slots, int64_t n, int64_t apart, char* out) {
    bool good = true;
    for (int64_t i = 0; i < (apart ? heads : 1) * n; i++) good &= slots[i] >= 0 && slots[i] < size;
    if (!good) return COPIES;
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
    return DONE;
}
}

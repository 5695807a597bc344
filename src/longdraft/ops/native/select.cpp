// From scores to a compact copy of the best keys: the work between a verify pass and the next draft.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>

#include "coded_keys.h"
#include "guard.h"
#include "memory.h"
#include "openmp.h"
#include "team.h"

constexpr int64_t SKIPPED = 64;  // positions that are skipped together where none of them is chosen

// Unsigned integers in the order of the floats.
static inline uint32_t ordered(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Two keys between which the count-th largest of n keys probably lies, from a sample of every EACH-th key.
constexpr int64_t EACH = 16;
static void estimate(const uint32_t* keys, int64_t n, int64_t count, uint32_t& low, uint32_t& high, uint32_t* sample) {
    const int64_t size = n / EACH, place = count / EACH, margin = 8 + 4 * static_cast<int64_t>(std::sqrt(place));
    for (int64_t i = 0; i < size; i++) sample[i] = keys[i * EACH + i * 7 % EACH];
    const auto ranked = [&](int64_t rank) {
        std::nth_element(sample, sample + rank, sample + size, std::greater<uint32_t>());
        return sample[rank];
    };
    low = 0, high = ~0u;
    if (place + margin < size) low = ranked(place + margin);
    if (place - margin > 0 && place - margin < size) high = ranked(place - margin);
}

// Collects the keys of [low, high] -> how many there are; above: how many keys are greater.
static int64_t collect(const uint32_t* keys, int64_t n, uint32_t low, uint32_t high, int64_t& above, uint32_t* between) {
    int64_t found = 0;
    above = 0;
    for (int64_t i = 0; i < n; i++) above += keys[i] > high;
    for (int64_t block = 0; block < n; block += SKIPPED) {
        const int64_t end = std::min(n, block + SKIPPED);
        uint32_t some = 0;
        for (int64_t i = block; i < end; i++) some |= keys[i] >= low && keys[i] <= high;
        for (int64_t i = block; some && i < end; i++) {
            between[found] = keys[i];
            found += keys[i] >= low && keys[i] <= high;
        }
    }
    return found;
}

// The count-th largest of n keys (count >= 1), and how many keys are greater. If the estimate was wrong, all keys are
// searched. Arrays: sample [n / EACH], between [n + 1].
static uint32_t threshold(const uint32_t* keys, int64_t n, int64_t count, int64_t& above, uint32_t* sample, uint32_t* between) {
    uint32_t low, high;
    estimate(keys, n, count, low, high, sample);
    int64_t found = collect(keys, n, low, high, above, between);
    if (above >= count || count > above + found) found = collect(keys, n, 0, ~0u, above, between);
    uint32_t* at = between + (count - above - 1);
    std::nth_element(between, at, between + found, std::greater<uint32_t>());
    const uint32_t least = *at;
    for (const uint32_t* x = between; x != at; ++x) above += *x > least;
    return least;
}

// What a thread needs to choose among n scores.
struct ChooseMemory {
    float* passed_on;
    uint32_t *keys, *sample, *between;
    ChooseMemory(Arena& arena, int64_t n)
        : passed_on(arena.array<float>(n)), keys(arena.array<uint32_t>(n)), sample(arena.array<uint32_t>(n / EACH)),
          between(arena.array<uint32_t>(n + 1)) {}
};

static void choose(const float* scores, int64_t n, int64_t reach, float share, int64_t count, int64_t* out,
                   const ChooseMemory& t) {
    std::fill(t.passed_on, t.passed_on + n, 0.0f);
    for (int64_t j = 1; j <= reach; j++)
        for (int64_t i = j; i < n; i++) t.passed_on[i] += scores[i - j];
    for (int64_t i = 0; i < n; i++) t.keys[i] = ordered(scores[i] + share * t.passed_on[i]);
    int64_t above, found = 0;
    const uint32_t least = threshold(t.keys, n, count, above, t.sample, t.between);
    int64_t equal = count - above;  // how many keys equal to the smallest one chosen are still to be chosen
    for (int64_t block = 0; block < n && found < count; block += SKIPPED) {
        const int64_t end = std::min(n, block + SKIPPED);
        uint32_t some = 0;
        for (int64_t i = block; i < end; i++) some |= t.keys[i] >= least;
        for (int64_t i = block; some && i < end && found < count; i++) {
            const bool tie = t.keys[i] == least && equal > 0;
            out[found] = i;
            found += t.keys[i] > least || tie;
            equal -= tie;
        }
    }
}

// A slot to copy, and the place it is copied to.
struct Move {
    int64_t from, to;
};

// What is to be done for one Copy: its `count` moves; free: memory for the list of free places.
struct Plan {
    Move* moves;
    int64_t* free;
    int64_t count;
};

// One head's keys or values of one Copy: a unit of work.
struct HeadCopy {
    const Copy* copy;
    const Plan* plan;
    int64_t head;
    bool value;
};

static int64_t most_free(const Copy& c) { return std::max(c.count, c.held_count); }

static int64_t number_bytes(const Copy& c) { return c.half ? sizeof(bf16) : sizeof(float); }

// The numbers of a slot, where they or their codes are encoded.
static int64_t numbers(const Copy& c) { return c.dim ? c.dim : c.slot_bytes / number_bytes(c); }

static int64_t out_bytes(const Copy& c) { return c.bits ? coded_bytes(numbers(c), c.bits) : c.slot_bytes; }

static bool can_encode(int64_t D) { return D > 0 && D % 16 == 0 && D <= LONGEST; }

static bool codes_fit(const Copy& c) {
    if (c.bits != 4 && c.bits != 8) return false;
    const int64_t stored = c.dim ? coded_bytes(c.dim, 8) : numbers(c) * number_bytes(c);
    return can_encode(numbers(c)) && c.slot_bytes == stored;
}

static bool sizes_fit(const Copy& c) {
    if (c.bits && !codes_fit(c)) return false;
    return in_range(c.count, 0, std::min(c.room, c.size)) && in_range(c.held_count, 0, c.room) && in_range(c.heads, 1, MANY) &&
           in_range(c.slot_bytes, 1, MANY);
}

static bool slots_exist(const Copy& c) {
    bool good = true;
    for (int64_t i = 0; i < c.count; i++) good &= c.wanted[i] >= 0 && c.wanted[i] < c.size;
    for (int64_t i = 0; i < c.held_count; i++) good &= c.held_at[i] >= 0 && c.held_at[i] < c.room;
    return good;
}

static bool ascending(const int64_t* x, int64_t n) {
    bool good = true;
    for (int64_t i = 1; i < n; i++) good &= x[i - 1] < x[i];
    return good;
}

// Fills the plan of a copy whose slots exist -> whether there was a place for every slot. Slots that are not in ascending order
// are all copied again, because the two lists cannot be walked together then.
static bool make_plan(const Copy& c, Plan& plan) {
    const int64_t held = ascending(c.wanted, c.count) && ascending(c.held, c.held_count) ? c.held_count : 0;
    int64_t h = 0, open = 0, fresh = 0;
    for (int64_t i = held; i < c.count; i++) plan.free[open++] = i;
    const auto release = [&](int64_t at) {
        if (at < c.count && open < most_free(c)) plan.free[open++] = at;
    };
    for (int64_t i = 0; i < c.count; i++) {
        for (; h < held && c.held[h] < c.wanted[i]; h++) release(c.held_at[h]);
        const bool here = h < held && c.held[h] == c.wanted[i];
        if (here && c.held_at[h] < c.count)
            c.place[i] = c.held_at[h];
        else
            plan.moves[fresh++].to = i;
        h += here;
    }
    for (; h < held; h++) release(c.held_at[h]);
    if (fresh > open) return false;
    for (int64_t j = 0; j < fresh; j++) {
        const int64_t i = plan.moves[j].to;
        c.place[i] = plan.free[j];
        plan.moves[j] = {c.wanted[i], plan.free[j]};
    }
    plan.count = fresh;
    return true;
}

// The numbers x [D] of a slot that is stored as codes, rounded to bf16 where the cache was given bf16.
static void read_codes(const HeadCopy& unit, const char* from, float* x) {
    const Copy& c = *unit.copy;
    const int64_t D = c.dim;
    if (unit.value)
        decode_value(from, D, x);
    else
        decode_key(from, c.key_offset ? c.key_offset + unit.head * D : nullptr, D, x);
    for (int64_t d = 0; c.half && d < D; d++) x[d] = number(nearest_bf16(x[d]));
}

// Copies a slot, or writes its codes.
static void put(const HeadCopy& unit, char* to, const char* from) {
    const Copy& c = *unit.copy;
    if (!c.bits) return void(std::memcpy(to, from, c.slot_bytes));
    const auto write = [&](const auto* x) {
        const float* const offset = c.dim && c.key_offset ? c.key_offset + unit.head * c.dim : nullptr;
        if (c.bits == 4) return unit.value ? encode_value<4>(x, numbers(c), to) : encode_key<4>(x, offset, numbers(c), to);
        return unit.value ? encode_value<8>(x, numbers(c), to) : encode_key<8>(x, offset, numbers(c), to);
    };
    if (c.dim) {
        alignas(64) float x[LONGEST];
        read_codes(unit, from, x);
        return write(x);
    }
    return c.half ? write(reinterpret_cast<const bf16*>(from)) : write(reinterpret_cast<const float*>(from));
}

// The slots of a head lie far apart, so several are prefetched at a time.
static void carry_out(const HeadCopy& unit) {
    constexpr int64_t AHEAD = 24;
    const Copy& c = *unit.copy;
    if (unit.value && !c.v) return;
    const Move* moves = unit.plan->moves;
    const int64_t count = unit.plan->count, bytes = c.slot_bytes, out = out_bytes(c);
    const char* from = static_cast<const char*>(unit.value ? c.v : c.k) + unit.head * c.stride;
    char* to = static_cast<char*>(unit.value ? c.out_v : c.out_k) + unit.head * c.out_stride;
    for (int64_t j = 0; j < count; j++) {
        if (j + AHEAD < count)
            for (int64_t b = 0; b < bytes; b += 64) {
                __builtin_prefetch(from + moves[j + AHEAD].from * bytes + b, 0, 2);
                __builtin_prefetch(to + moves[j + AHEAD].to * out + b, 1, 2);
            }
        put(unit, to + moves[j].to * out, from + moves[j].from * bytes);
    }
}

// A plan for each of some copies, and a unit of work for the keys and the values of each head.
struct RetakeMemory {
    Plan* plans;
    HeadCopy* units;
    int64_t total = 0;
    RetakeMemory(Arena& arena, const Copy* copies, int64_t count) : plans(arena.array<Plan>(count)) {
        for (int64_t i = 0; i < count; i++) {
            Move* moves = arena.array<Move>(copies[i].count);
            int64_t* free = arena.array<int64_t>(most_free(copies[i]));
            if (plans) plans[i] = {moves, free, 0};
            total += 2 * copies[i].heads;
        }
        units = arena.array<HeadCopy>(total);
    }
};

// Kept by each calling thread: fresh memory of this size takes longer than the work. The pool's threads use parts of it.
template <typename Purpose>
static Buffer<char>& kept_memory() {
    static thread_local Buffer<char> memory;
    return memory;
}
constexpr int64_t KEPT = int64_t{64} << 20;  // bytes; a call that needed more gives its memory back

template <typename Purpose, typename Call>
static Code with_memory(Call call) noexcept {
    Buffer<char>& memory = kept_memory<Purpose>();
    const Code code = guarded([&] { return call(memory); });
    if (memory.bytes() > KEPT) memory.clear();
    return code;
}

Code longdraft_choose(const float* const* scores, int64_t rows, int64_t n, int64_t reach, float share, int64_t count,
                      int64_t* chosen) {
    if (!in_range(rows, 1, MANY) || !in_range(n, 1, MANY) || !in_range(count, 1, n)) return BAD_SCORES;
    if (!in_range(reach, 0, MANY)) return BAD_SCORES;
    return with_memory<ChooseMemory>([&](Buffer<char>& memory) {
        Arena size;
        ChooseMemory(size, n);
        const int threads = team_size();
        char* all = memory.reserve(threads * size.bytes());
#pragma omp parallel num_threads(threads)
        {
            Arena arena(all + omp_get_thread_num() * size.bytes());
            const ChooseMemory mine(arena, n);
#pragma omp for schedule(dynamic, 1)
            for (int64_t row = 0; row < rows; row++) choose(scores[row], n, reach, share, count, chosen + row * count, mine);
        }
        return DONE;
    });
}

Code longdraft_retake(const Copy* copies, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!sizes_fit(copies[i])) return BAD_COPY;
    return with_memory<RetakeMemory>([&](Buffer<char>& memory) {
        Arena size;
        RetakeMemory(size, copies, count);
        Arena arena(memory.reserve(size.bytes()));
        const RetakeMemory t(arena, copies, count);
        for (int64_t i = 0, unit = 0; i < count; i++)
            for (int64_t head = 0; head < copies[i].heads; head++)
                for (const bool value : {false, true}) t.units[unit++] = {&copies[i], &t.plans[i], head, value};
        std::atomic<bool> good{true};
#pragma omp parallel num_threads(team_size())
        {
#pragma omp for schedule(static, 1)
            for (int64_t i = 0; i < count; i++)
                if (!slots_exist(copies[i]) || !make_plan(copies[i], t.plans[i])) good = false;
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < t.total; i++)
                if (good) carry_out(t.units[i]);
        }
        return good ? DONE : BAD_COPY;
    });
}

Code longdraft_take(const void* x, int64_t heads, int64_t size, int64_t stride, int64_t slot_bytes, const int64_t* slots,
                    int64_t count, int64_t per_head, void* out) {
    constexpr int64_t SLICE = 128, AHEAD = 16;
    bool good = true;
    for (int64_t i = 0; i < (per_head ? heads : 1) * count; i++) good &= slots[i] >= 0 && slots[i] < size;
    if (!good) return BAD_COPY;
    const int64_t slices = (count + SLICE - 1) / SLICE;
#pragma omp parallel for schedule(static) num_threads(team_size())
    for (int64_t unit = 0; unit < heads * slices; unit++) {
        const int64_t head = unit / slices, begin = unit % slices * SLICE, end = std::min(count, begin + SLICE);
        const int64_t* chosen = slots + (per_head ? head * count : 0);
        const char* from = static_cast<const char*>(x) + head * stride;
        char* to = static_cast<char*>(out) + head * count * slot_bytes;
        for (int64_t i = begin; i < end; i++) {
            if (i + AHEAD < end)
                for (int64_t b = 0; b < slot_bytes; b += 64) __builtin_prefetch(from + chosen[i + AHEAD] * slot_bytes + b);
            std::memcpy(to + i * slot_bytes, from + chosen[i] * slot_bytes, slot_bytes);
        }
    }
    return DONE;
}

Code longdraft_decode(const void* codes, int64_t heads, int64_t size, int64_t stride, int64_t dim, int64_t keys,
                      const float* offset, int64_t half, void* out) {
    constexpr int64_t SLICE = 64;
    if (!can_encode(dim) || !in_range(heads, 1, MANY) || !in_range(size, 0, MANY)) return BAD_COPY;
    const int64_t slices = (size + SLICE - 1) / SLICE, bytes = coded_bytes(dim, 8);
#pragma omp parallel for schedule(static) num_threads(team_size())
    for (int64_t unit = 0; unit < heads * slices; unit++) {
        const int64_t head = unit / slices, begin = unit % slices * SLICE, end = std::min(size, begin + SLICE);
        const char* from = static_cast<const char*>(codes) + head * stride;
        alignas(64) float x[LONGEST];
        for (int64_t i = begin; i < end; i++) {
            if (keys)
                decode_key(from + i * bytes, offset ? offset + head * dim : nullptr, dim, x);
            else
                decode_value(from + i * bytes, dim, x);
            const int64_t to = (head * size + i) * dim;
            for (int64_t d = 0; d < dim; d += V)
                half ? store(static_cast<bf16*>(out) + to + d, load(x + d)) : store(static_cast<float*>(out) + to + d, load(x + d));
        }
    }
    return DONE;
}

// Memory of a call: all of it is asked for before a parallel region begins, because nothing may throw inside one.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

// Whether a test wants this request to fail (room.cpp).
__attribute__((visibility("hidden"))) bool must_fail();

// Room for elements that are written before they are read. It is kept from call to call and grows when more is asked for;
// what it held is then lost.
template <typename T>
class Buffer {
    T* at = nullptr;
    int64_t held = 0;

   public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { clear(); }

    // Throws std::bad_alloc; the buffer is then empty.
    T* room(int64_t n) {
        if (n <= held) return at;
        clear();
        const int64_t more = n + n / 8;  // a text grows: the next call wants a little more
        if (must_fail() || n > (int64_t{1} << 44) || posix_memalign(reinterpret_cast<void**>(&at), 64, more * sizeof(T))) {
            at = nullptr;
            throw std::bad_alloc();
        }
        held = more;
        return at;
    }
    void clear() {
        std::free(at);
        at = nullptr, held = 0;
    }
    T* data() const { return at; }
    T& operator[](int64_t i) const { return at[i]; }
    int64_t bytes() const { return held * static_cast<int64_t>(sizeof(T)); }
};

// Cuts one piece of memory into arrays that each begin at a line of the cache. Over no memory, it only adds up their size.
class Cut {
    char* at;
    int64_t used = 0;

   public:
    explicit Cut(void* memory = nullptr) : at(static_cast<char*>(memory)) {}
    template <typename T>
    T* take(int64_t n) {
        T* part = at ? reinterpret_cast<T*>(at + used) : nullptr;
        used += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
        return part;
    }
    int64_t bytes() const { return used; }
};

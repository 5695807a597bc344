// Memory of a call: all of it is requested before a parallel region begins, because nothing may throw inside one.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

// Whether a test makes this request fail (memory.cpp).
__attribute__((visibility("hidden"))) bool request_must_fail();

// An array whose elements are written before they are read. It is kept from call to call and grows when a call needs more;
// growing loses its contents.
template <typename T>
class Buffer {
    T* array = nullptr;
    int64_t size = 0;

   public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { clear(); }

    // Makes room for n elements. Throws std::bad_alloc; the buffer is then empty.
    T* reserve(int64_t n) {
        if (n <= size) return array;
        clear();
        const int64_t more = n + n / 8;  // sequences grow, so the next call needs slightly more
        void** const to = reinterpret_cast<void**>(&array);
        if (request_must_fail() || n > (int64_t{1} << 44) || posix_memalign(to, 64, more * sizeof(T))) {
            array = nullptr;
            throw std::bad_alloc();
        }
        size = more;
        return array;
    }
    void clear() {
        std::free(array);
        array = nullptr, size = 0;
    }
    T* data() const { return array; }
    T& operator[](int64_t i) const { return array[i]; }
    int64_t bytes() const { return size * static_cast<int64_t>(sizeof(T)); }
};

// Cuts one piece of memory into arrays that each begin at a cache line. Over no memory, it only adds up their sizes.
class Arena {
    char* memory;
    int64_t used = 0;

   public:
    explicit Arena(void* memory = nullptr) : memory(static_cast<char*>(memory)) {}
    template <typename T>
    T* array(int64_t n) {
        T* begin = memory ? reinterpret_cast<T*>(memory + used) : nullptr;
        used += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
        return begin;
    }
    int64_t bytes() const { return used; }
};

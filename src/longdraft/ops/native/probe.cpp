// Which builds this processor and operating system can run. Compiled without any of their flags and called before a build is
// loaded: no code of a build may run where the processor lacks its instructions.
#include <cstdint>
#include <cstring>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define X86
#endif
#if defined(X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifdef X86
struct Features {
    unsigned basic, extended, more, vectors, amx;  // leaf 1 ecx; leaf 7: ebx, eax of its first sub-leaf, ecx, edx
    uint64_t saved;                       // which registers the system saves for a program
    bool tiles;                           // whether it gives this process the tile registers
};

static Features features() {
    Features f = {};
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) f.basic = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f.extended = b, f.vectors = c, f.amx = d;
        if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.more = a;
    }
    if (f.basic & 1u << 27) {  // the system has enabled xgetbv
        unsigned low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        f.saved = static_cast<uint64_t>(high) << 32 | low;
    }
    return f;
}

static bool has(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

// -mavx2 -mfma -mf16c, and what they imply: AVX, SSE4.2, POPCNT
static bool avx2(const Features& f) {
    return has(f.saved, 0x6) && has(f.basic, 1u << 12 | 1u << 20 | 1u << 23 | 1u << 28 | 1u << 29) && has(f.extended, 1u << 5);
}
// -mavx512f -mavx512dq -mavx512bw -mavx512vl
static bool avx512(const Features& f) {
    return avx2(f) && has(f.saved, 0xe6) && has(f.extended, 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31);
}
// -mavxvnni besides those of avx2
static bool avxvnni(const Features& f) { return avx2(f) && has(f.more, 1u << 4); }
// -mavx512vnni besides those of avx512
static bool avx512vnni(const Features& f) { return avx512(f) && has(f.vectors, 1u << 11); }
// -mavx512bf16 besides
static bool avx512bf16(const Features& f) { return avx512vnni(f) && has(f.more, 1u << 5); }
// -mavx512bf16 -mavx512vnni -mamx-bf16 -mamx-tile
static bool amx(const Features& f) { return avx512bf16(f) && has(f.saved, 0x60000) && has(f.amx, 1u << 22 | 1u << 24) && f.tiles; }

static bool fits(const char* build, const Features& f) {
    if (!std::strcmp(build, "_avx2")) return avx2(f);
    if (!std::strcmp(build, "_avxvnni")) return avxvnni(f);
    if (!std::strcmp(build, "_avx512")) return avx512(f);
    if (!std::strcmp(build, "_avx512vnni")) return avx512vnni(f);
    if (!std::strcmp(build, "_avx512bf16")) return avx512bf16(f);
    return !std::strcmp(build, "_amx") && amx(f);
}

// On Linux a process must request the tile registers.
static bool request_tiles() {
#ifdef __linux__
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

// As if the system offered everything that the processor has.
static Features offered(Features f) {
    f.saved = ~uint64_t{0}, f.tiles = true;
    return f;
}
#endif

// 1 if the build of this name can run here.
extern "C" int longdraft_runs(const char* build) {
#ifdef X86
    Features f = features();
    if (!std::strcmp(build, "_amx") && amx(offered(f))) f.tiles = request_tiles();
    if (fits(build, f)) return 1;
#endif
#ifdef __aarch64__
    if (!std::strcmp(build, "_neon")) return 1;
#endif
    return 0;
}

// Why the build of this name cannot run here: 1, the processor lacks its instructions; 2, the system does not offer them; 0: it can.
extern "C" int longdraft_lacks(const char* build) {
    if (longdraft_runs(build)) return 0;
#ifdef X86
    if (fits(build, offered(features()))) return 2;
#endif
    return 1;
}

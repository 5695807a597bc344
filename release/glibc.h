// Included before every source when wheels are built, so that a machine whose glibc and libstdc++ are older than the
// build machine's can load them: exp and log of glibc's first version (only their handling of errno differs), and the
// one function that libstdc++ got after the wheels' policy.
#include <new>

#if defined(__x86_64__)
__asm__(".symver exp, exp@GLIBC_2.2.5\n.symver log, log@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver exp, exp@GLIBC_2.17\n.symver log, log@GLIBC_2.17");
#endif

namespace std {
[[noreturn]] __attribute__((weak, visibility("hidden"))) void __throw_bad_array_new_length() {
    throw bad_array_new_length();
}
}  // namespace std

// Included before every source when wheels are built: exp and log of glibc's first version, so that a machine whose
// glibc is older than the build machine's loads them. They compute the same; only their handling of errno differs.
#if defined(__x86_64__)
__asm__(".symver exp, exp@GLIBC_2.2.5\n.symver log, log@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver exp, exp@GLIBC_2.17\n.symver log, log@GLIBC_2.17");
#endif

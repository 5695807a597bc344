// Which processor each thread of OpenMP's pool runs on.
#ifdef __linux__
#include <sched.h>
#endif

#include "guard.h"
#include "openmp.h"

int longdraft_pin(int64_t threads, const int64_t* cpus) {
#ifdef __linux__
    for (int64_t i = 0; i < threads; i++)
        if (!in_range(cpus[i], 0, CPU_SETSIZE - 1)) return 0;  // beyond what a cpu_set_t holds
#pragma omp parallel num_threads(threads)
    {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[omp_get_thread_num()], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    return 1;
#else
    static_cast<void>(threads), static_cast<void>(cpus);
    return 0;
#endif
}

// Which processor each thread of the pool runs on.
#include <cstdint>
#ifdef __linux__
#include <omp.h>
#include <sched.h>

#include "codes.h"

// Thread i of the pool may run on processor cpus[i] alone.
extern "C" int longdraft_pin(int64_t threads, const int64_t* cpus) {
    for (int64_t i = 0; i < threads; i++)
        if (!from_to(cpus[i], 0, CPU_SETSIZE - 1)) return NODES;  // more processors than a set holds
#pragma omp parallel num_threads(threads)
    {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[omp_get_thread_num()], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    return DONE;
}
#endif

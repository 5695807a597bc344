// Which processor each thread of the pool runs on.
#include <cstdint>
#ifdef __linux__
#include <omp.h>
#include <sched.h>

// Thread i of the pool may run on processor cpus[i] alone.
extern "C" void longdraft_pin(int64_t threads, const int64_t* cpus) {
#pragma omp parallel num_threads(threads)
    {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpus[omp_get_thread_num()], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
}
#endif

// Which processor each thread of OpenMP's pool runs on, and how many of them compute.
#ifdef __linux__
#include <sched.h>
#endif
#include <vector>

#include "barrier.h"
#include "guard.h"
#include "team.h"

#ifdef __linux__
static std::vector<int> pinned;  // the processor of each thread; empty: they are not pinned

// The first `threads` threads may run on all processors of the pool, or if these are all threads, each on its own.
static void place(int threads, int all) {
    if (pinned.empty() || all != static_cast<int>(pinned.size())) return;
#pragma omp parallel num_threads(threads)
    {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (threads == all)
            CPU_SET(pinned[omp_get_thread_num()], &set);
        else
            for (const int cpu : pinned) CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
}
#else
static void place(int, int) {}
#endif

int longdraft_pin(int64_t threads, const int64_t* cpus) {
#ifdef __linux__
    for (int64_t i = 0; i < threads; i++)
        if (!in_range(cpus[i], 0, CPU_SETSIZE - 1)) return 0;  // beyond what a cpu_set_t holds
    pinned.assign(cpus, cpus + threads);
    if (threads) place(static_cast<int>(threads), static_cast<int>(threads));
    return 1;
#else
    static_cast<void>(threads), static_cast<void>(cpus);
    return 0;
#endif
}

static Team team;

int team_size() { return team.size(omp_get_max_threads(), nanoseconds(), place); }

void team_passed(int threads, int64_t took, int64_t missing) {
    team.passed(threads, omp_get_max_threads(), nanoseconds(), took, missing, place);
}

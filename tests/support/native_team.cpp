// Checks the barrier under threads that come late, and when a team has one thread fewer. Prints what is wrong and exits with 1.
// test_busy.py compiles it.
#include <cstdio>
#include <cstdlib>
#include <thread>
#ifdef __linux__
#include <sched.h>
#endif

#include "barrier.h"
#include "team.h"

static void require(bool good, const char* what) {
    if (good) return;
    std::printf("%s\n", what);
    std::exit(1);
}

static void late(int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

// Nobody passes before all have come, whether the others spin or sleep.
static void barrier(int threads) {
    Barrier barrier;
    std::atomic<int> come{0};
    bool good = true;
#pragma omp parallel num_threads(threads) reduction(&& : good)
    for (int round = 1; round <= 300; round++) {
        if ((round + omp_get_thread_num()) % 3 == 0) late(round % 7 * 60);
        come++;
        barrier.wait();
        good = good && come == round * omp_get_num_threads();
        barrier.wait();
    }
    require(good, "a thread passed the barrier before all had come");
}

#ifdef __linux__
// Computes for so many milliseconds on one processor.
static void compute(int cpu, int milliseconds) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    const int64_t end = nanoseconds() + milliseconds * int64_t{1000000};
    while (nanoseconds() < end) {
    }
}

// The time is counted in which one thread alone was missing because it could not run, not that in which it had more to do.
static void missing() {
    if (kept_waiting() < 0) return;
    Barrier barrier;
    const int cpu = sched_getcpu();
    for (const bool contended : {false, true}) {
        std::thread other([&] { compute(cpu, contended ? 150 : 0); });
#pragma omp parallel num_threads(2)
        {
            if (omp_get_thread_num() == 1) contended ? compute(cpu, 100) : late(100000);
            barrier.wait();
        }
        other.join();
        const int64_t found = barrier.take_missing() / 1000000;
        require(contended ? found >= 15 && found <= 100 : found < 50, "the wait for a processor was counted wrongly");
        require(barrier.take_missing() == 0, "a wait was counted twice");
    }
}
#else
static void missing() {}
#endif

// A simulated clock: passes of 5 ms.
struct Simulation {
    Team team;
    int64_t now = 0;
    int all = 2, changes = 0, last = 0;

    int pass(int percent_missing) {
        const int64_t took = 5000000;
        const auto changed = [&](int threads, int) { changes++, last = threads; };
        const int threads = team.size(all, now, changed);
        now += took;
        team.passed(threads, all, now, took, threads == all ? took * percent_missing / 100 : 0, changed);
        return threads;
    }
    // The mean number of threads of so many passes.
    double passes(int count, int percent_missing) {
        double sum = 0;
        for (int i = 0; i < count; i++) sum += pass(percent_missing);
        return sum / count;
    }
};

static void team() {
    for (const int all : {1, 2, 8}) {
        Simulation s;
        s.all = all;
        require(s.passes(1000, 10) == all && s.changes == 0, "all threads compute as long as none is missing for long");
        const double contended = s.passes(4000, 50);
        require(all == 1 ? contended == 1 : contended < all - 0.9, "one thread fewer computes where one is missing");
        s.passes(400, 0);  // two seconds: the longest pause is over
        require(s.passes(400, 0) == all && (all == 1 || s.last == all), "all threads compute again afterward");
        require(all == 1 ? s.changes == 0 : s.changes % 2 == 0, "every change is reported");
    }
    Simulation other;
    other.passes(40, 50);
    other.all = 1;  // the user has chosen one thread meanwhile
    require(other.passes(10, 0) == 1, "one thread is never reduced");
}

// With an argument: what depends on how the system divides its processors, which other processes can disturb.
int main(int count, char**) {
    if (count > 1) {
        missing();
        return 0;
    }
    for (const int threads : {1, 2, 3, 5}) barrier(threads);
    team();
}

// Use torch's OpenMP threads for our loops.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>

// Use the OpenMP library that torch has loaded; a second library would bring a second set of threads.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
}

namespace corewise {

// Return how many threads a loop may use: the size of the calling thread's team, so that it is not resized.
inline int64_t own_width() { return !GOMP_parallel || at::in_parallel_region() ? 1 : at::get_num_threads(); }

// Call work(part, thread number) for every part; threads take parts one after the other. `work` must not throw.
template <class Work>
void shared_out(int64_t num_parts, int64_t width, const Work& work) {
  struct Team {
    const Work& work;
    const int64_t num_parts;
    std::atomic<int64_t> next{0}, num_threads{0};

    static void run(void* given) {
      Team& team = *static_cast<Team*>(given);
      const int64_t thread = team.num_threads++;
      for (int64_t part = team.next++; part < team.num_parts; part = team.next++) team.work(part, thread);
    }
  } team{work, num_parts};
  if (width > 1 && num_parts > 1)
    GOMP_parallel(&Team::run, &team, unsigned(width), 0);
  else
    Team::run(&team);
}

}  // namespace corewise

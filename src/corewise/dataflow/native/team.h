// The threads that torch has, for loops of our own.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>

extern "C" {  // of the OpenMP that torch has loaded: a library of one's own would bring threads of its own
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
}

namespace corewise {

// How many threads a loop may use: as many as the calling thread's team always has, so that it is not resized.
inline int64_t own_width() { return !GOMP_parallel || at::in_parallel_region() ? 1 : at::get_num_threads(); }

// Calls work(part, number of the thread) for every part; threads take them one after the other. It must not throw.
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

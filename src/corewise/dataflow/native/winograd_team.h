// Parts of a convolution, dealt out to threads.
#pragma once

#include "winograd_versions.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <memory>
#include <new>

extern "C" {  // of the OpenMP that torch has loaded: a library of one's own would bring threads of its own
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
}

namespace corewise::winograd {

constexpr int64_t kMostTiles = 66, kFewTiles = 24;  // of a part: fewer read the weights too often

// Memory of the calling thread that is kept from call to call: new pages would cost as much as some layers.
inline float* scratch(int64_t floats) {
  struct Free {
    void operator()(float* held) const { ::operator delete(held, std::align_val_t(64)); }
  };
  thread_local std::unique_ptr<float, Free> held;
  thread_local int64_t size = 0;
  if (size < floats) {
    held.reset();
    size = 0;
    held.reset(static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t(64))));
    size = floats;
  }
  return held.get();
}

inline int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Parts of a job, taken by threads one after the other, each thread with scratch of its own.
struct Team {
  const Job& job;
  int64_t num_tiles, tiles_each, channels_each, num_along_channels, num_parts, scratch_each;
  float* memory;
  std::atomic<int64_t> next{0}, num_threads{0};

  Team(const Job& given, int64_t images, int64_t most_threads) : job(given) {
    num_tiles = images * job.tiles_down * job.tiles_across;
    const int64_t wanted = std::min(most_threads, quotient_up(num_tiles, kFewTiles));
    const int64_t along_tiles = std::max(wanted, quotient_up(num_tiles, kMostTiles));
    tiles_each = quotient_up(num_tiles, along_tiles);
    if (along_tiles > most_threads) tiles_each = quotient_up(tiles_each, version().rows) * version().rows;
    const int64_t num_along_tiles = quotient_up(num_tiles, tiles_each);
    const int64_t num_blocks = quotient_up(job.out_channels, kChannelBlock);
    const int64_t blocks_each = quotient_up(num_blocks, quotient_up(most_threads, num_along_tiles));
    channels_each = blocks_each * kChannelBlock;
    num_along_channels = quotient_up(num_blocks, blocks_each);
    num_parts = num_along_tiles * num_along_channels;
    scratch_each = quotient_up(scratch_for(tiles_each, job.channels), 16) * 16;
  }

  void work() {
    float* const own = memory + num_threads++ * scratch_each;
    for (int64_t number = next++; number < num_parts; number = next++) {
      const int64_t tile = number / num_along_channels * tiles_each;
      const int64_t channel = number % num_along_channels * channels_each;
      const int64_t end = std::min(channel + channels_each, job.out_channels);
      version().compute(job, {tile, std::min(tiles_each, num_tiles - tile), channel, end}, own);
    }
  }
};

inline void work_on(void* team) { static_cast<Team*>(team)->work(); }

inline void run(Job& job, int64_t images) {
  const bool alone = !GOMP_parallel || at::in_parallel_region();
  const int64_t width = alone ? 1 : at::get_num_threads();
  Team team(job, images, width);
  float* const memory = scratch(job.channels + width * team.scratch_each);
  std::fill(memory, memory + job.channels, 0.0f);
  job.zeros = memory;
  team.memory = memory + job.channels;
  if (width > 1 && team.num_parts > 1)
    GOMP_parallel(work_on, &team, unsigned(width), 0);
  else
    team.work();
}

}  // namespace corewise::winograd

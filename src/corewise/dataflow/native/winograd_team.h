// Parts of a convolution, dealt out to threads.
#pragma once

#include "team.h"
#include "winograd_versions.h"

#include <atomic>
#include <memory>
#include <new>

namespace corewise::winograd {

constexpr int64_t kMostTiles = 66;  // of a part, whose values then stay in the cache

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

// How a job is divided into parts.
struct Division {
  int64_t tiles_each, channels_each, num_along_channels, num_parts;
};

// About what a part takes, in products of vectors: rows that do not fill registers cost half of those that do,
// weights are read as slowly as eight tiles are multiplied, and transforms cost some operations a channel.
inline double cost(int64_t tiles, int64_t channels, int64_t out_channels) {
  const int64_t rows = version().rows, rest = tiles % rows;
  const double filled = double(tiles - rest) + (rest ? 0.5 * double(rows + rest) : 0.0);
  const double products = double(kNumPoints * channels * out_channels) / 16;
  return products * (filled + 8.0) + double(tiles) * (22.0 * double(channels) + 16.0 * double(out_channels));
}

inline Division divided(const Job& job, int64_t num_tiles, int64_t num_threads) {
  const int64_t num_blocks = quotient_up(job.out_channels, kChannelBlock), rows = version().rows;
  const int64_t fewest = quotient_up(num_tiles, kMostTiles), most = std::min(fewest + num_threads - 1, num_tiles);
  Division best = {};
  double least = 0;
  for (int64_t wanted = fewest; wanted <= most; ++wanted) {
    int64_t tiles = quotient_up(num_tiles, wanted);
    if (wanted > num_threads) tiles = quotient_up(tiles, rows) * rows;
    const int64_t along_tiles = quotient_up(num_tiles, tiles);
    for (int64_t blocks = num_blocks; blocks > 0; --blocks) {
      const int64_t along_channels = quotient_up(num_blocks, blocks), parts = along_tiles * along_channels;
      const int64_t channels = std::min(blocks * kChannelBlock, job.out_channels);
      const double found = double(quotient_up(parts, num_threads)) * cost(tiles, job.channels, channels);
      if (best.num_parts && found >= least) continue;
      least = found;
      best = {tiles, blocks * kChannelBlock, along_channels, parts};
      if (num_threads == 1) return best;
    }
  }
  return best;
}

// Parts of a job, taken by threads one after the other, each thread with scratch of its own.
struct Team {
  const Job& job;
  const int64_t num_tiles;
  const Division division;
  const int64_t scratch_each;
  float* memory = nullptr;
  std::atomic<int64_t> next{0}, num_threads{0};

  Team(const Job& given, int64_t images, int64_t most_threads)
      : job(given),
        num_tiles(images * job.tiles_down * job.tiles_across),
        division(divided(job, num_tiles, most_threads)),
        scratch_each(quotient_up(scratch_for(division.tiles_each, job.channels), 16) * 16) {}

  void work() {
    float* const own = memory + num_threads++ * scratch_each;
    for (int64_t number = next++; number < division.num_parts; number = next++) {
      const int64_t tile = number / division.num_along_channels * division.tiles_each;
      const int64_t channel = number % division.num_along_channels * division.channels_each;
      const int64_t end = std::min(channel + division.channels_each, job.out_channels);
      version().compute(job, {tile, std::min(division.tiles_each, num_tiles - tile), channel, end}, own);
    }
  }
};

inline void work_on(void* team) { static_cast<Team*>(team)->work(); }

inline void run(Job& job, int64_t images) {
  const int64_t width = own_width();
  Team team(job, images, width);
  float* const memory = scratch(job.channels + width * team.scratch_each);
  std::fill(memory, memory + job.channels, 0.0f);
  job.zeros = memory;
  team.memory = memory + job.channels;
  if (width > 1 && team.division.num_parts > 1)
    GOMP_parallel(work_on, &team, unsigned(width), 0);
  else
    team.work();
}

}  // namespace corewise::winograd

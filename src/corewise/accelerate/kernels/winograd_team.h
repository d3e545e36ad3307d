// Distribute the parts of a convolution over threads.
#pragma once

#include "team.h"
#include "winograd_versions.h"

#include <memory>
#include <new>

namespace corewise::winograd {

enum class For { parts, weights };

// Scratch memory of the calling thread, reused between calls: new pages would cost as much as some layers.
template <For purpose>
float* scratch(int64_t floats) {
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

// The fewest tiles of a range.
constexpr int64_t kFewestTiles = 16;

inline int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a job is divided into parts.
struct Division {
  int64_t tiles_each, channels_each, num_along_channels, num_parts;
};

// Estimate the cost of a part in vector products: rows that do not fill the registers cost half of those that do,
// reading weights costs as much as multiplying eight tiles, and transforms cost some operations per channel.
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

inline void run(Job& job, int64_t images) {
  const int64_t width = own_width(), num_tiles = images * job.tiles_down * job.tiles_across;
  const Division division = divided(job, num_tiles, width);
  const int64_t each = quotient_up(scratch_for(division.tiles_each, job.channels), 16) * 16;
  float* const memory = scratch<For::parts>(job.channels + width * each);
  std::fill(memory, memory + job.channels, 0.0f);
  job.zeros = memory;
  shared_out(division.num_parts, width, [&](int64_t number, int64_t thread) {
    const int64_t tile = number / division.num_along_channels * division.tiles_each;
    const int64_t channel = number % division.num_along_channels * division.channels_each;
    const int64_t end = std::min(channel + division.channels_each, job.out_channels);
    const Part part = {tile, std::min(division.tiles_each, num_tiles - tile), channel, end};
    version().compute(job, part, memory + job.channels + thread * each);
  });
}

// How the gradient of the weights is divided: ranges of tiles, each with separate sums, and blocks of channels.
struct GradientDivision {
  int64_t num_ranges, num_in, num_out;
};

inline GradientDivision gradient_divided(const GradientJob& job, int64_t num_tiles, int64_t num_threads) {
  const int64_t num_in = quotient_up(job.of.channels, kInBlock);
  const int64_t num_out = quotient_up(job.of.out_channels, kChannelBlock), blocks = num_in * num_out;
  const int64_t most = std::max<int64_t>(1, std::min(num_threads, num_tiles / kFewestTiles));
  GradientDivision best = {1, num_in, num_out};
  double least = 0;
  for (int64_t ranges = 1; ranges <= most; ++ranges) {
    // Adding up the sums of the ranges has a cost as well.
    const double tiles_each = double(quotient_up(num_tiles, ranges)) + kFewestTiles;
    const double found = double(quotient_up(ranges * blocks, num_threads)) * tiles_each;
    if (ranges > 1 && found >= least) continue;
    least = found;
    best.num_ranges = ranges;
  }
  return best;
}

inline void add_gradients(GradientJob& job, int64_t num_tiles, const GradientDivision& division, int64_t width) {
  const int64_t each = quotient_up(gradient_scratch(), 16) * 16;
  const int64_t num_zeros = std::max(job.of.channels, job.of.out_channels);
  float* const memory = scratch<For::parts>(num_zeros + width * each);
  std::fill(memory, memory + num_zeros, 0.0f);
  job.of.zeros = memory;
  const int64_t tiles_each = quotient_up(num_tiles, division.num_ranges);
  const int64_t sums_each = job.kernel * job.kernel * job.of.channels * job.of.out_channels;
  const int64_t num_parts = division.num_ranges * division.num_in * division.num_out;
  shared_out(num_parts, width, [&](int64_t number, int64_t thread) {
    const int64_t out = number % division.num_out * kChannelBlock, rest = number / division.num_out;
    const int64_t in = rest % division.num_in * kInBlock, range = rest / division.num_in;
    const int64_t end = std::min((range + 1) * tiles_each, num_tiles);
    const GradientPart part = {
        std::min(range * tiles_each, end), end, in, std::min(in + kInBlock, job.of.channels), out,
        std::min(out + kChannelBlock, job.of.out_channels), job.sums + range * sums_each};
    version().add_gradient(job, part, memory + num_zeros + thread * each);
  });
}

}  // namespace corewise::winograd

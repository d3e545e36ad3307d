// Convolutions of 3 x 3 and 5 x 5 by Winograd's way: what the instruction sets share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corewise::winograd {

constexpr int kIn = 6, kNumPoints = kIn * kIn;  // 6 x 6 values make a tile of 4 x 4 results, of 2 x 2 for 5 x 5
constexpr int64_t kChannelStep = 16;  // channels come in such groups, in and out, whatever the processor
constexpr int64_t kChannelBlock = 64;  // results that are computed before they are transformed back
constexpr int64_t kApart = 16;  // so many floats between planes, which would share few lines of the cache

// Polynomials are evaluated at 0, +-a, +-b and infinity. These two halve the error of +-1 and +-2, a * b is 1,
// which saves a product, and their squares are exact.
constexpr float kA = 0.70710678118654752440f, kB = 1.41421356237309504880f, kA2 = 0.5f, kB2 = 2.0f;

struct Job {
  const float *x, *weights, *bias, *added, *zeros;  // images are channels_last; zeros: as many as channels
  float* y;
  int64_t height, width, channels;
  int64_t out_height, out_width, out_channels;
  int64_t pad_height, pad_width;
  int64_t tile, tiles_down, tiles_across;  // results along a tile, tiles of an image
  bool relu;
};

// The gradient of weights: what a part of it is made of, and where its sums go.
struct GradientJob {
  Job of;  // the convolution, whose y is not used
  const float* dy;
  const float* powers;  // of the points, kernel by kIn, divided as their interpolation asks
  float* sums;  // for each range of tiles: kernel by kernel by channels by out_channels
  int64_t kernel;
};

struct GradientPart {
  int64_t first_tile, end_tile, first_in, end_in, first_out, end_out;
  float* to;
};

// Tiles and channels of the result that are computed at once; the channels are a multiple of the block's.
struct Part {
  int64_t first_tile, num_tiles, first_channel, end_channel;
};

inline int64_t plane_of(int64_t tiles, int64_t channels) { return tiles * channels + kApart; }

inline int64_t scratch_for(int64_t tiles, int64_t channels) {
  return kNumPoints * (plane_of(tiles, channels) + plane_of(tiles, kChannelBlock));
}

constexpr int64_t kMostTiles = 66;  // of a part, whose values then stay in the cache
constexpr int64_t kInBlock = 128;  // channels whose gradients stay in the cache

inline int64_t gradient_scratch() {
  return kNumPoints * (plane_of(kMostTiles, kInBlock) + plane_of(kMostTiles, kChannelBlock) + kInBlock * kChannelBlock);
}

// Weights where they are, whatever their order.
struct Weights {
  const float* at;
  const float* powers;  // as above
  int64_t kernel, channels;
  int64_t row, column, in, out;  // how far apart they lie along each
};

// Channels of one panel, at most a step of those of the input.
struct WeightsPart {
  int64_t first_out, width, first_in, end_in;
};

// What an instruction set offers; weights lie in panels that are `panel` channels wide.
struct Version {
  int64_t panel, rows;
  void (*compute)(const Job& job, const Part& part, float* scratch);
  void (*add_gradient)(const GradientJob& job, const GradientPart& part, float* scratch);
  // Results, kernel by kernel, channels: as weights lie that are channels_last. At most a step of channels at once.
  void (*add_ranges)(const GradientJob& job, int64_t num_ranges, int64_t first, int64_t end, float* to);
  void (*transform_weights)(const Weights& given, const WeightsPart& part, float* panel);
};

}  // namespace corewise::winograd

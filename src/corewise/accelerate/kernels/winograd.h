// Winograd convolution of 3 x 3 and 5 x 5 kernels: what the instruction sets share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corewise::winograd {

// A tile of 6 x 6 values gives 4 x 4 results, or 2 x 2 for 5 x 5 kernels.
constexpr int kIn = 6, kNumPoints = kIn * kIn;
// Input and output channels are grouped by this number on every processor.
constexpr int64_t kChannelStep = 16;
// Output channels that are computed before they are transformed back.
constexpr int64_t kChannelBlock = 64;
// Floats between planes, because adjacent planes would share few cache lines.
constexpr int64_t kApart = 16;

// Polynomials are evaluated at 0, +-a, +-b and infinity. These values halve the error of +-1 and +-2. a * b is 1, which
// saves a product, and their squares are exact.
constexpr float kA = 0.70710678118654752440f, kB = 1.41421356237309504880f, kA2 = 0.5f, kB2 = 2.0f;

struct Job {
  // Images are channels_last; `zeros` has as many elements as there are channels.
  const float *x, *weights, *bias, *added, *zeros;
  float* y;
  int64_t height, width, channels;
  int64_t out_height, out_width, out_channels;
  int64_t pad_height, pad_width;
  // Results along a tile edge, and tiles of an image.
  int64_t tile, tiles_down, tiles_across;
  bool relu;
};

// The gradient of the weights: its inputs and where its sums go.
struct GradientJob {
  // The convolution; its y is not used.
  Job of;
  const float* dy;
  // Powers of the points, kernel by kIn, divided by the interpolation's denominators.
  const float* powers;
  // For each range of tiles: kernel by kernel by channels by out_channels.
  float* sums;
  int64_t kernel;
};

struct GradientPart {
  int64_t first_tile, end_tile, first_in, end_in, first_out, end_out;
  float* to;
};

// Tiles and output channels that are computed together; the channels are a multiple of the block's.
struct Part {
  int64_t first_tile, num_tiles, first_channel, end_channel;
};

inline int64_t plane_of(int64_t tiles, int64_t channels) { return tiles * channels + kApart; }

inline int64_t scratch_for(int64_t tiles, int64_t channels) {
  return kNumPoints * (plane_of(tiles, channels) + plane_of(tiles, kChannelBlock));
}

// The most tiles of a part; its values then stay in the cache.
constexpr int64_t kMostTiles = 66;
// Input channels whose gradients stay in the cache.
constexpr int64_t kInBlock = 128;

inline int64_t gradient_scratch() {
  return kNumPoints * (plane_of(kMostTiles, kInBlock) + plane_of(kMostTiles, kChannelBlock) + kInBlock * kChannelBlock);
}

// Weights in place, in any memory order.
struct Weights {
  const float* at;
  // As in WeightGradient.
  const float* powers;
  int64_t kernel, channels;
  // The strides along each dimension.
  int64_t row, column, in, out;
};

// Channels of one panel: at most one step of the input's channels.
struct WeightsPart {
  int64_t first_out, width, first_in, end_in;
};

// What an instruction set provides; weights lie in panels of `panel` channels.
struct Version {
  int64_t panel, rows;
  void (*compute)(const Job& job, const Part& part, float* scratch);
  void (*add_gradient)(const GradientJob& job, const GradientPart& part, float* scratch);
  // Results, kernel by kernel, channels: the layout of channels_last weights. At most one step of channels at a time.
  void (*add_ranges)(const GradientJob& job, int64_t num_ranges, int64_t first, int64_t end, float* to);
  void (*transform_weights)(const Weights& given, const WeightsPart& part, float* panel);
};

}  // namespace corewise::winograd

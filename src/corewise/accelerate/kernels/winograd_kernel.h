// Products and transforms of a part of a convolution. Included once per instruction set, which defines the floats in a
// vector (COREWISE_LANES) and the sums held in registers (COREWISE_ROWS by COREWISE_VECTORS).

#define COREWISE_INLINE static inline __attribute__((always_inline))

typedef float Lanes __attribute__((vector_size(COREWISE_LANES * sizeof(float))));
typedef float InMemory __attribute__((vector_size(COREWISE_LANES * sizeof(float)), aligned(4), may_alias));

constexpr int64_t kLanes = COREWISE_LANES, kPanel = COREWISE_LANES * COREWISE_VECTORS;
constexpr int kRows = COREWISE_ROWS, kVectors = COREWISE_VECTORS;

COREWISE_INLINE Lanes load(const float* from) { return *reinterpret_cast<const InMemory*>(from); }

COREWISE_INLINE void store(float* to, Lanes value) { *reinterpret_cast<InMemory*>(to) = value; }

COREWISE_INLINE void evaluate(const Lanes (&d)[kIn], Lanes (&at)[kIn]) {
  const Lanes even_a = d[4] - kB2 * d[2], odd_a = d[3] - kB2 * d[1];
  const Lanes even_b = d[4] - kA2 * d[2], odd_b = d[3] - kA2 * d[1];
  at[0] = (d[0] + d[4]) - (kA2 + kB2) * d[2];
  at[1] = even_a + kA * odd_a;
  at[2] = even_a - kA * odd_a;
  at[3] = even_b + kB * odd_b;
  at[4] = even_b - kB * odd_b;
  at[5] = (d[1] + d[5]) - (kA2 + kB2) * d[3];
}

COREWISE_INLINE void interpolate(const Lanes (&at)[kIn], Lanes (&y)[2]) {
  y[0] = at[0] + ((at[1] + at[2]) + (at[3] + at[4]));
  y[1] = kA * (at[1] - at[2]) + (kB * (at[3] - at[4]) + at[5]);
}

COREWISE_INLINE void interpolate(const Lanes (&at)[kIn], Lanes (&y)[4]) {
  const Lanes sum_a = at[1] + at[2], difference_a = at[1] - at[2];
  const Lanes sum_b = at[3] + at[4], difference_b = at[3] - at[4];
  y[0] = at[0] + (sum_a + sum_b);
  y[1] = kA * difference_a + kB * difference_b;
  y[2] = kA2 * sum_a + kB2 * sum_b;
  y[3] = (kA * kA2) * difference_a + ((kB * kB2) * difference_b + at[5]);
}

// A tile's position in its image, in results; its input values begin where the padding does.
struct Tile {
  int64_t image, row, column;
};

COREWISE_INLINE Tile tile_at(const Job& job, int64_t number) {
  const int64_t per_image = job.tiles_down * job.tiles_across, within = number % per_image;
  return {number / per_image, within / job.tiles_across * job.tile, within % job.tiles_across * job.tile};
}

// Find the address of each value of a tile; padding points to zeros.
COREWISE_INLINE void find_values(const Job& job, const Tile& tile, const float* (&at)[kNumPoints]) {
  const float* const image = job.x + tile.image * job.height * job.width * job.channels;
  for (int64_t i = 0; i < kIn; ++i)
    for (int64_t j = 0; j < kIn; ++j) {
      const int64_t row = tile.row - job.pad_height + i, column = tile.column - job.pad_width + j;
      const bool is_inside = row >= 0 && row < job.height && column >= 0 && column < job.width;
      at[i * kIn + j] = is_inside ? image + (row * job.width + column) * job.channels : job.zeros;
    }
}

static void transform_values(
    const Job& job, const Tile& tile, int64_t first, int64_t end, float* to, int64_t plane) {
  const float* at[kNumPoints];
  find_values(job, tile, at);
  for (int64_t channel = first; channel < end; channel += kLanes, to += kLanes) {
    Lanes half[kIn][kIn];
#pragma GCC unroll 6
    for (int j = 0; j < kIn; ++j) {
      Lanes values[kIn], found[kIn];
#pragma GCC unroll 6
      for (int i = 0; i < kIn; ++i) values[i] = load(at[i * kIn + j] + channel);
      evaluate(values, found);
#pragma GCC unroll 6
      for (int i = 0; i < kIn; ++i) half[i][j] = found[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i) {
      Lanes found[kIn];
      evaluate(half[i], found);
#pragma GCC unroll 6
      for (int j = 0; j < kIn; ++j) store(to + (i * kIn + j) * plane, found[j]);
    }
  }
}

// Multiply R tiles by N vectors of the result over all input channels.
template <int R, int N>
static void multiply(const float* values, const float* weights, int64_t channels, float* to) {
  Lanes sums[R][N] = {};
  for (int64_t channel = 0; channel < channels; ++channel, weights += N * kLanes) {
    Lanes held[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) held[n] = load(weights + n * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const float value = values[r * channels + channel];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] += value * held[n];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(to + r * kChannelBlock + n * kLanes, sums[r][n]);
}

template <int R, int N>
static void multiply_rest(int64_t rows, const float* values, const float* weights, int64_t channels, float* to) {
  if constexpr (R > 0) {
    if (rows == R) return multiply<R, N>(values, weights, channels, to);
    multiply_rest<R - 1, N>(rows, values, weights, channels, to);
  }
}

template <int N>
static void multiply_panel(
    int64_t vectors, int64_t rows, const float* values, const float* weights, int64_t channels, float* to) {
  if constexpr (N > 0) {
    if (vectors != N) return multiply_panel<N - 1>(vectors, rows, values, weights, channels, to);
    for (; rows >= kRows; rows -= kRows, values += kRows * channels, to += kRows * kChannelBlock)
      multiply<kRows, N>(values, weights, channels, to);
    multiply_rest<kRows - 1, N>(rows, values, weights, channels, to);
  }
}

template <int kOut>
static void transform_results(
    const Job& job, const Tile& tile, int64_t first, int64_t end, const float* from, int64_t plane) {
  const int64_t height = std::min<int64_t>(kOut, job.out_height - tile.row);
  const int64_t width = std::min<int64_t>(kOut, job.out_width - tile.column);
  const int64_t corner = (tile.image * job.out_height + tile.row) * job.out_width + tile.column;
  for (int64_t channel = first; channel < end; channel += kLanes, from += kLanes) {
    Lanes half[kOut][kIn], found[kOut][kOut], bias = {};
#pragma GCC unroll 6
    for (int j = 0; j < kIn; ++j) {
      Lanes at[kIn], made[kOut];
#pragma GCC unroll 6
      for (int i = 0; i < kIn; ++i) at[i] = load(from + (i * kIn + j) * plane);
      interpolate(at, made);
#pragma GCC unroll 4
      for (int i = 0; i < kOut; ++i) half[i][j] = made[i];
    }
#pragma GCC unroll 4
    for (int i = 0; i < kOut; ++i) interpolate(half[i], found[i]);
    if (job.bias) bias = load(job.bias + channel);
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j) {
        const int64_t place = (corner + i * job.out_width + j) * job.out_channels + channel;
        Lanes value = found[i][j] + bias;
        if (job.added) value += load(job.added + place);
        // This form keeps NaN.
        if (job.relu) value = value < 0.0f ? Lanes{} : value;
        store(job.y + place, value);
      }
  }
}

static void compute(const Job& job, const Part& part, float* scratch) {
  const int64_t values_plane = plane_of(part.num_tiles, job.channels);
  const int64_t results_plane = plane_of(part.num_tiles, kChannelBlock);
  float* const values = scratch;
  float* const results = scratch + kNumPoints * values_plane;
  for (int64_t i = 0; i < part.num_tiles; ++i)
    transform_values(
        job, tile_at(job, part.first_tile + i), 0, job.channels, values + i * job.channels, values_plane);
  for (int64_t first = part.first_channel; first < part.end_channel; first += kChannelBlock) {
    const int64_t end = std::min(first + kChannelBlock, part.end_channel);
    for (int64_t point = 0; point < kNumPoints; ++point)
      for (int64_t channel = first; channel < end; channel += kPanel) {
        const int64_t width = std::min(kPanel, end - channel);
        const float* const panel = job.weights + (kNumPoints * channel + point * width) * job.channels;
        float* const to = results + point * results_plane + (channel - first);
        const float* const from = values + point * values_plane;
        multiply_panel<kVectors>(width / kLanes, part.num_tiles, from, panel, job.channels, to);
      }
    for (int64_t i = 0; i < part.num_tiles; ++i) {
      const Tile tile = tile_at(job, part.first_tile + i);
      const float* const from = results + i * kChannelBlock;
      if (job.tile == 4) transform_results<4>(job, tile, first, end, from, results_plane);
      if (job.tile == 2) transform_results<2>(job, tile, first, end, from, results_plane);
    }
  }
}

#include "winograd_training.h"

constexpr Version kVersion = {kPanel, kRows, &compute, &add_gradient, &add_ranges, &transform_weights};

#undef COREWISE_INLINE

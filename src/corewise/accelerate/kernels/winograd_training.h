// What training needs besides the convolution: gradients of the weights, and weights that change at every step.
// Part of winograd_kernel.h, once per instruction set.

// The transpose of interpolation: what each result contributes to the values at the points.
COREWISE_INLINE void spread(const Lanes (&y)[2], Lanes (&at)[kIn]) {
  const Lanes odd_a = kA * y[1], odd_b = kB * y[1];
  at[0] = y[0];
  at[1] = y[0] + odd_a;
  at[2] = y[0] - odd_a;
  at[3] = y[0] + odd_b;
  at[4] = y[0] - odd_b;
  at[5] = y[1];
}

COREWISE_INLINE void spread(const Lanes (&y)[4], Lanes (&at)[kIn]) {
  const Lanes even_a = y[0] + kA2 * y[2], odd_a = kA * (y[1] + kA2 * y[3]);
  const Lanes even_b = y[0] + kB2 * y[2], odd_b = kB * (y[1] + kB2 * y[3]);
  at[0] = y[0];
  at[1] = even_a + odd_a;
  at[2] = even_a - odd_a;
  at[3] = even_b + odd_b;
  at[4] = even_b - odd_b;
  at[5] = y[3];
}

template <int kOut>
static void transform_gradients(
    const GradientJob& job, const Tile& tile, int64_t first, int64_t end, float* to, int64_t plane) {
  const Job& of = job.of;
  const float* const image = job.dy + tile.image * of.out_height * of.out_width * of.out_channels;
  const float* at[kOut][kOut];
  for (int64_t i = 0; i < kOut; ++i)
    for (int64_t j = 0; j < kOut; ++j) {
      const int64_t row = tile.row + i, column = tile.column + j;
      const bool is_inside = row < of.out_height && column < of.out_width;
      at[i][j] = is_inside ? image + (row * of.out_width + column) * of.out_channels : of.zeros;
    }
  for (int64_t channel = first; channel < end; channel += kLanes, to += kLanes) {
    Lanes half[kIn][kOut];
#pragma GCC unroll 4
    for (int j = 0; j < kOut; ++j) {
      Lanes given[kOut], found[kIn];
#pragma GCC unroll 4
      for (int i = 0; i < kOut; ++i) given[i] = load(at[i][j] + channel);
      spread(given, found);
#pragma GCC unroll 6
      for (int i = 0; i < kIn; ++i) half[i][j] = found[i];
    }
#pragma GCC unroll 6
    for (int i = 0; i < kIn; ++i) {
      Lanes found[kIn];
      spread(half[i], found);
#pragma GCC unroll 6
      for (int j = 0; j < kIn; ++j) store(to + (i * kIn + j) * plane, found[j]);
    }
  }
}

// Multiply R input channels by N vectors of the result over some tiles.
template <int R, int N>
static void accumulate(const float* values, int64_t stride, const float* gradients, int64_t tiles, float* sums_at) {
  // Added to the other sums at the end, because long sums lose digits.
  Lanes sums[R][N] = {};
  for (int64_t tile = 0; tile < tiles; ++tile, values += stride, gradients += kChannelBlock) {
    Lanes held[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) held[n] = load(gradients + n * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const float value = values[r];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] += value * held[n];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      float* const at = sums_at + r * kChannelBlock + n * kLanes;
      store(at, load(at) + sums[r][n]);
    }
}

template <int R, int N>
static void accumulate_rest(
    int64_t rows, const float* values, int64_t stride, const float* gradients, int64_t tiles, float* sums) {
  if constexpr (R > 0) {
    if (rows == R) return accumulate<R, N>(values, stride, gradients, tiles, sums);
    accumulate_rest<R - 1, N>(rows, values, stride, gradients, tiles, sums);
  }
}

template <int N>
static void accumulate_panel(
    int64_t vectors, int64_t rows, const float* values, int64_t stride, const float* gradients, int64_t tiles,
    float* sums) {
  if constexpr (N > 0) {
    if (vectors != N) return accumulate_panel<N - 1>(vectors, rows, values, stride, gradients, tiles, sums);
    for (; rows >= kRows; rows -= kRows, values += kRows, sums += kRows * kChannelBlock)
      accumulate<kRows, N>(values, stride, gradients, tiles, sums);
    accumulate_rest<kRows - 1, N>(rows, values, stride, gradients, tiles, sums);
  }
}

// Transform from the points back to the weights: kernel by kernel of them for each pair of channels.
template <int kKernel>
static void transform_sums(const GradientJob& job, const GradientPart& part, const float* sums) {
  const int64_t rows = part.end_in - part.first_in, plane = rows * kChannelBlock;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t out = part.first_out; out < part.end_out; out += kLanes) {
      const float* const from = sums + row * kChannelBlock + (out - part.first_out);
      Lanes half[kKernel][kIn];
      for (int j = 0; j < kIn; ++j) {
        Lanes at[kIn];
#pragma GCC unroll 6
        for (int i = 0; i < kIn; ++i) at[i] = load(from + (i * kIn + j) * plane);
#pragma GCC unroll 5
        for (int power = 0; power < kKernel; ++power) {
          Lanes found = {};
#pragma GCC unroll 6
          for (int i = 0; i < kIn; ++i) found += job.powers[power * kIn + i] * at[i];
          half[power][j] = found;
        }
      }
      for (int down = 0; down < kKernel; ++down)
#pragma GCC unroll 5
        for (int across = 0; across < kKernel; ++across) {
          Lanes found = {};
#pragma GCC unroll 6
          for (int j = 0; j < kIn; ++j) found += job.powers[across * kIn + j] * half[down][j];
          const int64_t place = ((down * kKernel + across) * job.of.channels + part.first_in + row);
          store(part.to + place * job.of.out_channels + out, found);
        }
    }
}

static void add_gradient(const GradientJob& job, const GradientPart& part, float* scratch) {
  const int64_t rows = part.end_in - part.first_in, columns = part.end_out - part.first_out;
  const int64_t values_plane = plane_of(kMostTiles, kInBlock), gradients_plane = plane_of(kMostTiles, kChannelBlock);
  float* const values = scratch;
  float* const gradients = values + kNumPoints * values_plane;
  float* const sums = gradients + kNumPoints * gradients_plane;
  const int64_t sums_plane = rows * kChannelBlock;
  for (int64_t i = 0; i < kNumPoints * sums_plane; ++i) sums[i] = 0.0f;
  for (int64_t first = part.first_tile; first < part.end_tile; first += kMostTiles) {
    const int64_t tiles = std::min(kMostTiles, part.end_tile - first);
    for (int64_t i = 0; i < tiles; ++i) {
      const Tile tile = tile_at(job.of, first + i);
      transform_values(job.of, tile, part.first_in, part.end_in, values + i * rows, values_plane);
      float* const to = gradients + i * kChannelBlock;
      if (job.of.tile == 4) transform_gradients<4>(job, tile, part.first_out, part.end_out, to, gradients_plane);
      if (job.of.tile == 2) transform_gradients<2>(job, tile, part.first_out, part.end_out, to, gradients_plane);
    }
    for (int64_t point = 0; point < kNumPoints; ++point)
      for (int64_t column = 0; column < columns; column += kPanel) {
        const int64_t vectors = std::min(kPanel, columns - column) / kLanes;
        const float* const held = gradients + point * gradients_plane + column;
        float* const to = sums + point * sums_plane + column;
        accumulate_panel<kVectors>(vectors, rows, values + point * values_plane, rows, held, tiles, to);
      }
  }
  if (job.kernel == 3) transform_sums<3>(job, part, sums);
  if (job.kernel == 5) transform_sums<5>(job, part, sums);
}

// Lanes are contiguous; `row` and `column` are the strides of the kernel.
template <int kKernel>
static void weights_at_points(
    const float* from, int64_t row, int64_t column, const float* powers, float* to, int64_t plane) {
  Lanes half[kIn][kKernel];
  for (int j = 0; j < kKernel; ++j) {
    Lanes at[kKernel];
#pragma GCC unroll 5
    for (int i = 0; i < kKernel; ++i) at[i] = load(from + i * row + j * column);
#pragma GCC unroll 6
    for (int point = 0; point < kIn; ++point) {
      Lanes found = {};
#pragma GCC unroll 5
      for (int i = 0; i < kKernel; ++i) found += powers[i * kIn + point] * at[i];
      half[point][j] = found;
    }
  }
  for (int i = 0; i < kIn; ++i)
#pragma GCC unroll 6
    for (int point = 0; point < kIn; ++point) {
      Lanes found = {};
#pragma GCC unroll 5
      for (int j = 0; j < kKernel; ++j) found += powers[j * kIn + point] * half[i][j];
      store(to + (i * kIn + point) * plane, found);
    }
}

// As many output channels as a vector holds, and one step of input channels, as kernel by kernel by channels by lanes.
// They are read in memory order, because strides between results share few cache lines.
template <int kKernel>
static void lay_side_by_side(const Weights& given, const float* from, int64_t channels, float* to) {
  for (int64_t lane = 0; lane < kLanes; ++lane)
    for (int64_t place = 0; place < kKernel * kKernel; ++place) {
      const float* const at =
          from + lane * given.out + place / kKernel * given.row + place % kKernel * given.column;
      for (int64_t channel = 0; channel < channels; ++channel)
        to[(place * kChannelStep + channel) * kLanes + lane] = at[channel * given.in];
    }
}

template <int kKernel>
static void transform_weights_of(const Weights& given, const WeightsPart& part, float* panel) {
  float laid[kKernel * kKernel * kChannelStep * kLanes];
  const int64_t plane = given.channels * part.width;
  for (int64_t out = 0; out < part.width; out += kLanes) {
    const float* from = given.at + part.first_in * given.in + (part.first_out + out) * given.out;
    int64_t row = given.row, column = given.column, in = given.in;
    if (given.out != 1) {
      lay_side_by_side<kKernel>(given, from, part.end_in - part.first_in, laid);
      from = laid, in = kLanes, column = kChannelStep * kLanes, row = kKernel * column;
    }
    for (int64_t channel = part.first_in; channel < part.end_in; ++channel, from += in)
      weights_at_points<kKernel>(from, row, column, given.powers, panel + channel * part.width + out, plane);
  }
}

static void transform_weights(const Weights& given, const WeightsPart& part, float* panel) {
  if (given.kernel == 3) transform_weights_of<3>(given, part, panel);
  if (given.kernel == 5) transform_weights_of<5>(given, part, panel);
}

// Add the sums of all ranges, for some input channels, in the order of the weights.
static void add_ranges(const GradientJob& job, int64_t num_ranges, int64_t first, int64_t end, float* to) {
  const int64_t channels = job.of.channels, results = job.of.out_channels, places = job.kernel * job.kernel;
  float laid[kLanes * kChannelStep];
  for (int64_t place = 0; place < places; ++place)
    for (int64_t result = 0; result < results; result += kLanes) {
      for (int64_t channel = first; channel < end; ++channel) {
        const float* const from = job.sums + (place * channels + channel) * results + result;
        Lanes sum = load(from);
        for (int64_t range = 1; range < num_ranges; ++range) sum += load(from + range * places * channels * results);
        for (int64_t lane = 0; lane < kLanes; ++lane) laid[lane * kChannelStep + channel - first] = sum[lane];
      }
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t channel = first; channel < end; ++channel)
          to[((result + lane) * places + place) * channels + channel] = laid[lane * kChannelStep + channel - first];
    }
}

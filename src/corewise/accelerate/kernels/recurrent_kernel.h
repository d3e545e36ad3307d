// The kernels of recurrent.h with vectors of kLanes floats, kUnits hidden units at a time.
//
// Included once per instruction set, inside a namespace that defines both. Nothing here is a template and everything
// is inlined: code must not leave the instruction set that its namespace is compiled for.

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(kLanes * 4)));
typedef int32_t Bits __attribute__((vector_size(kLanes * 4), aligned(kLanes * 4)));

constexpr int kBlock = kUnits * kGates;
// Vectors of a row of weights whose gradients are summed at a time.
constexpr int kColumns = 2;
// Floats of the steps that wait until their share of the gradients is summed.
constexpr int64_t kWindow = 96 * 1024;

#define COREWISE_INLINE static inline __attribute__((always_inline))

COREWISE_INLINE Vec all(float number) { return number - Vec{}; }

// Clamp to ±border; NaN stays NaN.
COREWISE_INLINE Vec within(Vec x, float border) {
  x = x < all(-border) ? all(-border) : x;
  return x > all(border) ? all(border) : x;
}

// Compute exp(x) to one unit in the last place; clamped outside ±87.
COREWISE_INLINE Vec exponential(Vec x) {
  x = within(x, 87.0f);
  // 1.5 · 2^23: adding it rounds to a whole number.
  const Vec magic = all(12582912.0f);
  const Vec shifted = x * all(1.44269504088896f) + magic;
  const Vec n = shifted - magic;
  const Vec r = (x - n * all(0.693359375f)) - n * all(-2.12194440054691e-4f);
  Vec q = all(0.00138131447602f) * r + all(0.00836941879243f);
  q = q * r + all(0.0416684560478f);
  q = q * r + all(0.166665151715f);
  q = q * r + all(0.499999940395f);
  q = q * r + all(1.0f);
  q = q * r + all(1.0f);
  return q * (Vec)(((Bits)shifted + (127 - 0x4b400000)) << 23);
}

// Compute 1 / x for x of at least 1.
COREWISE_INLINE Vec reciprocal(Vec x) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
  const Vec rough = (Vec)__builtin_ia32_rcp14ps512_mask(x, Vec{}, (unsigned short)-1);
  return rough * (all(2.0f) - x * rough);
#else
  return all(1.0f) / x;
#endif
}

COREWISE_INLINE Vec sigmoid(Vec x) { return reciprocal(all(1.0f) + exponential(-x)); }

// Compute tanh as a quotient of polynomials in the square, within 3·10^-7 of the exact value.
COREWISE_INLINE Vec hyperbolic_tangent(Vec x) {
  x = within(x, 9.0f);
  const Vec square = x * x;
  Vec p = all(1.33546312e-08f) * square + all(2.0609059e-05f);
  p = p * square + all(0.00349558657f);
  p = p * square + all(0.133810237f);
  p = p * square + all(1.0f);
  Vec q = all(7.7765452e-07f) * square + all(0.000328563241f);
  q = q * square + all(0.0258769765f);
  q = q * square + all(0.467143387f);
  q = q * square + all(1.0f);
  return x * p * reciprocal(q);
}

// Transpose rows in memory to vectors that hold one value of all rows, and back.
COREWISE_INLINE void rows_to_lanes(const float* from, int64_t stride, int64_t num_rows, int64_t num, int64_t width, float* to) {
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t k = 0; k < num; ++k) to[k * width + row] = from[row * stride + k];
}

COREWISE_INLINE void lanes_to_rows(const float* from, int64_t width, int64_t num_rows, int64_t num, float* to, int64_t stride) {
  for (int64_t row = 0; row < num_rows; ++row)
    for (int64_t k = 0; k < num; ++k) to[row * stride + k] = from[k * width + row];
}

COREWISE_INLINE void cleared(float* numbers, int64_t num) {
  for (int64_t i = 0; i < num; ++i) numbers[i] = 0.0f;
}

// Add the products of the block's weights with num values of all rows.
COREWISE_INLINE const float* multiplied(const int R, Vec (*sums)[kMostVectors], const float* weights, const float* numbers, int64_t num) {
  const Vec* z = (const Vec*)numbers;
  for (int64_t k = 0; k < num; ++k, weights += kBlock, z += R)
#pragma GCC unroll 16
    for (int g = 0; g < kBlock; ++g) {
      const Vec w = all(weights[g]);
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) sums[g][r] += w * z[r];
    }
  return weights;
}

static int64_t forward_scratch(const LstmSizes& sizes) {
  const int64_t width = kMostVectors * kLanes, padded = rounded_up(sizes.hidden, kUnits);
  return width * (sizes.inputs + 3 * padded);
}

// Compute all steps of a chunk that is R vectors wide.
COREWISE_INLINE void walk(const int R, const LstmForward& it, int64_t first, int64_t num_rows, int64_t chunk, float* scratch) {
  const auto [steps, rows, inputs, hidden, reverse] = it.sizes;
  const int64_t width = R * kLanes, padded = rounded_up(hidden, kUnits);
  float* const x = scratch;
  float* h = x + width * inputs;
  float* next = h + width * padded;
  float* const c = next + width * padded;
  cleared(scratch, width * (inputs + 3 * padded));
  rows_to_lanes(it.h0 + first * hidden, hidden, num_rows, hidden, width, h);
  rows_to_lanes(it.c0 + first * hidden, hidden, num_rows, hidden, width, c);
  const int64_t per_step = kSaved * hidden * width;
  float* saved = it.saved ? it.saved + chunk * saved_per_chunk(it.sizes, it.rows_each) : nullptr;
  for (int64_t t = 0; t < steps; ++t) {
    const int64_t step = reverse ? steps - 1 - t : t;
    rows_to_lanes(it.x + step * it.x_step + first * it.x_row, it.x_row, num_rows, inputs, width, x);
    const float* weights = it.weights;
    for (int64_t unit = 0; unit < hidden; unit += kUnits) {
      Vec sums[kBlock][kMostVectors];
#pragma GCC unroll 16
      for (int g = 0; g < kBlock; ++g)
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) sums[g][r] = all(weights[g]);
      weights = multiplied(R, sums, weights + kBlock, x, inputs);
      weights = multiplied(R, sums, weights, h, hidden);
#pragma GCC unroll 2
      for (int u = 0; u < kUnits; ++u)
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          const int64_t at = (unit + u) * R + r;
          const Vec in = sigmoid(sums[u * kGates][r]), forget = sigmoid(sums[u * kGates + 1][r]);
          const Vec cell = hyperbolic_tangent(sums[u * kGates + 2][r]);
          const Vec out = sigmoid(sums[u * kGates + 3][r]);
          const Vec state = forget * ((const Vec*)c)[at] + in * cell;
          ((Vec*)c)[at] = state;
          ((Vec*)next)[at] = out * hyperbolic_tangent(state);
          if (saved && unit + u < hidden) {
            Vec* const keep = (Vec*)saved + kSaved * at;
            keep[0] = in, keep[1] = forget, keep[2] = cell, keep[3] = out, keep[4] = state;
          }
        }
    }
    lanes_to_rows(next, width, num_rows, hidden, it.out + (step * rows + first) * hidden, hidden);
    float* const last = h;
    h = next, next = last;
    if (saved) saved += per_step;
  }
  lanes_to_rows(h, width, num_rows, hidden, it.hn + first * hidden, hidden);
  lanes_to_rows(c, width, num_rows, hidden, it.cn + first * hidden, hidden);
}

static void forward(const LstmForward& it, int64_t first, int64_t num_rows, int64_t chunk, float* scratch) {
  if (num_rows <= kLanes)
    walk(1, it, first, num_rows, chunk, scratch);
  else
    walk(2, it, first, num_rows, chunk, scratch);
}

// Scratch memory of a chunk in the backward pass. A window of steps waits before it is summed: the gates' gradients by
// gate, one value of all rows each, and their factors by row, as they lie in memory.
struct Back {
  int64_t width, num_gates, num_columns, num_waiting;
  // By unit or input, one value of all rows each.
  float *d_h, *d_c, *d_x, *d_out;
  float *d_gates, *z;
  float* end;

  Back(const LstmSizes& sizes, int64_t vectors, float* scratch)
      : width(vectors * kLanes),
        num_gates(rounded_up(kGates * sizes.hidden, kBlock)),
        num_columns(rounded_up(weight_columns(sizes), kColumns * kLanes)) {
    const int64_t per_step = width * (num_gates + num_columns);
    num_waiting = std::max<int64_t>(1, std::min<int64_t>(sizes.steps, kWindow / per_step));
    d_h = scratch;
    d_c = d_h + width * rounded_up(sizes.hidden, kBlock);
    d_x = d_c + width * sizes.hidden;
    d_out = d_x + width * rounded_up(sizes.inputs, kBlock);
    d_gates = d_out + width * sizes.hidden;
    z = d_gates + num_waiting * width * num_gates;
    end = z + num_waiting * width * num_columns;
  }
};

static int64_t backward_scratch(const LstmSizes& sizes) {
  float* const start = nullptr;
  return std::max(Back(sizes, 1, start).end - start, Back(sizes, kMostVectors, start).end - start);
}

// Set num values of all rows to sums of products with the gates' gradients; return where the next weights begin.
COREWISE_INLINE const float* led_back(const int R, const float* weights, const float* d_gates, int64_t num_gates, float* to, int64_t num) {
  for (int64_t k = 0; k < num; k += kBlock) {
    Vec sums[kBlock][kMostVectors] = {};
    weights = multiplied(R, sums, weights, d_gates, num_gates);
#pragma GCC unroll 16
    for (int g = 0; g < kBlock; ++g)
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) ((Vec*)to)[(k + g) * R + r] = sums[g][r];
  }
  return weights;
}

// Add the waiting steps to the gradients of the weights.
COREWISE_INLINE void settle(const LstmSizes& sizes, const Back& at, int64_t num_steps, int64_t num_rows, float* d_weights) {
  const int64_t last = kGates * sizes.hidden;
  for (int64_t column = 0; column < at.num_columns; column += kColumns * kLanes)
    for (int64_t gate = 0; gate < last; gate += kBlock) {
      Vec sums[kBlock][kColumns] = {};
      for (int64_t step = 0; step < num_steps; ++step) {
        const float* d = at.d_gates + (step * at.num_gates + gate) * at.width;
        const float* z = at.z + step * at.width * at.num_columns + column;
        for (int64_t row = 0; row < num_rows; ++row, ++d, z += at.num_columns)
#pragma GCC unroll 16
          for (int g = 0; g < kBlock; ++g)
#pragma GCC unroll 2
            for (int v = 0; v < kColumns; ++v) sums[g][v] += all(d[g * at.width]) * ((const Vec*)z)[v];
      }
      for (int g = 0; g < kBlock && gate + g < last; ++g)
#pragma GCC unroll 2
        for (int v = 0; v < kColumns; ++v) ((Vec*)(d_weights + (gate + g) * at.num_columns + column))[v] += sums[g][v];
    }
}

// Build the row that the weights are multiplied with: the input, the previous state, and one for the bias.
COREWISE_INLINE void set_row(const float* x, int64_t inputs, const float* h, int64_t hidden, float* to) {
  for (int64_t k = 0; k < inputs; ++k) to[k] = x[k];
  for (int64_t k = 0; k < hidden; ++k) to[inputs + k] = h[k];
  to[inputs + hidden] = 1.0f;
}

// Compute the backward pass of all steps of a chunk that is R vectors wide, last step first.
COREWISE_INLINE void walk_back(const int R, const LstmBackward& it, int64_t first, int64_t num_rows, int64_t chunk, float* scratch) {
  const auto [steps, rows, inputs, hidden, reverse] = it.sizes;
  const Back at(it.sizes, R, scratch);
  const int64_t width = at.width;
  cleared(scratch, at.end - scratch);
  if (it.d_hn) rows_to_lanes(it.d_hn + first * hidden, hidden, num_rows, hidden, width, at.d_h);
  if (it.d_cn) rows_to_lanes(it.d_cn + first * hidden, hidden, num_rows, hidden, width, at.d_c);
  const int64_t per_step = kSaved * hidden * R;
  const Vec* saved = (const Vec*)(it.saved + chunk * saved_per_chunk(it.sizes, it.rows_each)) + (steps - 1) * per_step;
  float* const d_weights = it.d_weights + chunk / it.chunks_each * kGates * hidden * at.num_columns;
  int64_t waiting = 0;
  for (int64_t t = steps - 1; t >= 0; --t, saved -= per_step) {
    const int64_t step = reverse ? steps - 1 - t : t, before = reverse ? step + 1 : step - 1;
    const float* const x = it.x + step * it.x_step + first * it.x_row;
    const float* const h = t > 0 ? it.out + (before * rows + first) * hidden : it.h0 + first * hidden;
    float* const z = at.z + waiting * width * at.num_columns;
    for (int64_t row = 0; row < num_rows; ++row)
      set_row(x + row * it.x_row, inputs, h + row * hidden, hidden, z + row * at.num_columns);
    if (it.d_out)
      rows_to_lanes(it.d_out + (step * rows + first) * hidden, hidden, num_rows, hidden, width, at.d_out);
    float* const d_gates = at.d_gates + waiting * at.num_gates * width;
    for (int64_t unit = 0; unit < hidden; ++unit)
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        const int64_t i = unit * R + r;
        const Vec* const now = saved + kSaved * i;
        const Vec in = now[0], forget = now[1], cell = now[2], out = now[3], state = hyperbolic_tangent(now[4]);
        // The cell before this step.
        Vec c = Vec{};
        if (t > 0)
          c = now[4 - per_step];
        else
          for (int64_t lane = 0; lane < kLanes && r * kLanes + lane < num_rows; ++lane)
            c[lane] = it.c0[(first + r * kLanes + lane) * hidden + unit];
        const Vec d_h = ((const Vec*)at.d_h)[i] + ((const Vec*)at.d_out)[i];
        const Vec d_c = ((const Vec*)at.d_c)[i] + d_h * out * (all(1.0f) - state * state);
        Vec* const d = (Vec*)d_gates + i;
        d[0] = d_c * cell * in * (all(1.0f) - in);
        d[hidden * R] = d_c * c * forget * (all(1.0f) - forget);
        d[2 * hidden * R] = d_c * in * (all(1.0f) - cell * cell);
        d[3 * hidden * R] = d_h * state * out * (all(1.0f) - out);
        ((Vec*)at.d_c)[i] = d_c * forget;
      }
    const float* const rest = led_back(R, it.weights, d_gates, kGates * hidden, at.d_h, hidden);
    if (it.d_x) {
      led_back(R, rest, d_gates, kGates * hidden, at.d_x, inputs);
      lanes_to_rows(at.d_x, width, num_rows, inputs, it.d_x + (step * rows + first) * inputs, inputs);
    }
    if (++waiting == at.num_waiting || t == 0) {
      settle(it.sizes, at, waiting, num_rows, d_weights);
      waiting = 0;
    }
  }
  lanes_to_rows(at.d_h, width, num_rows, hidden, it.d_h0 + first * hidden, hidden);
  lanes_to_rows(at.d_c, width, num_rows, hidden, it.d_c0 + first * hidden, hidden);
}

static void backward(const LstmBackward& it, int64_t first, int64_t num_rows, int64_t chunk, float* scratch) {
  if (num_rows <= kLanes)
    walk_back(1, it, first, num_rows, chunk, scratch);
  else
    walk_back(2, it, first, num_rows, chunk, scratch);
}

static const LstmKernels kernels = {kLanes, kUnits, kColumns * kLanes, forward_scratch, backward_scratch, forward, backward};

#undef COREWISE_INLINE

// An LSTM over all its steps, with rows of the batch in the lanes of a vector, so that no row waits for another.
//
// oneDNN processes one step of the whole batch at a time: a small matrix product, then the gates. For layers with few
// units this is mostly start-up cost, and threads wait for each other at every step. Here each thread takes some rows
// through all steps and keeps their state in the nearest cache.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corewise {

// Input, forget, cell and output gate, in torch's order.
constexpr int kGates = 4;
// Values saved per unit and step for the backward pass: the gates and the cell.
constexpr int kSaved = 5;
// The most vectors of rows in a chunk.
constexpr int kMostVectors = 2;

// Sizes and strides. Strides count floats; features are contiguous.
struct LstmSizes {
  int64_t steps, rows, inputs, hidden;
  // Process steps from last to first.
  bool reverse;
};

struct LstmForward {
  LstmSizes sizes;
  // Rows of a chunk.
  int64_t rows_each;
  // The states h0 and c0 are rows × hidden.
  const float *x, *h0, *c0;
  int64_t x_step, x_row;
  // In the layout of pack_forward.
  const float* weights;
  // out is steps × rows × hidden.
  float *out, *hn, *cn;
  // For the backward pass; null if there is none.
  float* saved;
};

struct LstmBackward {
  LstmSizes sizes;
  int64_t rows_each;
  // Chunks that add, one after the other, to one sum of the weights' gradients.
  int64_t chunks_each;
  const float *x, *h0, *c0, *out, *saved;
  int64_t x_step, x_row;
  // In the layout of pack_backward.
  const float* weights;
  // Any of these may be null.
  const float *d_out, *d_hn, *d_cn;
  // d_x is steps × rows × inputs and may be null.
  float *d_x, *d_h0, *d_c0;
  // For each sum: gates · hidden × weight_columns, rounded up to the kernel's columns.
  float* d_weights;
};

// The rows of a batch in chunks, each at most as wide as the vectors of a kernel; the last may have fewer rows.
struct Chunks {
  int64_t num, rows_each;
};

// The kernels for one instruction set.
struct LstmKernels {
  // Floats in a vector.
  int lanes;
  // Hidden units at a time.
  int units;
  // Weights of a row at a time in the backward pass.
  int columns;
  // Floats of scratch memory per chunk.
  int64_t (*forward_scratch)(const LstmSizes&);
  int64_t (*backward_scratch)(const LstmSizes&);
  void (*forward)(const LstmForward&, int64_t first_row, int64_t num_rows, int64_t chunk, float* scratch);
  void (*backward)(const LstmBackward&, int64_t first_row, int64_t num_rows, int64_t chunk, float* scratch);
};

// Return the kernels for the widest vectors that torch uses on this processor.
const LstmKernels& lstm_kernels();

// Gradients of all weights together: inputs, hidden state and bias.
inline int64_t weight_columns(const LstmSizes& sizes) { return sizes.inputs + sizes.hidden + 1; }

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Choose chunks as wide as possible, but narrower if threads would be idle.
inline Chunks chunks_of(int64_t rows, int64_t num_threads, int lanes) {
  const int64_t vectors = rounded_up(rows, lanes) / lanes;
  const int64_t shared = (vectors + num_threads - 1) / num_threads;
  const int64_t each = std::clamp<int64_t>(shared, 1, kMostVectors) * lanes;
  return {(rows + each - 1) / each, each};
}

// Count the floats saved for all steps of a chunk.
inline int64_t saved_per_chunk(const LstmSizes& sizes, int64_t rows_each) {
  return sizes.steps * kSaved * sizes.hidden * rows_each;
}

// Pack weights in blocks of units: for each block its biases, then the gates' weights for every input and hidden value.
inline int64_t forward_weights(const LstmSizes& sizes, int units) {
  return rounded_up(sizes.hidden, units) * kGates * (1 + sizes.inputs + sizes.hidden);
}

// Pack weights for the backward pass: blocks of hidden and input values, for each block the weights of all gates.
inline int64_t backward_weights(const LstmSizes& sizes, int units) {
  const int64_t block = units * kGates;
  return (rounded_up(sizes.hidden, block) + rounded_up(sizes.inputs, block)) * kGates * sizes.hidden;
}

void pack_forward(
    const LstmSizes&, int units, const float* w_x, const float* w_h, const float* b_x, const float* b_h, float* to);
void pack_backward(const LstmSizes&, int units, const float* w_x, const float* w_h, float* to);

}  // namespace corewise

// An LSTM over all its steps, rows of the batch side by side in a vector's lanes: no row waits for another.
//
// oneDNN takes a step of the whole batch at a time: a small product, then its gates. Of a layer of few units that
// is mostly the cost of beginning, and threads wait for each other at every step. Here a thread takes some rows
// and walks through all steps with them, their state in the nearest cache.
#pragma once

#include <algorithm>
#include <cstdint>

namespace corewise {

constexpr int kGates = 4;  // input, forget, cell, output, as torch orders them
constexpr int kSaved = 5;  // numbers kept of each unit and step for the way back: its gates and its cell
constexpr int kMostVectors = 2;  // of rows that a chunk may have

// Sizes, and where one row's numbers lie; all strides count numbers, and features lie one after the other.
struct LstmSizes {
  int64_t steps, rows, inputs, hidden;
  bool reverse;  // from the last step to the first
};

struct LstmForward {
  LstmSizes sizes;
  int64_t rows_each;  // of a chunk
  const float *x, *h0, *c0;  // states: rows × hidden
  int64_t x_step, x_row;
  const float* weights;  // as pack_forward leaves them
  float *out, *hn, *cn;  // out: steps × rows × hidden
  float* saved;  // for the way back; none where there will be none
};

struct LstmBackward {
  LstmSizes sizes;
  int64_t rows_each;
  int64_t chunks_each;  // that add to one sum of the weights' gradients, one after the other
  const float *x, *h0, *c0, *out, *saved;
  int64_t x_step, x_row;
  const float* weights;  // as pack_backward leaves them
  const float *d_out, *d_hn, *d_cn;  // any may be absent
  float *d_x, *d_h0, *d_c0;  // d_x may be absent: steps × rows × inputs
  float* d_weights;  // of each sum: gates · hidden × weight_columns, rounded up to a kernel's columns
};

// Rows of a batch by chunks, each at most as wide as the vectors a kernel holds at a time; the last may have fewer.
struct Chunks {
  int64_t num, rows_each;
};

// One way to compute it: with the vectors of one instruction set.
struct LstmKernels {
  int lanes;  // numbers in a vector
  int units;  // hidden units at a time
  int columns;  // weights of a row at a time, on the way back
  int64_t (*forward_scratch)(const LstmSizes&);  // numbers of memory that a chunk works in
  int64_t (*backward_scratch)(const LstmSizes&);
  void (*forward)(const LstmForward&, int64_t first_row, int64_t num_rows, int64_t chunk, float* scratch);
  void (*backward)(const LstmBackward&, int64_t first_row, int64_t num_rows, int64_t chunk, float* scratch);
};

// The widest that torch uses on this processor.
const LstmKernels& lstm_kernels();

// Of the gradients of all weights together: those of inputs, those of hidden numbers, and the bias'.
inline int64_t weight_columns(const LstmSizes& sizes) { return sizes.inputs + sizes.hidden + 1; }

inline int64_t rounded_up(int64_t number, int64_t to) { return (number + to - 1) / to * to; }

// Chunks as wide as they may be, less so where threads would have none.
inline Chunks chunks_of(int64_t rows, int64_t num_threads, int lanes) {
  const int64_t vectors = rounded_up(rows, lanes) / lanes;
  const int64_t shared = (vectors + num_threads - 1) / num_threads;
  const int64_t each = std::clamp<int64_t>(shared, 1, kMostVectors) * lanes;
  return {(rows + each - 1) / each, each};
}

// Numbers that are saved of all steps of a chunk.
inline int64_t saved_per_chunk(const LstmSizes& sizes, int64_t rows_each) {
  return sizes.steps * kSaved * sizes.hidden * rows_each;
}

// Weights in blocks of units: of each block its biases, then for every input and hidden number its gates' weights.
inline int64_t forward_weights(const LstmSizes& sizes, int units) {
  return rounded_up(sizes.hidden, units) * kGates * (1 + sizes.inputs + sizes.hidden);
}

// Weights for the way back: blocks of hidden and input numbers, of each block all gates' weights.
inline int64_t backward_weights(const LstmSizes& sizes, int units) {
  const int64_t block = units * kGates;
  return (rounded_up(sizes.hidden, block) + rounded_up(sizes.inputs, block)) * kGates * sizes.hidden;
}

void pack_forward(
    const LstmSizes&, int units, const float* w_x, const float* w_h, const float* b_x, const float* b_h, float* to);
void pack_backward(const LstmSizes&, int units, const float* w_x, const float* w_h, float* to);

}  // namespace corewise

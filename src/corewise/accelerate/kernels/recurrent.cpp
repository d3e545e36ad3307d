// LSTMs as torch operators with gradients: corewise::lstm takes the arguments of aten::lstm.
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "operators.h"
#include "recurrent.h"
#include "team.h"

namespace corewise {

// The kernels of each instruction set in a separate namespace; torch's AVX-512 and AVX2 levels include all of these.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,fma,prefer-vector-width=512")
#endif
namespace sixteen {
constexpr int kLanes = 16, kUnits = 2;
#include "recurrent_kernel.h"
}  // namespace sixteen
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace eight {
constexpr int kLanes = 8, kUnits = 1;
#include "recurrent_kernel.h"
}  // namespace eight
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
namespace four {
constexpr int kLanes = 4, kUnits = 2;
#include "recurrent_kernel.h"
}  // namespace four

const LstmKernels& lstm_kernels() {
#if defined(__x86_64__)
  // The level that torch uses, or the limit that the user set.
  static const std::string most = at::get_cpu_capability();
  if (most == "AVX512") return sixteen::kernels;
  if (most == "AVX2") return eight::kernels;
#endif
  return four::kernels;
}

void pack_forward(
    const LstmSizes& sizes, int units, const float* w_x, const float* w_h, const float* b_x, const float* b_h, float* to) {
  const int64_t inputs = sizes.inputs, hidden = sizes.hidden;
  for (int64_t unit = 0; unit < hidden; unit += units)
    for (int64_t k = -1; k < inputs + hidden; ++k)
      for (int64_t u = unit; u < unit + units; ++u)
        for (int64_t gate = 0; gate < kGates; ++gate, ++to) {
          const int64_t row = gate * hidden + u;
          if (u >= hidden)
            *to = 0.0f;
          else if (k < 0)
            *to = b_x ? b_x[row] + b_h[row] : 0.0f;
          else
            *to = k < inputs ? w_x[row * inputs + k] : w_h[row * hidden + k - inputs];
        }
}

void pack_backward(const LstmSizes& sizes, int units, const float* w_x, const float* w_h, float* to) {
  const int64_t num_gates = kGates * sizes.hidden, block = units * kGates;
  const auto put = [&](const float* weights, int64_t num) {
    for (int64_t first = 0; first < num; first += block)
      for (int64_t gate = 0; gate < num_gates; ++gate)
        for (int64_t k = first; k < first + block; ++k) *to++ = k < num ? weights[gate * num + k] : 0.0f;
  };
  put(w_h, sizes.hidden);
  put(w_x, sizes.inputs);
}

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Three = std::tuple<Tensor, Tensor, Tensor>;

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Maybe = std::optional<Tensor>;

// An extra thread is used only for at least this many products.
constexpr double kWorthThread = 2e5;
// Sums of the weights' gradients per thread; chunks that add to one sum belong to one thread.
constexpr int64_t kSumsOfThread = 4;
// Each chunk reads all weights at every step. Beyond this size they no longer fit into a cache, and oneDNN reads them
// less often. Gradients of weights are read and written as well.
constexpr int64_t kMostWeights = 1 << 21, kMostToLearn = 1 << 19;

int64_t threads_for(const LstmSizes& it) {
  const double products = double(it.steps) * it.rows * kGates * it.hidden * (it.inputs + it.hidden + 8);
  return products < 2 * kWorthThread ? 1 : own_width();
}

// Allocate num floats for each of some threads; torch's memory begins at a cache line.
struct Scratch {
  Scratch(int64_t num_threads, int64_t num)
      : each(rounded_up(num, 16)), memory(at::empty({num_threads * each}, at::kFloat)) {}
  float* of(int64_t thread) const { return memory.data_ptr<float>() + thread * each; }
  int64_t each;
  Tensor memory;
};

const float* numbers(const Tensor& it) { return it.defined() ? it.const_data_ptr<float>() : nullptr; }
float* to_fill(const Tensor& it) { return it.defined() ? it.data_ptr<float>() : nullptr; }

void require(const Tensor& it, at::IntArrayRef sizes, const char* name) {
  TORCH_CHECK(it.is_cpu() && it.scalar_type() == at::kFloat, "corewise::lstm takes float32 on the CPU; ", name, " is not");
  TORCH_CHECK(it.sizes() == sizes, "corewise::lstm: ", name, " has sizes ", it.sizes(), " instead of ", sizes);
}

// The inputs of one direction of a layer.
struct Given {
  Tensor x, h, c, w_x, w_h, b_x, b_h;
  bool reverse;

  void check() const {
    TORCH_CHECK(x.dim() == 3 && w_x.dim() == 2 && w_x.size(0) % kGates == 0, "corewise::lstm: other dimensions than an LSTM's");
    TORCH_CHECK(x.size(0) > 0, "corewise::lstm: a sequence of no steps");
    const int64_t gates = w_x.size(0), hidden = gates / kGates;
    require(x, {x.size(0), x.size(1), w_x.size(1)}, "x");
    require(h, {x.size(1), hidden}, "the state");
    require(c, {x.size(1), hidden}, "the cell");
    require(w_x, {gates, x.size(2)}, "the weight of the input");
    require(w_h, {gates, hidden}, "the weight of the state");
    TORCH_CHECK(b_x.defined() == b_h.defined(), "corewise::lstm: one bias without the other");
    if (b_x.defined()) require(b_x, {gates}, "the bias of the input"), require(b_h, {gates}, "the bias of the state");
  }

  // As the kernels read them: contiguous features, in any order of steps and rows.
  Given laid_out() const {
    const auto plain = [](const Tensor& it) { return it.defined() ? it.contiguous() : it; };
    const bool in_rows = x.stride(2) == 1 || x.size(2) == 1;
    return {in_rows ? x : x.contiguous(), plain(h), plain(c), plain(w_x), plain(w_h), plain(b_x), plain(b_h), reverse};
  }

  LstmSizes sizes() const { return {x.size(0), x.size(1), x.size(2), w_x.size(0) / kGates, reverse}; }
};

int64_t rows_each_of(const LstmSizes& sizes) {
  return chunks_of(sizes.rows, threads_for(sizes), lstm_kernels().lanes).rows_each;
}

// Chunks with the number of rows that one of our operators passed to another.
Chunks chunks_of_each(int64_t rows, int64_t each) {
  const int64_t lanes = lstm_kernels().lanes;
  TORCH_CHECK(each > 0 && each % lanes == 0 && each <= kMostVectors * lanes, "corewise::lstm: other chunks than it has");
  return {(rows + each - 1) / each, each};
}

struct Walked {
  Tensor out, hn, cn, saved;
};

Walked walked(const Given& given, int64_t rows_each, bool saves) {
  const Given it = given.laid_out();
  const LstmSizes sizes = it.sizes();
  const LstmKernels& kernels = lstm_kernels();
  const int64_t num_threads = threads_for(sizes);
  const auto options = it.x.options().requires_grad(false);
  Walked made;
  made.out = at::empty({sizes.steps, sizes.rows, sizes.hidden}, options);
  made.hn = at::empty({sizes.rows, sizes.hidden}, options);
  made.cn = at::empty({sizes.rows, sizes.hidden}, options);
  const Chunks chunks = chunks_of_each(sizes.rows, rows_each);
  if (saves) made.saved = at::empty({chunks.num * saved_per_chunk(sizes, rows_each)}, options);
  const Tensor weights = at::empty({forward_weights(sizes, kernels.units)}, options);
  pack_forward(
      sizes, kernels.units, numbers(it.w_x), numbers(it.w_h), numbers(it.b_x), numbers(it.b_h), to_fill(weights));
  const LstmForward job{
      .sizes = sizes,
      .rows_each = rows_each,
      .x = numbers(it.x),
      .h0 = numbers(it.h),
      .c0 = numbers(it.c),
      .x_step = it.x.stride(0),
      .x_row = it.x.stride(1),
      .weights = numbers(weights),
      .out = to_fill(made.out),
      .hn = to_fill(made.hn),
      .cn = to_fill(made.cn),
      .saved = to_fill(made.saved)};
  const Scratch scratch(num_threads, kernels.forward_scratch(sizes));
  shared_out(chunks.num, num_threads, [&](int64_t chunk, int64_t thread) {
    const int64_t first = chunk * rows_each;
    kernels.forward(job, first, std::min(rows_each, sizes.rows - first), chunk, scratch.of(thread));
  });
  return made;
}

struct Gradients {
  Tensor x, h, c, w_x, w_h, b;
};

Gradients walked_back(
    const Given& given, const Walked& made, int64_t rows_each, const variable_list& arriving, bool wants_x) {
  const Given it = given.laid_out();
  const LstmSizes sizes = it.sizes();
  const LstmKernels& kernels = lstm_kernels();
  const int64_t num_threads = threads_for(sizes), num_gates = kGates * sizes.hidden;
  const auto options = it.x.options().requires_grad(false);
  const auto plain = [](const Tensor& one) { return one.defined() ? one.contiguous() : one; };
  const Tensor d_out = plain(arriving[0]), d_hn = plain(arriving[1]), d_cn = plain(arriving[2]);
  Gradients found;
  if (wants_x) found.x = at::empty({sizes.steps, sizes.rows, sizes.inputs}, options);
  found.h = at::empty({sizes.rows, sizes.hidden}, options);
  found.c = at::empty({sizes.rows, sizes.hidden}, options);
  const int64_t num_columns = rounded_up(weight_columns(sizes), kernels.columns);
  const Chunks chunks = chunks_of_each(sizes.rows, rows_each);
  const int64_t most_sums = std::min(chunks.num, kSumsOfThread * num_threads);
  const int64_t chunks_each = most_sums ? (chunks.num + most_sums - 1) / most_sums : 1;
  const int64_t num_sums = (chunks.num + chunks_each - 1) / chunks_each;
  const Tensor sums = at::zeros({num_sums, num_gates, num_columns}, options);
  const Tensor weights = at::empty({backward_weights(sizes, kernels.units)}, options);
  pack_backward(sizes, kernels.units, numbers(it.w_x), numbers(it.w_h), to_fill(weights));
  const LstmBackward job{
      .sizes = sizes,
      .rows_each = rows_each,
      .chunks_each = chunks_each,
      .x = numbers(it.x),
      .h0 = numbers(it.h),
      .c0 = numbers(it.c),
      .out = numbers(made.out),
      .saved = numbers(made.saved),
      .x_step = it.x.stride(0),
      .x_row = it.x.stride(1),
      .weights = numbers(weights),
      .d_out = numbers(d_out),
      .d_hn = numbers(d_hn),
      .d_cn = numbers(d_cn),
      .d_x = to_fill(found.x),
      .d_h0 = to_fill(found.h),
      .d_c0 = to_fill(found.c),
      .d_weights = to_fill(sums)};
  const Scratch scratch(num_threads, kernels.backward_scratch(sizes));
  shared_out(num_sums, num_threads, [&](int64_t number, int64_t thread) {
    const int64_t behind = std::min((number + 1) * chunks_each, chunks.num);
    for (int64_t chunk = number * chunks_each; chunk < behind; ++chunk) {
      const int64_t first = chunk * rows_each;
      kernels.backward(job, first, std::min(rows_each, sizes.rows - first), chunk, scratch.of(thread));
    }
  });
  const Tensor sum = at::sum(sums, at::IntArrayRef{0});
  found.w_x = sum.narrow(1, 0, sizes.inputs).contiguous();
  found.w_h = sum.narrow(1, sizes.inputs, sizes.hidden).contiguous();
  found.b = sum.select(1, sizes.inputs + sizes.hidden).contiguous();
  return found;
}

// Compute the gradients with torch's operators, which are differentiable again.
variable_list by_torch(variable_list given, bool has_biases, bool reverse, const variable_list& arriving) {
  // Detach each separately: one may be computed from another, or be given twice.
  for (auto& one : given)
    if (one.defined() && one.requires_grad()) one = one.view_as(one);
  const auto turned = [&](const Tensor& it) { return reverse ? at::flip(it, {0}) : it; };
  std::vector<Tensor> params = {given[3], given[4]};
  if (has_biases) params.insert(params.end(), {given[5], given[6]});
  auto [rows, h, c] = at::lstm(
      turned(given[0]), {given[1].unsqueeze(0), given[2].unsqueeze(0)}, params, has_biases, 1, 0.0, true, false, false);
  const variable_list results = {turned(rows), h.squeeze(0), c.squeeze(0)};
  variable_list wanted, outputs, gradients;
  std::vector<size_t> places;
  for (size_t i = 0; i < given.size(); ++i)
    if (given[i].defined() && given[i].requires_grad()) places.push_back(i), wanted.push_back(given[i]);
  for (size_t i = 0; i < results.size(); ++i)
    if (arriving[i].defined()) outputs.push_back(results[i]), gradients.push_back(arriving[i]);
  const auto made = torch::autograd::grad(outputs, wanted, gradients, true, /*create_graph=*/true, /*allow_unused=*/true);
  // The last one belongs to `reverse`.
  variable_list found(8);
  for (size_t i = 0; i < places.size(); ++i) found[places[i]] = made[i];
  return found;
}

template <class Signature>
auto own_operator(const char* name, Signature*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

Three direction(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h, const Maybe& b_x,
    const Maybe& b_h, bool reverse) {
  const Given given{x, h, c, w_x, w_h, b_x.value_or(Tensor()), b_h.value_or(Tensor()), reverse};
  given.check();
  const Walked made = walked(given, rows_each_of(given.sizes()), /*saves=*/false);
  return {made.out, made.hn, made.cn};
}

// The same, with what the backward pass needs, in chunks of `rows_each` rows.
Four direction_kept(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h, const Maybe& b_x,
    const Maybe& b_h, bool reverse, int64_t rows_each) {
  const Given given{x, h, c, w_x, w_h, b_x.value_or(Tensor()), b_h.value_or(Tensor()), reverse};
  given.check();
  const Walked made = walked(given, rows_each, /*saves=*/true);
  return {made.out, made.hn, made.cn, made.saved};
}

// Compute the gradients of x, both states, both weights and either bias; the first is empty if it is not needed.
Six direction_back(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h, const Tensor& out,
    const Tensor& saved, const Tensor& d_out, const Tensor& d_hn, const Tensor& d_cn, bool reverse, int64_t rows_each,
    bool wants_x) {
  const Given given{x, h, c, w_x, w_h, {}, {}, reverse};
  given.check();
  const LstmSizes sizes = given.sizes();
  const int64_t num_saved = chunks_of_each(sizes.rows, rows_each).num * saved_per_chunk(sizes, rows_each);
  require(out, {sizes.steps, sizes.rows, sizes.hidden}, "the result");
  require(saved, {num_saved}, "what was kept");
  require(d_out, out.sizes(), "the gradient of the result");
  require(d_hn, h.sizes(), "the gradient of the last state");
  require(d_cn, c.sizes(), "the gradient of the last cell");
  const Walked made{out.contiguous(), {}, {}, saved.contiguous()};
  const Gradients it = walked_back(given, made, rows_each, {d_out, d_hn, d_cn}, wants_x);
  return {wants_x ? it.x : at::empty({0}, x.options()), it.h, it.c, it.w_x, it.w_h, it.b};
}

void refuse_direction(const Tensor& it) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !it.defined() || !it._fw_grad(/*level=*/0).defined(), "corewise::lstm has no derivatives forward, only backward");
}

class LstmFunction : public torch::autograd::Function<LstmFunction> {
 public:
  static variable_list forward(
      AutogradContext* context, const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h,
      const Maybe& b_x, const Maybe& b_h, bool reverse) {
    static const auto kept = own_operator("corewise::lstm_direction_kept", direction_kept);
    at::AutoDispatchBelowADInplaceOrView below;
    const Given given{x, h, c, w_x, w_h, b_x.value_or(Tensor()), b_h.value_or(Tensor()), reverse};
    given.check();
    const int64_t rows_each = rows_each_of(given.sizes());
    auto [out, hn, cn, saved] = kept.call(x, h, c, w_x, w_h, b_x, b_h, reverse, rows_each);
    context->save_for_backward({x, h, c, w_x, w_h, given.b_x, given.b_h, out, saved});
    context->saved_data["reverse"] = reverse;
    context->saved_data["has_biases"] = b_x.has_value();
    context->saved_data["rows_each"] = rows_each;
    return {out, hn, cn};
  }

  static variable_list backward(AutogradContext* context, variable_list arriving) {
    for (const auto& it : arriving) refuse_direction(it);
    static const auto back = own_operator("corewise::lstm_direction_back", direction_back);
    const auto kept = context->get_saved_variables();
    const bool has_biases = context->saved_data["has_biases"].toBool(), reverse = context->saved_data["reverse"].toBool();
    if (at::GradMode::is_enabled())
      return by_torch({kept.begin(), kept.begin() + 7}, has_biases, reverse, arriving);
    const bool wants_x = context->needs_input_grad(0);
    auto [x, h, c, w_x, w_h, b] = back.call(
        kept[0], kept[1], kept[2], kept[3], kept[4], kept[7], kept[8], arriving[0], arriving[1], arriving[2], reverse,
        context->saved_data["rows_each"].toInt(), wants_x);
    return {
        wants_x ? x : Tensor(), h, c, w_x, w_h, has_biases ? b : Tensor(), has_biases ? b.clone() : Tensor(), Tensor()};
  }
};

Three direction_with_gradients(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h, const Maybe& b_x,
    const Maybe& b_h, bool reverse) {
  static const auto plain = own_operator("corewise::lstm_direction", direction);
  const std::initializer_list<Maybe> given = {x, h, c, w_x, w_h, b_x, b_h};
  for (const auto& it : given)
    if (it) refuse_direction(*it);
  const auto is_wanted = [](const Maybe& it) { return it && it->requires_grad(); };
  if (!at::GradMode::is_enabled() || std::none_of(given.begin(), given.end(), is_wanted)) {
    // Dispatch through torch, so that its modes and fake tensors work.
    at::AutoDispatchBelowADInplaceOrView below;
    return plain.call(x, h, c, w_x, w_h, b_x, b_h, reverse);
  }
  const auto found = LstmFunction::apply(x, h, c, w_x, w_h, b_x, b_h, reverse);
  return {found[0], found[1], found[2]};
}

Four shapes_kept(
    const Tensor& x, const Tensor& h, const Tensor&, const Tensor&, const Tensor& w_h, const Maybe&, const Maybe&, bool,
    int64_t rows_each) {
  const c10::SymInt steps = x.sym_size(0), rows = x.sym_size(1), hidden = w_h.sym_size(1);
  const auto states = [&] { return at::empty_symint({rows, hidden}, h.options()); };
  const c10::SymInt num_chunks = (rows + (rows_each - 1)) / rows_each;
  return {
      at::empty_symint({steps, rows, hidden}, x.options()), states(), states(),
      at::empty_symint({num_chunks * steps * kSaved * hidden * rows_each}, x.options())};
}

Three shapes(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h, const Maybe& b_x,
    const Maybe& b_h, bool reverse) {
  auto [out, hn, cn, saved] = shapes_kept(x, h, c, w_x, w_h, b_x, b_h, reverse, 1);
  return {out, hn, cn};
}

Six shapes_back(
    const Tensor& x, const Tensor& h, const Tensor& c, const Tensor& w_x, const Tensor& w_h, const Tensor&,
    const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, int64_t, bool wants_x) {
  const auto like = [](const Tensor& it) { return at::empty_symint(it.sym_sizes(), it.options()); };
  return {wants_x ? like(x) : at::empty({0}, x.options()), like(h), like(c), like(w_x), like(w_h),
          at::empty_symint({w_x.sym_size(0)}, w_x.options())};
}

// One direction of one layer, as a separate operator of the dispatcher.
Three called(
    const Tensor& x, const Tensor& h, const Tensor& c, at::TensorList params, bool has_biases, bool reverse) {
  static const auto plain = own_operator("corewise::lstm_direction", direction);
  const auto bias = [&](int place) { return has_biases ? Maybe(params[place]) : std::nullopt; };
  return plain.call(x, h, c, params[0], params[1], bias(2), bias(3), reverse);
}

// Estimate whether a step of our kernel is faster than one of torch's, for a layer of these sizes.
//
// Nanoseconds on a core with AVX-512; only the ratios matter. torch's kernel needs time to start each step and to
// synchronise threads after it; ours leaves lanes idle if there are few rows.
bool pays(const LstmSizes& it, int64_t num_threads, int lanes, bool learns) {
#if defined(__x86_64__)
  // oneDNN may use wider vectors than torch's limit.
  if (lanes == 4) return false;
#endif
  const int64_t num_weights = kGates * it.hidden * (it.inputs + it.hidden);
  if (num_weights > (learns ? kMostToLearn : kMostWeights)) return false;
  const double products = double(num_weights) / 53;
  const Chunks chunks = chunks_of(it.rows, num_threads, lanes);
  const auto share = [&](int64_t num) { return (num + num_threads - 1) / num_threads; };
  const int64_t whole = it.rows / chunks.rows_each, vectors = rounded_up(it.rows, lanes) / lanes;
  // Rows that one thread processes.
  const int64_t in_turn = std::max(share(vectors) * lanes, share(whole) * chunks.rows_each);
  const double ours = double(in_turn) * (products + 2.4 * double(it.hidden));
  const double begin = num_threads > 1 ? 2500 : 1000;
  const double theirs = begin + double(it.rows) / double(num_threads) * (products + 2.5 * double(rounded_up(it.hidden, 16)));
  return ours <= theirs;
}

// Return whether it is float32 on the CPU with known sizes.
bool is_known(const Tensor& it) {
  return it.device().is_cpu() && it.scalar_type() == at::kFloat && !it.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// Return whether our kernel supports all layers and is faster for them.
bool is_for_us(const Tensor& x, at::TensorList states, at::TensorList params, bool has_biases, int64_t num, bool batch_first) {
  const bool fits = x.dim() == 3 && states.size() == 2 && int64_t(params.size()) == num * (has_biases ? 4 : 2);
  if (!fits || at::autocast::is_autocast_enabled(at::kCPU)) return false;
  if (!is_known(x) || !std::all_of(states.begin(), states.end(), is_known)) return false;
  if (!std::all_of(params.begin(), params.end(), is_known) || x.size(0) == 0 || x.size(1) == 0) return false;
  const LstmSizes sizes{x.size(batch_first), x.size(!batch_first), x.size(2), params[1].size(1), false};
  const auto is_wanted = [](const Tensor& it) { return it.requires_grad(); };
  const bool learns =
      at::GradMode::is_enabled() && (is_wanted(x) || std::any_of(params.begin(), params.end(), is_wanted));
  return sizes.hidden > 0 && sizes.inputs > 0 && pays(sizes, threads_for(sizes), lstm_kernels().lanes, learns);
}

Three torchs(
    const Tensor& x, at::TensorList states, at::TensorList params, bool has_biases, int64_t num_layers, double dropout,
    bool train, bool bidirectional, bool batch_first, bool reverse) {
  const int64_t steps = batch_first ? 1 : 0;
  const auto turned = [&](const Tensor& it) { return reverse ? at::flip(it, {steps}) : it; };
  auto [out, h, c] = at::lstm(
      turned(x), states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
  return {turned(out), h, c};
}

// Compute what aten::lstm computes from the same arguments; `reverse` runs from the last step to the first.
Three lstm(
    const Tensor& given, at::TensorList states, at::TensorList params, bool has_biases, int64_t num_layers,
    double dropout, bool train, bool bidirectional, bool batch_first, bool reverse) {
  const int64_t num_directions = bidirectional ? 2 : 1, each = has_biases ? 4 : 2;
  const bool drops = dropout > 0 && train && num_layers > 1;
  TORCH_CHECK(!reverse || (num_layers == 1 && !bidirectional), "corewise::lstm: only one layer of one direction is reversed");
  if (drops || !is_for_us(given, states, params, has_biases, num_layers * num_directions, batch_first))
    return torchs(
        given, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, reverse);
  Tensor x = batch_first ? given.transpose(0, 1) : given;
  std::vector<Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    std::vector<Tensor> outs;
    for (int64_t direction = 0; direction < num_directions; ++direction) {
      const int64_t place = layer * num_directions + direction;
      auto [out, h, c] = called(
          x, states[0].select(0, place), states[1].select(0, place), params.slice(place * each, each), has_biases,
          reverse || direction == 1);
      outs.push_back(out), last_h.push_back(h), last_c.push_back(c);
    }
    x = num_directions == 1 ? outs[0] : at::cat(outs, 2);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(last_h), at::stack(last_c)};
}

std::unique_ptr<torch::Library> registered() {
  auto made = library_without("corewise::lstm");
  if (!made) return made;
  made->def(
      "lstm_direction(Tensor x, Tensor h, Tensor c, Tensor w_x, Tensor w_h, Tensor? b_x, Tensor? b_h, bool reverse)"
      " -> (Tensor, Tensor, Tensor)");
  made->def(
      "lstm_direction_kept(Tensor x, Tensor h, Tensor c, Tensor w_x, Tensor w_h, Tensor? b_x, Tensor? b_h,"
      " bool reverse, int rows_each) -> (Tensor, Tensor, Tensor, Tensor)");
  made->def(
      "lstm_direction_back(Tensor x, Tensor h, Tensor c, Tensor w_x, Tensor w_h, Tensor out, Tensor kept,"
      " Tensor d_out, Tensor d_hn, Tensor d_cn, bool reverse, int rows_each, bool wants_x)"
      " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  made->def(
      "lstm(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train,"
      " bool bidirectional, bool batch_first, bool reverse=False) -> (Tensor, Tensor, Tensor)",
      lstm);
  made->impl("lstm_direction", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(direction)));
  made->impl("lstm_direction", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(shapes)));
  made->impl("lstm_direction_kept", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(direction_kept)));
  made->impl("lstm_direction_kept", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(shapes_kept)));
  made->impl("lstm_direction_back", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(direction_back)));
  made->impl("lstm_direction_back", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(shapes_back)));
  made->impl("lstm_direction", torch::dispatch(c10::DispatchKey::AutogradCPU, TORCH_FN(direction_with_gradients)));
  return made;
}

const std::unique_ptr<torch::Library> library = registered();

}  // namespace
}  // namespace corewise

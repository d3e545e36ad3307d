// Winograd convolution with stride 1: F(4x4, 3x3) needs a quarter of the products, and F(2x2, 5x5) little more than a
// third. For training also the gradients of the weights.
#include "operators.h"
#include "winograd_team.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

namespace corewise::winograd {

// Powers of each point, divided by the interpolation's denominators.
using Powers = std::vector<std::array<double, kIn>>;

bool is_known(int64_t kernel) { return kernel == 3 || kernel == 5; }

// Evaluate the polynomial whose coefficients are a row of the kernel; at infinity only the last coefficient counts.
Powers powers_at_points(int64_t kernel) {
  constexpr double a = 0.70710678118654752440, b = 1.41421356237309504880;
  constexpr double points[kIn] = {0, a, -a, b, -b, 0}, divisors[kIn] = {1, -1.5, -1.5, 6, 6, 1};
  Powers found(kernel);
  for (int64_t power = 0; power < kernel; ++power) {
    for (int i = 0; i + 1 < kIn; ++i) found[power][i] = std::pow(points[i], double(power)) / divisors[i];
    found[power][kIn - 1] = power + 1 == kernel;
  }
  return found;
}

void at_points(const float* weights, int64_t kernel, const Powers& powers, double (&found)[kNumPoints]) {
  std::fill(found, found + kNumPoints, 0.0);
  for (int64_t column = 0; column < kernel; ++column) {
    double along[kIn] = {};
    for (int64_t row = 0; row < kernel; ++row)
      for (int i = 0; i < kIn; ++i) along[i] += powers[row][i] * weights[row * kernel + column];
    for (int i = 0; i < kIn; ++i)
      for (int j = 0; j < kIn; ++j) found[i * kIn + j] += powers[column][j] * along[i];
  }
}

void check_weight(const at::Tensor& given) {
  const bool is_square = given.dim() == 4 && given.size(2) == given.size(3) && is_known(given.size(2));
  TORCH_CHECK(is_square, "weights of 3 x 3 or 5 x 5 are needed");
  TORCH_CHECK(given.scalar_type() == at::kFloat, "float32 is needed, not ", given.scalar_type());
  const bool are_whole = given.size(0) % kChannelStep == 0 && given.size(1) % kChannelStep == 0;
  TORCH_CHECK(given.numel() && are_whole, "channels in multiples of ", kChannelStep, " are needed");
}

// Transform weights to the 36 points, rounded once, in panels in reading order.
at::Tensor weight(const at::Tensor& given) {
  check_weight(given);
  const int64_t out_channels = given.size(0), channels = given.size(1), kernel = given.size(2);
  const at::Tensor dense = given.contiguous();
  at::Tensor made = at::empty({out_channels, channels, kNumPoints}, dense.options());
  const auto powers = powers_at_points(kernel);
  const float* const from = dense.const_data_ptr<float>();
  float* const to = made.mutable_data_ptr<float>();
  const int64_t along = quotient_up(channels, kChannelStep), panels = quotient_up(out_channels, version().panel);
  shared_out(panels * along, own_width(), [&](int64_t number, int64_t) {
    const int64_t first = number / along * version().panel, first_in = number % along * kChannelStep;
    const int64_t width = std::min(version().panel, out_channels - first);
    float* const panel = to + first * channels * kNumPoints;
    for (int64_t c = first_in; c < std::min(first_in + kChannelStep, channels); ++c)
      for (int64_t k = 0; k < width; ++k) {
        double found[kNumPoints];
        at_points(from + ((first + k) * channels + c) * kernel * kernel, kernel, powers, found);
        for (int64_t point = 0; point < kNumPoints; ++point)
          panel[(point * channels + c) * width + k] = float(found[point]);
      }
  });
  return made;
}

std::vector<float> rounded_powers(int64_t kernel) {
  std::vector<float> found;
  for (const auto& each : powers_at_points(kernel)) found.insert(found.end(), each.begin(), each.end());
  return found;
}

// The same as `weight`, faster and rounded more than once, for weights that change at every step. `turned` is for the
// gradient of the input, a convolution of the result's gradient with the flipped weights. Valid until the thread calls
// it again.
at::Tensor changing_weight(const at::Tensor& given, bool turned) {
  check_weight(given);
  const int64_t kernel = given.size(2), last = kernel - 1;
  const int64_t channels = given.size(turned ? 0 : 1), out_channels = given.size(turned ? 1 : 0);
  const auto powers = rounded_powers(kernel);
  Weights weights = {given.const_data_ptr<float>(), powers.data(), kernel, channels};
  weights.row = given.stride(2), weights.column = given.stride(3);
  weights.in = given.stride(turned ? 0 : 1), weights.out = given.stride(turned ? 1 : 0);
  if (turned) {
    weights.at += last * (weights.row + weights.column);
    weights.row = -weights.row, weights.column = -weights.column;
  }
  float* const to = scratch<For::weights>(out_channels * channels * kNumPoints);
  const int64_t panel = version().panel, panels = quotient_up(out_channels, panel);
  const int64_t along = quotient_up(channels, kChannelStep);
  shared_out(panels * along, own_width(), [&](int64_t number, int64_t) {
    const int64_t first = number / along * panel, first_in = number % along * kChannelStep;
    const int64_t width = std::min(panel, out_channels - first), end_in = std::min(first_in + kChannelStep, channels);
    version().transform_weights(weights, {first, width, first_in, end_in}, to + first * channels * kNumPoints);
  });
  return at::from_blob(to, {out_channels, channels, kNumPoints}, given.options().requires_grad(false));
}

using Maybe = std::optional<at::Tensor>;

std::vector<int64_t> result_sizes(
    const at::Tensor& x, const at::Tensor& weight, int64_t kernel, at::IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 4, "images are needed: a batch, channels, rows and columns");
  TORCH_CHECK(x.scalar_type() == at::kFloat, "float32 is needed, not ", x.scalar_type());
  TORCH_CHECK(
      weight.dim() == 3 && weight.size(2) == kNumPoints && weight.scalar_type() == at::kFloat &&
          weight.is_contiguous(),
      "weights are needed as winograd_weight makes them");
  TORCH_CHECK(x.size(1) == weight.size(1), "weights of ", x.size(1), " channels are needed, not ", weight.size(1));
  TORCH_CHECK(padding.size() == 2 && padding[0] >= 0 && padding[1] >= 0, "two paddings are needed");
  TORCH_CHECK(is_known(kernel), "a kernel of 3 or 5 is needed, not of ", kernel);
  const int64_t height = x.size(2) + 2 * padding[0] - kernel + 1;
  const int64_t width = x.size(3) + 2 * padding[1] - kernel + 1;
  TORCH_CHECK(height > 0 && width > 0, "images are too small for the kernel");
  return {x.size(0), weight.size(0), height, width};
}

at::Tensor empty_result(
    const at::Tensor& x,
    const at::Tensor& weight,
    int64_t kernel,
    at::IntArrayRef padding,
    at::MemoryFormat format) {
  return at::empty(result_sizes(x, weight, kernel, padding), x.options().memory_format(format));
}

Job job_of(const at::Tensor& dense, at::IntArrayRef sizes, int64_t kernel, at::IntArrayRef padding) {
  Job job = {};
  job.x = dense.const_data_ptr<float>();
  job.height = dense.size(2), job.width = dense.size(3), job.channels = dense.size(1);
  job.out_height = sizes[2], job.out_width = sizes[3], job.out_channels = sizes[1];
  job.pad_height = padding[0], job.pad_width = padding[1];
  job.tile = kIn + 1 - kernel;
  job.tiles_down = quotient_up(sizes[2], job.tile), job.tiles_across = quotient_up(sizes[3], job.tile);
  return job;
}

void convolve(
    const at::Tensor& x,
    const at::Tensor& weight,
    const Maybe& bias,
    int64_t kernel,
    at::IntArrayRef padding,
    const Maybe& added,
    bool relu,
    at::Tensor& to) {
  const auto sizes = result_sizes(x, weight, kernel, padding);
  const auto format = at::MemoryFormat::ChannelsLast;
  TORCH_CHECK(to.is_contiguous(format), "a result that lies as channels_last is needed");
  const auto fits = [](const at::Tensor& it, at::IntArrayRef wanted) {
    return it.sizes() == wanted && it.scalar_type() == at::kFloat;
  };
  TORCH_CHECK(!bias || fits(*bias, {sizes[1]}), "a bias for each channel is needed, in float32");
  TORCH_CHECK(!added || fits(*added, sizes), "what is added has another form than the result");
  if (to.numel() == 0) return;
  const at::Tensor dense = x.contiguous(format);
  const at::Tensor dense_bias = bias ? bias->contiguous() : at::Tensor();
  const at::Tensor dense_added = added ? added->contiguous(format) : at::Tensor();
  Job job = job_of(dense, sizes, kernel, padding);
  job.weights = weight.const_data_ptr<float>();
  job.bias = bias ? dense_bias.const_data_ptr<float>() : nullptr;
  job.added = added ? dense_added.const_data_ptr<float>() : nullptr;
  job.y = to.mutable_data_ptr<float>();
  job.relu = relu;
  run(job, sizes[0]);
}

at::Tensor convolution(
    const at::Tensor& x,
    const at::Tensor& weight,
    const Maybe& bias,
    int64_t kernel,
    at::IntArrayRef padding,
    const Maybe& added,
    bool relu) {
  at::Tensor made = empty_result(x, weight, kernel, padding, at::MemoryFormat::ChannelsLast);
  convolve(x, weight, bias, kernel, padding, added, relu, made);
  // The result has the memory format of the image.
  return made.contiguous(x.suggest_memory_format());
}

// The same with weights in torch's layout, which change at every step.
at::Tensor changing_convolution(
    const at::Tensor& x, const at::Tensor& weight, const Maybe& bias, at::IntArrayRef padding, bool turned) {
  return convolution(x, changing_weight(weight, turned), bias, weight.size(2), padding, std::nullopt, false);
}

// Returns nothing: torch.compile accepts no foreign operator whose result is one of its arguments.
void convolution_(
    at::Tensor& added,
    const at::Tensor& x,
    const at::Tensor& weight,
    const Maybe& bias,
    int64_t kernel,
    at::IntArrayRef padding,
    bool relu) {
  // Values are read after neighbouring results have been written.
  at::assert_no_overlap(added, x);
  convolve(x, weight, bias, kernel, padding, added, relu, added);
}

at::Tensor shape_of_convolution(
    const at::Tensor& x,
    const at::Tensor& weight,
    const Maybe&,
    int64_t kernel,
    at::IntArrayRef padding,
    const Maybe&,
    bool) {
  return empty_result(x, weight, kernel, padding, x.suggest_memory_format());
}

void shape_of_convolution_(
    at::Tensor&, const at::Tensor&, const at::Tensor&, const Maybe&, int64_t, at::IntArrayRef, bool) {}

// Compute the gradient of the weights from the images and the gradient of the result; both are channels_last or copied.
at::Tensor weight_gradient(const at::Tensor& x, const at::Tensor& dy, int64_t kernel, at::IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 4 && dy.dim() == 4 && x.size(0) == dy.size(0), "as many gradients as images are needed");
  TORCH_CHECK(x.scalar_type() == at::kFloat && dy.scalar_type() == at::kFloat, "float32 is needed");
  TORCH_CHECK(is_known(kernel), "a kernel of 3 or 5 is needed, not of ", kernel);
  TORCH_CHECK(padding.size() == 2 && padding[0] >= 0 && padding[1] >= 0, "two paddings are needed");
  const int64_t channels = x.size(1), out_channels = dy.size(1);
  const bool are_whole = channels % kChannelStep == 0 && out_channels % kChannelStep == 0;
  TORCH_CHECK(channels && out_channels && are_whole, "channels in multiples of ", kChannelStep, " are needed");
  for (int64_t i = 0; i < 2; ++i)
    TORCH_CHECK(
        dy.size(2 + i) == x.size(2 + i) + 2 * padding[i] - kernel + 1, "gradients of other sizes than the result");
  const auto format = at::MemoryFormat::ChannelsLast;
  const at::Tensor dense = x.contiguous(format), dense_dy = dy.contiguous(format);
  const auto powers = rounded_powers(kernel);
  GradientJob job = {};
  job.of = job_of(dense, dy.sizes(), kernel, padding);
  job.dy = dense_dy.const_data_ptr<float>();
  job.powers = powers.data();
  job.kernel = kernel;
  const int64_t num_tiles = dy.size(0) * job.of.tiles_down * job.of.tiles_across, width = own_width();
  const GradientDivision division = gradient_divided(job, num_tiles, width);
  at::Tensor sums = at::empty({division.num_ranges, kernel, kernel, channels, out_channels}, dense.options());
  job.sums = sums.mutable_data_ptr<float>();
  add_gradients(job, num_tiles, division, width);
  at::Tensor made = at::empty({out_channels, channels, kernel, kernel}, dense.options().memory_format(format));
  float* const to = made.mutable_data_ptr<float>();
  shared_out(channels / kChannelStep, width, [&](int64_t number, int64_t) {
    const int64_t first = number * kChannelStep;
    version().add_ranges(job, division.num_ranges, first, first + kChannelStep, to);
  });
  return made;
}

std::unique_ptr<torch::Library> registered() {
  auto made = library_without("corewise::winograd_convolution");
  if (!made) return made;
  made->def("winograd_weight(Tensor weight) -> Tensor");
  made->def(
      "winograd_convolution(Tensor x, Tensor weight, Tensor? bias, int kernel, int[] padding, Tensor? added,"
      " bool relu) -> Tensor");
  made->def(
      "winograd_convolution_(Tensor(a!) added, Tensor x, Tensor weight, Tensor? bias, int kernel, int[] padding,"
      " bool relu) -> ()");
  made->def(
      "winograd_changing_convolution(Tensor x, Tensor weight, Tensor? bias, int[] padding, bool turned) -> Tensor");
  made->def("winograd_weight_gradient(Tensor x, Tensor dy, int kernel, int[] padding) -> Tensor");
  made->impl(
      "winograd_changing_convolution", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(changing_convolution)));
  made->impl("winograd_weight_gradient", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(weight_gradient)));
  made->impl("winograd_weight", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(weight)));
  made->impl("winograd_convolution", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(convolution)));
  made->impl("winograd_convolution_", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(convolution_)));
  made->impl("winograd_convolution", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(shape_of_convolution)));
  made->impl("winograd_convolution_", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(shape_of_convolution_)));
  return made;
}

static const std::unique_ptr<torch::Library> library = registered();

}  // namespace corewise::winograd

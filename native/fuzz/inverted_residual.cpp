#include "fuzz/inverted_residual.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

// Results in double, and a bound of the error of each.
struct Values {
  std::vector<double> value, error;

  explicit Values(long count) : value(count), error(count) {}
};

Problem pointwise(const Problem& d, long height, long width, long inputs, long outputs) {
  Problem p = {};
  p.batch = d.batch;
  p.in_height = p.out_height = height;
  p.in_width = p.out_width = width;
  p.in_channels = inputs;
  p.out_channels = outputs;
  p.kernel_height = p.kernel_width = p.stride_y = p.stride_x = 1;
  p.dilation_y = p.dilation_x = p.groups = 1;
  return p;
}

InvertedResidual random_block(std::mt19937& random) {
  InvertedResidual r = {};
  Problem& d = r.depthwise;
  d.batch = pick(random, 1, 2);
  d.in_channels = d.out_channels = d.groups = pick(random, 1, 70);
  d.kernel_height = pick(random, 1, 5);
  d.kernel_width = pick(random, 1, 7);
  d.stride_y = pick(random, 1, 3);
  d.stride_x = pick(random, 1, 3);
  d.dilation_y = pick(random, 1, 2);
  d.dilation_x = pick(random, 1, 2);
  d.pad_top = pick(random, 0, 3);
  d.pad_bottom = pick(random, 0, 3);
  d.pad_left = pick(random, 0, 3);
  d.pad_right = pick(random, 0, 3);
  const auto extent = [&](long kernel, long dilation, long pads) {
    return std::max(1L, dilation * (kernel - 1) + 1 - pads) + pick(random, 0, 17);
  };
  d.in_height = extent(d.kernel_height, d.dilation_y, d.pad_top + d.pad_bottom);
  d.in_width = extent(d.kernel_width, d.dilation_x, d.pad_left + d.pad_right);
  const auto made = [](long in, long pads, long dilation, long kernel, long stride) {
    return (in + pads - dilation * (kernel - 1) - 1) / stride + 1;
  };
  d.out_height =
      made(d.in_height, d.pad_top + d.pad_bottom, d.dilation_y, d.kernel_height, d.stride_y);
  d.out_width =
      made(d.in_width, d.pad_left + d.pad_right, d.dilation_x, d.kernel_width, d.stride_x);
  r.in_channels = pick(random, 0, 3) == 0 ? 0 : pick(random, 1, 20);
  r.out_channels = pick(random, 0, 3) == 0 ? 0 : pick(random, 1, 40);
  return r;
}

// Calls f(x index, w index, y index) for every product of a layer.
template <class F>
void each_product(const Problem& p, F f) {
  const long inputs = p.in_channels / p.groups, outputs = p.out_channels / p.groups;
  for (long y = 0; y < p.batch * p.out_height * p.out_width * p.out_channels; ++y) {
    const long k = y % p.out_channels, ox = y / p.out_channels % p.out_width;
    const long oy = y / p.out_channels / p.out_width % p.out_height;
    const long n = y / p.out_channels / p.out_width / p.out_height;
    for (long tap = 0; tap < p.kernel_height * p.kernel_width; ++tap) {
      const long iy = oy * p.stride_y - p.pad_top + tap / p.kernel_width * p.dilation_y;
      const long ix = ox * p.stride_x - p.pad_left + tap % p.kernel_width * p.dilation_x;
      if (iy < 0 || iy >= p.in_height || ix < 0 || ix >= p.in_width) continue;
      const long pixel = ((n * p.in_height + iy) * p.in_width + ix) * p.in_channels;
      for (long i = 0; i < inputs; ++i)
        f(pixel + k / outputs * inputs + i,
          (k * p.kernel_height * p.kernel_width + tap) * inputs + i, y);
    }
  }
}

// A layer in double. Each of its sums rounds once a term, by half a unit of the magnitudes.
Values layer_of(const Problem& p, const Values& x, const float* w, const Epilogue& epilogue) {
  const long count = p.batch * p.out_height * p.out_width * p.out_channels;
  Values y(count);
  std::vector<double> size(count);
  each_product(p, [&](long i, long j, long k) {
    const double weight = w[j];
    y.value[k] += x.value[i] * weight;
    y.error[k] += x.error[i] * std::fabs(weight);
    size[k] += (std::fabs(x.value[i]) + x.error[i]) * std::fabs(weight);
  });
  const double terms =
      3.0 + static_cast<double>(p.kernel_height * p.kernel_width * (p.in_channels / p.groups));
  const float* residual = static_cast<const float*>(epilogue.residual);
  for (long k = 0; k < count; ++k) {
    for (const double added :
         {epilogue.bias ? static_cast<double>(epilogue.bias[k % p.out_channels]) : 0.0,
          residual ? static_cast<double>(residual[k]) : 0.0}) {
      y.value[k] += added;
      size[k] += std::fabs(added);
    }
    y.error[k] += std::ldexp(terms * size[k], -24) * 1.01;
    if (epilogue.activation == Activation::kRelu6)
      y.value[k] = std::min(6.0, std::max(0.0, y.value[k]));
  }
  return y;
}

}  // namespace

int try_inverted_residuals(const Kernels& kernels, std::mt19937& random) {
  const InvertedResidual r = random_block(random);
  const Problem& d = r.depthwise;
  const int threads = static_cast<int>(pick(random, 1, 3));
  const long inputs = r.expands() ? r.in_channels : d.in_channels;
  const long outputs = r.projects() ? r.out_channels : d.in_channels;
  const Problem layers[] = {pointwise(d, d.in_height, d.in_width, inputs, d.in_channels), d,
                            pointwise(d, d.out_height, d.out_width, d.in_channels, outputs)};
  const bool present[] = {r.expands(), true, r.projects()};
  const char* names[] = {"convgemm", "depthwise", "convgemm"};
  const long in_count = d.batch * d.in_height * d.in_width * inputs;
  const long out_count = d.batch * d.out_height * d.out_width * outputs;
  const Buffer x = exact(in_count, random, true), residual = exact(out_count, random, true);
  const Buffer y = exact(out_count, random, false);
  Buffer weights[3], packed[3], biases[3];
  LayerCall calls[3];
  Values wanted(in_count);
  std::copy(x.get(), x.get() + in_count, wanted.value.begin());
  for (int i = 0; i < 3; ++i) {
    if (!present[i]) continue;
    const Problem& p = layers[i];
    weights[i] = exact(p.out_channels * p.kernel_height * p.kernel_width * p.in_channels / p.groups,
                       random, true);
    biases[i] = exact(p.out_channels, random, true);
    for (int a = 0; a < kernels.algorithm_count; ++a) {
      if (std::strcmp(kernels.algorithms[a].name, names[i]) != 0) continue;
      const Pass& pass = kernels.algorithms[a].passes->forward;
      packed[i] = exact(pass.packed_floats(p), random, false);
      pass.pack(p, weights[i].get(), packed[i].get(), threads);
    }
    calls[i].weights = packed[i].get();
    if (pick(random, 0, 1) == 1) calls[i].epilogue.bias = biases[i].get();
    if (pick(random, 0, 1) == 1) calls[i].epilogue.activation = Activation::kRelu6;
    if (i == 2 && pick(random, 0, 1) == 1) calls[i].epilogue.residual = residual.get();
    wanted = layer_of(p, wanted, weights[i].get(), calls[i].epilogue);
  }
  const InvertedResidualPass& pass = *kernels.inverted_residual;
  const Buffer scratch = exact(pass.scratch_floats(r, threads), random, false);
  pass.run(r, {x.get(), calls[0], calls[1], calls[2], y.get(), scratch.get(), threads});
  for (long k = 0; k < out_count; ++k) {
    if (std::fabs(y[k] - wanted.value[k]) <= wanted.error[k]) continue;
    std::fprintf(
        stderr,
        "%s: wrong inverted residual of %ld x %ld x %ld x %ld, %ld, kernel %ld x %ld, %ld, "
        "%d threads\n",
        kernels.isa, d.batch, d.in_height, d.in_width, r.in_channels, d.in_channels,
        d.kernel_height, d.kernel_width, r.out_channels, threads);
    return 1;
  }
  return 0;
}

}  // namespace fuzz
}  // namespace bestof

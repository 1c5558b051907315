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
  p.element = d.element;
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

// Returns memory for the elements of a tensor.
template <class Element>
auto memory(long count, std::mt19937& random, bool fill) {
  if constexpr (sizeof(Element) < sizeof(float)) {
    return exact16(count, random, fill);
  } else {
    return exact(count, random, fill);
  }
}

// What rounding to the 8 bits of bfloat16 adds to an error.
double rounded(double value, double error) {
  return error + std::ldexp(std::fabs(value) + error, -8);
}

// A layer in double. Each of its sums rounds once a term, by half a unit of the magnitudes.
// rounds_x, rounds_w: whether the kernel rounds an operand that is not bfloat16 already.
template <class Element>
Values layer_of(const Problem& p, const Values& x, const Element* w, const Epilogue& epilogue,
                bool rounds_x, bool rounds_w) {
  const long count = p.batch * p.out_height * p.out_width * p.out_channels;
  Values y(count);
  std::vector<double> size(count);
  each_product(p, [&](long i, long j, long k) {
    const double weight = value_of(w[j]), of_weight = rounds_w ? rounded(weight, 0) : 0.0;
    const double error = rounds_x ? rounded(x.value[i], x.error[i]) : x.error[i];
    y.value[k] += x.value[i] * weight;
    y.error[k] += error * (std::fabs(weight) + of_weight) + std::fabs(x.value[i]) * of_weight;
    size[k] += (std::fabs(x.value[i]) + error) * (std::fabs(weight) + of_weight);
  });
  const double terms =
      3.0 + static_cast<double>(p.kernel_height * p.kernel_width * (p.in_channels / p.groups));
  const Element* residual = static_cast<const Element*>(epilogue.residual);
  for (long k = 0; k < count; ++k) {
    for (const double added :
         {epilogue.bias ? static_cast<double>(epilogue.bias[k % p.out_channels]) : 0.0,
          residual ? static_cast<double>(value_of(residual[k])) : 0.0}) {
      y.value[k] += added;
      size[k] += std::fabs(added);
    }
    y.error[k] += std::ldexp(terms * size[k], -24) * 1.01;
    if (epilogue.activation == Activation::kRelu6)
      y.value[k] = std::min(6.0, std::max(0.0, y.value[k]));
  }
  return y;
}

// Compares a random block with its layers in double. kPairs: whether 1x1 convolutions multiply
// bfloat16.
template <class Element, bool kPairs>
int try_block(const Kernels& kernels, const InvertedResidualPass& pass, std::mt19937& random) {
  constexpr bool kHalf = sizeof(Element) < sizeof(float);
  InvertedResidual r = random_block(random);
  r.depthwise.element = kHalf ? bestof::Element::kBfloat16 : bestof::Element::kFloat32;
  const Problem& d = r.depthwise;
  const int threads = static_cast<int>(pick(random, 1, 3));
  const long inputs = r.expands() ? r.in_channels : d.in_channels;
  const long outputs = r.projects() ? r.out_channels : d.in_channels;
  const Problem layers[] = {pointwise(d, d.in_height, d.in_width, inputs, d.in_channels), d,
                            pointwise(d, d.out_height, d.out_width, d.in_channels, outputs)};
  const bool present[] = {r.expands(), true, r.projects()};
  const char* products = kPairs ? "convgemm_bf16" : "convgemm";
  const char* names[] = {products, "depthwise", products};
  const long in_count = d.batch * d.in_height * d.in_width * inputs;
  const long out_count = d.batch * d.out_height * d.out_width * outputs;
  const auto x = memory<Element>(in_count, random, true),
             residual = memory<Element>(out_count, random, true);
  const auto y = memory<Element>(out_count, random, false);
  decltype(memory<Element>(0, random, false)) weights[3];
  Buffer packed[3], biases[3];
  LayerCall calls[3];
  Values wanted(in_count);
  for (long i = 0; i < in_count; ++i) wanted.value[i] = value_of(x[i]);
  for (int i = 0; i < 3; ++i) {
    if (!present[i]) continue;
    const Problem& p = layers[i];
    weights[i] = memory<Element>(
        p.out_channels * p.kernel_height * p.kernel_width * p.in_channels / p.groups, random, true);
    biases[i] = exact(p.out_channels, random, true);
    for (int a = 0; a < kernels.algorithm_count; ++a) {
      if (std::strcmp(kernels.algorithms[a].name, names[i]) != 0) continue;
      const Pass& forward = kernels.algorithms[a].passes->forward;
      packed[i] = exact(forward.packed_floats(p), random, false);
      forward.pack(p, weights[i].get(), packed[i].get(), threads);
    }
    calls[i].weights = packed[i].get();
    if (pick(random, 0, 1) == 1) calls[i].epilogue.bias = biases[i].get();
    if (pick(random, 0, 1) == 1) calls[i].epilogue.activation = Activation::kRelu6;
    if (i == 2 && pick(random, 0, 1) == 1) calls[i].epilogue.residual = residual.get();
    const bool rounds = kPairs && i != 1;
    wanted = layer_of(p, wanted, weights[i].get(), calls[i].epilogue, rounds && !(kHalf && i == 0),
                      rounds && !kHalf);
  }
  const Buffer scratch = exact(pass.scratch_floats(r, threads), random, false);
  pass.run(r, {x.get(), calls[0], calls[1], calls[2], y.get(), scratch.get(), threads});
  for (long k = 0; k < out_count; ++k) {
    const double error = kHalf ? rounded(wanted.value[k], wanted.error[k]) : wanted.error[k];
    if (std::fabs(value_of(y[k]) - wanted.value[k]) <= error) continue;
    std::fprintf(
        stderr,
        "%s: wrong inverted residual of %ld x %ld x %ld x %ld, %ld, kernel %ld x %ld, %ld, "
        "%d threads, %s of %s\n",
        kernels.isa, d.batch, d.in_height, d.in_width, r.in_channels, d.in_channels,
        d.kernel_height, d.kernel_width, r.out_channels, threads, products,
        kHalf ? "bfloat16" : "float32");
    return 1;
  }
  return 0;
}

}  // namespace

int try_inverted_residuals(const Kernels& kernels, std::mt19937& random) {
  if (try_block<float, false>(kernels, *kernels.inverted_residual, random) != 0) return 1;
  if (try_block<Bfloat16, false>(kernels, *kernels.inverted_residual, random) != 0) return 1;
  const InvertedResidualPass* pairs = kernels.inverted_residual_bf16;
  if (!pairs) return 0;
  if (try_block<float, true>(kernels, *pairs, random) != 0) return 1;
  return try_block<Bfloat16, true>(kernels, *pairs, random);
}

}  // namespace fuzz
}  // namespace bestof

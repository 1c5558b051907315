#include "fuzz/training.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Relative to the magnitudes of the terms. Operands are at most 2.
constexpr double kBound = 1e-4;

bool close(double got, double wanted, double terms) {
  return std::fabs(got - wanted) <= kBound * (terms + std::fabs(wanted));
}

int wrong(const Kernels& kernels, const char* what, long a, long b, long c) {
  std::fprintf(stderr, "%s: wrong %s of %ld, %ld, %ld\n", kernels.isa, what, a, b, c);
  return 1;
}

int team(std::mt19937& random) {
  return static_cast<int>(pick(random, 1, 2));
}

// Small sizes, and now and then one for several threads.
long count_of(std::mt19937& random, long few, long many) {
  return pick(random, 0, 7) == 0 ? pick(random, many, many + 40) : pick(random, 1, few);
}

double activated(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  if (activation == Activation::kGelu) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x)));
}

template <class T, class Make>
int try_activation(const Kernels& kernels, std::mt19937& random, Element element,
                   const Make& make) {
  const Activation all[] = {Activation::kGelu, Activation::kGeluTanh, Activation::kSilu};
  const ActivationProblem p = {count_of(random, 70, 17000), all[pick(random, 0, 2)], element};
  const auto x = make(p.count, true), gradient = make(p.count, true);
  const auto y = make(p.count, false), slope = make(p.count, false);
  kernels.activation_forward(p, x.get(), y.get(), team(random));
  kernels.activation_backward(p, gradient.get(), x.get(), slope.get(), team(random));
  const double last = sizeof(T) < sizeof(float) ? 50.0 : 1.0;  // one rounding to bfloat16
  for (long i = 0; i < p.count; ++i) {
    const double at = value_of(x[i]), g = value_of(gradient[i]), step = 1e-4;
    const double rise = activated(p.activation, at + step) - activated(p.activation, at - step);
    const double derivative = rise / (2 * step);
    if (!close(value_of(y[i]), activated(p.activation, at), last * std::fabs(at)) ||
        !close(value_of(slope[i]), g * derivative, last * std::fabs(g)))
      return wrong(kernels, "activation", p.count, static_cast<long>(p.activation), i);
  }
  return 0;
}

int try_softmax(const Kernels& kernels, std::mt19937& random) {
  const bool rows = pick(random, 0, 1) == 1;
  const SoftmaxProblem p = {pick(random, 1, 5), count_of(random, 70, 4200),
                            rows ? 1 : pick(random, 1, 70)};
  const long count = p.outer * p.size * p.inner;
  const Buffer x = exact(count, random, true), y = exact(count, random, false);
  kernels.softmax(p, x.get(), y.get(), team(random));
  for (long i = 0; i < p.outer * p.inner; ++i) {
    const long at = i / p.inner * p.size * p.inner + i % p.inner;
    double sum = 0.0;
    for (long k = 0; k < p.size; ++k) sum += std::exp(x[at + k * p.inner]);
    for (long k = 0; k < p.size; ++k) {
      const double wanted = std::exp(x[at + k * p.inner]) / sum;
      if (!close(y[at + k * p.inner], wanted, 0.0))
        return wrong(kernels, "softmax", p.outer, p.size, p.inner);
    }
  }
  return 0;
}

// Returns the next word of a twister, of which the last `unread` words were not drawn yet.
uint32_t drawn(std::vector<uint32_t>& state, long& unread) {
  const long count = kTwisterWords;
  if (unread == 0) {
    for (long k = 0; k < count; ++k) {
      const uint32_t mixed = (state[k] & 0x80000000u) | (state[(k + 1) % count] & 0x7FFFFFFFu);
      state[k] = state[(k + 397) % count] ^ (mixed >> 1) ^ (mixed % 2 == 1 ? 0x9908B0DFu : 0u);
    }
    unread = count;
  }
  uint32_t word = state[count - unread--];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9D2C5680u;
  word ^= (word << 15) & 0xEFC60000u;
  return word ^ (word >> 18);
}

template <class Bits>
int try_bernoulli(const Kernels& kernels, std::mt19937& random) {
  const BernoulliProblem p = {count_of(random, 700, 3000),
                              static_cast<int64_t>(std::ldexp(pick(random, 0, 10), 53) / 10),
                              static_cast<uint64_t>(pick(random, 1, 65535)), sizeof(Bits)};
  std::vector<uint32_t> state(kTwisterWords);
  for (uint32_t& word : state) word = static_cast<uint32_t>(random());
  std::vector<uint32_t> right = state;
  long unread = pick(random, 0, kTwisterWords);
  const std::unique_ptr<Bits, Free> out(static_cast<Bits*>(std::malloc(p.count * sizeof(Bits))));
  const long left = kernels.bernoulli(p, state.data(), unread, out.get());
  for (long i = 0; i < p.count; ++i) {
    const uint64_t high = drawn(right, unread), low = drawn(right, unread);
    const auto number = static_cast<int64_t>((high & 0x1FFFFF) << 32 | low);
    if (out.get()[i] != (number < p.below ? p.one : 0))
      return wrong(kernels, "Bernoulli number", p.count, left, i);
  }
  if (left != unread || state != right)
    return wrong(kernels, "state of Bernoulli numbers", p.count, left, unread);
  return 0;
}

// The gradients of a norm over sets of numbers: of each element, which set and which weight it has.
struct Sets {
  long sets, weights;
  std::vector<long> set, weight;
};

bool same_gradients(const Sets& of, const float* gradient, const float* x, const float* mean,
                    const float* rstd, const float* scale, const float* of_x, const float* of_scale,
                    const float* of_shift) {
  const long count = static_cast<long>(of.set.size());
  std::vector<double> sums(of.sets), products(of.sets), sizes(of.sets), terms(of.sets);
  std::vector<double> scales(of.weights), shifts(of.weights), most(of.weights);
  const auto normed = [&](long i) {
    return (static_cast<double>(x[i]) - mean[of.set[i]]) * rstd[of.set[i]];
  };
  const auto scaled = [&](long i) {
    return gradient[i] * (scale ? static_cast<double>(scale[of.weight[i]]) : 1.0);
  };
  for (long i = 0; i < count; ++i) {
    sums[of.set[i]] += scaled(i);
    products[of.set[i]] += scaled(i) * normed(i);
    terms[of.set[i]] += std::fabs(scaled(i)) * (1 + std::fabs(normed(i)));
    sizes[of.set[i]] += 1;
    scales[of.weight[i]] += gradient[i] * normed(i);
    shifts[of.weight[i]] += gradient[i];
    most[of.weight[i]] += std::fabs(gradient[i]) * (1 + std::fabs(normed(i)));
  }
  for (long i = 0; i < count && of_x; ++i) {
    const long set = of.set[i];
    const double rest = (sums[set] + normed(i) * products[set]) / sizes[set];
    const double all = std::fabs(scaled(i)) + (1 + std::fabs(normed(i))) * terms[set] / sizes[set];
    if (!close(of_x[i], rstd[set] * (scaled(i) - rest), rstd[set] * all)) return false;
  }
  for (long k = 0; k < of.weights; ++k) {
    if (of_scale && !close(of_scale[k], scales[k], most[k])) return false;
    if (of_shift && !close(of_shift[k], shifts[k], most[k])) return false;
  }
  return true;
}

int try_layer_norm(const Kernels& kernels, std::mt19937& random) {
  const LayerNormProblem p = {count_of(random, 9, 130), pick(random, 1, 300), 1e-2};
  const long count = p.rows * p.size;
  const Buffer x = exact(count, random, true), gradient = exact(count, random, true);
  const Buffer scale = exact(p.size, random, true), shift = exact(p.size, random, true);
  const Buffer y = exact(count, random, false), of_x = exact(count, random, false);
  const Buffer mean = exact(p.rows, random, false), rstd = exact(p.rows, random, false);
  const Buffer of_scale = exact(p.size, random, false), of_shift = exact(p.size, random, false);
  const int threads = team(random);
  const Buffer scratch = exact(threads * 2 * p.size, random, false);
  const auto maybe = [&](float* one) { return pick(random, 0, 1) == 1 ? one : nullptr; };
  const float *factor = maybe(scale.get()), *term = maybe(shift.get());
  kernels.layer_norm(p, {x.get(), factor, term, y.get(), mean.get(), rstd.get(), threads});
  Sets of = {p.rows, p.size, {}, {}};
  for (long i = 0; i < count; ++i) {
    const long row = i / p.size, k = i % p.size;
    of.set.push_back(row);
    of.weight.push_back(k);
    double wanted = (static_cast<double>(x[i]) - mean[row]) * rstd[row] * (factor ? factor[k] : 1);
    wanted += term ? term[k] : 0;
    if (!close(y[i], wanted, 20.0)) return wrong(kernels, "layer norm", p.rows, p.size, i);
  }
  float *a = maybe(of_x.get()), *b = maybe(of_scale.get()), *c = maybe(of_shift.get());
  if (!a && !b && !c) return 0;
  kernels.layer_norm_backward(p, {gradient.get(), x.get(), mean.get(), rstd.get(), factor, a, b, c,
                                  scratch.get(), threads});
  if (!same_gradients(of, gradient.get(), x.get(), mean.get(), rstd.get(), factor, a, b, c))
    return wrong(kernels, "gradients of layer norm", p.rows, p.size, factor != nullptr);
  return 0;
}

int try_group_norm(const Kernels& kernels, std::mt19937& random) {
  const long width = pick(random, 1, 9), groups = pick(random, 1, 9);
  const GroupNormProblem p = {pick(random, 1, 3), count_of(random, 20, 300), width * groups,
                              groups};
  const long count = p.images * p.pixels * p.channels, sets = p.images * groups;
  const Buffer x = exact(count, random, true), gradient = exact(count, random, true);
  const Buffer scale = exact(p.channels, random, true), mean = exact(sets, random, true);
  const Buffer rstd = exact(sets, random, true), of_x = exact(count, random, false);
  const Buffer of_scale = exact(p.channels, random, false);
  const Buffer of_shift = exact(p.channels, random, false);
  const Buffer scratch = exact(group_norm_scratch(p), random, false);
  for (long i = 0; i < sets; ++i) rstd[i] = 1 + std::fabs(rstd[i]);
  Sets of = {sets, p.channels, {}, {}};
  for (long i = 0; i < count; ++i) {
    const long channel = i % p.channels;
    of.set.push_back(i / (p.pixels * p.channels) * groups + channel / width);
    of.weight.push_back(channel);
  }
  const auto maybe = [&](float* one) { return pick(random, 0, 1) == 1 ? one : nullptr; };
  const float* factor = maybe(scale.get());
  float *a = maybe(of_x.get()), *b = maybe(of_scale.get()), *c = maybe(of_shift.get());
  kernels.group_norm_backward(p, {gradient.get(), x.get(), mean.get(), rstd.get(), factor, a, b, c,
                                  scratch.get(), team(random)});
  if (!same_gradients(of, gradient.get(), x.get(), mean.get(), rstd.get(), factor, a, b, c))
    return wrong(kernels, "gradients of group norm", p.images, p.pixels, p.channels);
  return 0;
}

}  // namespace

int try_training(const Kernels& kernels, std::mt19937& random) {
  const auto floats = [&](long count, bool fill) { return exact(count, random, fill); };
  const auto halves = [&](long count, bool fill) { return exact16(count, random, fill); };
  if (try_activation<float>(kernels, random, Element::kFloat32, floats) != 0) return 1;
  if (try_activation<Bfloat16>(kernels, random, Element::kBfloat16, halves) != 0) return 1;
  if (try_softmax(kernels, random) != 0 || try_layer_norm(kernels, random) != 0) return 1;
  if (try_bernoulli<uint16_t>(kernels, random) != 0) return 1;
  if (try_bernoulli<uint32_t>(kernels, random) != 0) return 1;
  if (try_bernoulli<uint64_t>(kernels, random) != 0) return 1;
  return try_group_norm(kernels, random);
}

}  // namespace fuzz
}  // namespace bestof

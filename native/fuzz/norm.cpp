#include "fuzz/norm.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

NormProblem random_norm(Element element, std::mt19937& random) {
  NormProblem p = {};
  const bool shares = pick(random, 0, 7) == 0;  // enough for several threads
  p.rows = shares ? pick(random, 128, 140) : pick(random, 1, 9);
  p.size = shares ? pick(random, 256, 300) : pick(random, 1, 150);
  p.epsilon = pick(random, 0, 1) == 1 ? 1e-5 : 1e-2;
  p.centred = pick(random, 0, 1) == 1;
  p.element = element;
  return p;
}

// What a call reads. Null where a norm has none.
template <class T>
struct Operands {
  const T *x, *residual, *scale, *shift;
};

// Compares one row. The quotient, the product and the sum round once each, as in
// tests/numerics/test_norm.py. The quotient of bfloat16 rounds four times, and its result once
// more. Sums are of double, where roundings are below 1e-12 beside numbers of at most 2 over the
// root of epsilon. Those of bfloat16 are of float32 by blocks: the mean is right to 16 * 2^-24
// deviations (norm/norm.cpp).
template <class T>
bool close(const NormProblem& p, const Operands<T>& given, const std::vector<T>& x,
           const std::vector<T>& residual, const T* y) {
  std::vector<double> sums(p.size);
  double mean = 0.0, variance = 0.0;
  for (long i = 0; i < p.size; ++i) {
    const float left = static_cast<float>(value_of(x[i]));
    const float right = given.residual ? static_cast<float>(value_of(residual[i])) : 0.0f;
    sums[i] = left + right;  // rounded to float32, as in the kernel
    mean += sums[i] / static_cast<double>(p.size);
  }
  if (!p.centred) mean = 0.0;
  for (double s : sums) variance += (s - mean) * (s - mean) / static_cast<double>(p.size);
  const bool halves = sizeof(T) < sizeof(float);
  const double last = halves ? std::ldexp(1.0, -8) : 0.0, roundings = halves ? 5.5 : 2.5;
  for (long i = 0; i < p.size; ++i) {
    double product = (sums[i] - mean) / std::sqrt(variance + p.epsilon);
    double of_mean = halves && p.centred ? 16.0 : 0.0;
    if (given.scale) {
      product *= value_of(given.scale[i]);
      of_mean *= std::fabs(value_of(given.scale[i]));
    }
    const double wanted = product + (given.shift ? value_of(given.shift[i]) : 0.0);
    const double bound =
        std::ldexp(roundings * std::fabs(product) + of_mean + std::fabs(wanted), -24) + 1e-12;
    if (!(std::fabs(value_of(y[i]) - wanted) <= bound * (1 + last) + last * std::fabs(wanted)))
      return false;
  }
  return true;
}

template <class T, class Make>
int try_norm(const Kernels& kernels, std::mt19937& random, Element element, const Make& make) {
  const NormProblem p = random_norm(element, random);
  const long count = p.rows * p.size;
  const auto x = make(count, true), residual = make(count, true), y = make(count, false);
  const auto scale = make(p.size, true), shift = make(p.size, true);
  const auto maybe = [&](const T* one) { return pick(random, 0, 1) == 1 ? one : nullptr; };
  const Operands<T> given = {x.get(), maybe(residual.get()), maybe(scale.get()),
                             maybe(shift.get())};
  // Results may take the place of x or of the residual.
  const long place = pick(random, 0, 2);
  T* out = place == 0 ? y.get() : place == 1 ? x.get() : residual.get();
  const std::vector<T> rows(x.get(), x.get() + count), more(residual.get(), residual.get() + count);
  kernels.normalize(p, {given.x, given.residual, given.scale, given.shift, out,
                        static_cast<int>(pick(random, 1, 2))});
  for (long row = 0; row < p.rows; ++row) {
    const auto part = [&](const std::vector<T>& all) {
      return std::vector<T>(all.begin() + row * p.size, all.begin() + (row + 1) * p.size);
    };
    if (close(p, given, part(rows), part(more), out + row * p.size)) continue;
    std::fprintf(stderr, "%s: wrong norm of %ld x %ld, %s%s%s%s%s\n", kernels.isa, p.rows, p.size,
                 element == Element::kBfloat16 ? "bfloat16" : "float32",
                 p.centred ? ", centred" : "", given.residual ? ", residual" : "",
                 given.scale ? ", scale" : "", given.shift ? ", shift" : "");
    return 1;
  }
  return 0;
}

}  // namespace

int try_norms(const Kernels& kernels, std::mt19937& random) {
  const auto floats = [&](long count, bool fill) { return exact(count, random, fill); };
  const auto halves = [&](long count, bool fill) { return exact16(count, random, fill); };
  if (try_norm<float>(kernels, random, Element::kFloat32, floats) != 0) return 1;
  return try_norm<Bfloat16>(kernels, random, Element::kBfloat16, halves);
}

}  // namespace fuzz
}  // namespace bestof

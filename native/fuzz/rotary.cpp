#include "fuzz/rotary.h"

#include <cmath>
#include <cstdio>

#include "fuzz/company.h"

namespace bestof {
namespace fuzz {
namespace {

// A table that holds numbers for some of the axes.
HeadStrides random_table(const RotaryProblem& p, std::mt19937& random) {
  HeadStrides by = {};
  long next = p.size;
  const auto kept = [&](long extent) {
    if (pick(random, 0, 1) == 0) return 0L;
    const long stride = next;
    next *= extent;
    return stride;
  };
  by.token = kept(p.tokens);
  by.head = kept(p.heads);
  by.batch = kept(p.batch);
  return by;
}

RotaryProblem random_rotary(Element element, std::mt19937& random) {
  RotaryProblem p = {};
  const bool shares = pick(random, 0, 7) == 0;  // enough for several threads
  p.batch = pick(random, 1, 2);
  p.heads = pick(random, 1, 3);
  p.tokens = shares ? pick(random, 180, 190) : pick(random, 1, 5);
  p.size = 2 * (shares ? pick(random, 90, 100) : pick(random, 1, 70));
  // Tokens are parts of wider rows. The heads of a token lie side by side, or the tokens of a head.
  const long step = p.size + pick(random, 0, 3), all = p.heads * p.tokens * step;
  p.x = pick(random, 0, 1) == 0 ? HeadStrides{all, step, p.heads * step}
                                : HeadStrides{all, p.tokens * step, step};
  p.cos = random_table(p, random);
  p.sin = random_table(p, random);
  p.element = element;
  return p;
}

long offset(const HeadStrides& by, long batch, long head, long token) {
  return batch * by.batch + head * by.head + token * by.token;
}

long length(const RotaryProblem& p, const HeadStrides& by) {
  return offset(by, p.batch - 1, p.heads - 1, p.tokens - 1) + p.size;
}

// Compares one token. Both products round, and so does their sum; that of bfloat16 rounds once more
// (tests/numerics/test_rotary.py).
template <class T>
bool close(const T* x, const T* cos, const T* sin, const T* y, long size) {
  const double last = sizeof(T) < sizeof(float) ? std::ldexp(1.0, -8) : 0.0;
  for (long i = 0; i < size; ++i) {
    const long half = size / 2;
    const double partner = i < half ? -value_of(x[i + half]) : value_of(x[i - half]);
    const double one = value_of(x[i]) * value_of(cos[i]), other = partner * value_of(sin[i]);
    const double wanted = one + other;
    const double bound =
        std::ldexp(1.0001 * (std::fabs(one) + std::fabs(other) + std::fabs(wanted)), -24) + 1e-40;
    if (!(std::fabs(value_of(y[i]) - wanted) <= bound * (1 + last) + last * std::fabs(wanted)))
      return false;
  }
  return true;
}

template <class T, class Make>
int try_one(const Kernels& kernels, std::mt19937& random, Element element, const Make& make) {
  const RotaryProblem p = random_rotary(element, random);
  const auto x = make(length(p, p.x), true), cos = make(length(p, p.cos), true);
  const auto sin = make(length(p, p.sin), true);
  const auto y = make(p.batch * p.heads * p.tokens * p.size, false);
  kernels.rotate(p, {x.get(), cos.get(), sin.get(), y.get(), static_cast<int>(pick(random, 1, 2))});
  const T* row = y.get();
  for (long batch = 0; batch < p.batch; ++batch) {
    for (long head = 0; head < p.heads; ++head) {
      for (long token = 0; token < p.tokens; ++token, row += p.size) {
        const auto at = [&](const HeadStrides& by) { return offset(by, batch, head, token); };
        if (close<T>(x.get() + at(p.x), cos.get() + at(p.cos), sin.get() + at(p.sin), row, p.size))
          continue;
        std::fprintf(stderr, "%s: wrong rotary embedding of %ld x %ld x %ld x %ld, %s\n",
                     kernels.isa, p.batch, p.heads, p.tokens, p.size,
                     element == Element::kBfloat16 ? "bfloat16" : "float32");
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace

int try_rotary(const Kernels& kernels, std::mt19937& random) {
  const auto floats = [&](long count, bool fill) { return exact(count, random, fill); };
  const auto halves = [&](long count, bool fill) { return exact16(count, random, fill); };
  if (try_one<float>(kernels, random, Element::kFloat32, floats) != 0) return 1;
  return try_one<Bfloat16>(kernels, random, Element::kBfloat16, halves);
}

}  // namespace fuzz
}  // namespace bestof

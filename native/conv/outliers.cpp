// Looks for elements that stand out: see outliers.h.
#include "conv/outliers.h"

#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

constexpr long kSide = 4;
// A float's bits in units of 2^-15 of its exponent are its binary logarithm, to 0.09.
constexpr int kUnit = 15;
constexpr long long kFar = 8LL << kUnit;
constexpr unsigned kInfinity = 0x7F800000u;
// Reading so many floats takes about as long as waking a thread.
constexpr long kAlone = 1 << 15;

// Returns the sum of squares of n floats.
BESTOF_INLINE float energy_of(const float* x, long n) {
  Vec a = Vec{}, b = Vec{}, c = Vec{}, d = Vec{};
  long at = 0;
  for (; at + 4 * kLanes <= n; at += 4 * kLanes) {
    const Vec first = load(x + at), second = load(x + at + kLanes),
              third = load(x + at + 2 * kLanes), fourth = load(x + at + 3 * kLanes);
    a += first * first;
    b += second * second;
    c += third * third;
    d += fourth * fourth;
  }
  for (; at < n; at += kLanes) {
    const Vec rest = n - at >= kLanes ? load(x + at) : load_first(x + at, n - at);
    a += rest * rest;
  }
  a = (a + b) + (c + d);
  float sum = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) sum += a[lane];
  return sum;
}

BESTOF_INLINE unsigned bits_of(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits & 0x7FFFFFFFu;  // a NaN may have a sign
}

}  // namespace

bool has_outliers(const float* x, long images, long height, long width, long channels,
                  int threads) {
  const long down = divide_up(height, kSide), across = divide_up(width, kSide);
  const long line = width * channels, segment = kSide * channels;
  const bool shared = images * height * line > kAlone;
  unsigned most = 0;
  long long logarithms = 0;
  long filled = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (shared) reduction(max : most) \
    reduction(+ : logarithms, filled)
  for (long row = 0; row < images * down; ++row) {
    const long y = row % down * kSide, rows = smaller(kSide, height - y);
    const float* first = x + (row / down * height + y) * line;
    for (long block = 0; block < across; ++block) {
      const long begin = block * segment, count = smaller(segment, line - begin);
      float energy = 0.0f;
      for (long i = 0; i < rows; ++i) energy += energy_of(first + i * line + begin, count);
      const unsigned bits = bits_of(energy);
      most = bits > most ? bits : most;
      logarithms += bits >> (23 - kUnit);
      filled += bits != 0;
    }
  }
  if (filled == 0) return false;
  const long blocks = images * down * across;
  if (most >= kInfinity || 8 * filled < blocks || (filled == 1 && blocks > 1)) return true;
  return (static_cast<long long>(most >> (23 - kUnit)) - kFar) * filled > logarithms;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

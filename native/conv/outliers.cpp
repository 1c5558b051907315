// Looks for elements that stand out: see outliers.h.
#include "conv/outliers.h"

#include <omp.h>

#include "conv/operands.h"
#include "simd/bfloat16.h"
#include "simd/kernels.h"
#include "simd/lanes.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// A float's bits in units of 2^-15 of its exponent are its binary logarithm, to 0.09.
constexpr int kUnit = 15;
constexpr long long kFarInBatch = 8LL << kUnit, kFarInImage = 6LL << kUnit;
constexpr unsigned kInfinity = 0x7F800000u;
// Reading so many floats takes about as long as waking a thread.
constexpr long kAlone = 1 << 15;
constexpr long kTogether = 256;  // images whose blocks are summed up at once

// Returns the sum of squares of n elements of each of `rows` rows.
template <class Element>
BESTOF_INLINE float energy_of(const Element* x, long rows, long line, long n) {
  Vec a = Vec{}, b = Vec{}, c = Vec{}, d = Vec{};
  for (long row = 0; row < rows; ++row, x += line) {
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
  }
  return sum_lanes((a + b) + (c + d));
}

BESTOF_INLINE unsigned bits_of(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits & 0x7FFFFFFFu;  // a NaN may have a sign
}

// What is known of some blocks: the bits of the largest sum of squares, the sum of the logarithms
// of those that are not zero, and how many these are.
struct Blocks {
  unsigned most;
  long long logarithms;
  long filled;

  void add(const Blocks& other) {
    most = other.most > most ? other.most : most;
    logarithms += other.logarithms;
    filled += other.filled;
  }
  // Returns whether the largest of `count` blocks is beyond `far`, in units of the logarithm. The
  // mean leaves out so many blocks like it: 1 for those of an image, of which it may be a quarter.
  bool stand_out(long count, long long far, long left_out) const {
    if (filled == 0) return false;
    if (most >= kInfinity || 8 * filled < count || (filled == 1 && count > 1)) return true;
    const long long largest = most >> (23 - kUnit);
    return (largest - far) * (filled - left_out) > logarithms - largest * left_out;
  }
};

// Images of one size, cut in blocks of `side` x `side` pixels.
struct Grid {
  long height, width, channels;
  long side = larger(height, width) > 4 ? 4 : larger(height, width) > 2 ? 2 : 1;
  long down = divide_up(height, side), across = divide_up(width, side);
  long line = width * channels, segment = side * channels;

  // Returns what is known of the blocks of some rows of blocks of an image.
  template <class Element>
  BESTOF_INLINE Blocks look(const Element* image, long begin, long end) const {
    Blocks found = {};
    for (long y = begin * side; y < end * side; y += side) {
      const long rows = smaller(side, height - y);
      for (long at = 0; at < line; at += segment) {
        const long n = smaller(segment, line - at);
        const unsigned bits = bits_of(energy_of(image + y * line + at, rows, line, n));
        found.add({bits, bits >> (23 - kUnit), bits != 0});
      }
    }
    return found;
  }
};

template <class Element>
int find_outliers(const Element* x, long images, long height, long width, long channels,
                  int threads) {
  const Grid grid = {height, width, channels};
  const long size = height * grid.line, blocks = grid.down * grid.across;
  Blocks batch = {};
  bool in_image = false;
  omp_lock_t lock;  // a critical region would share a name with the other instruction sets
  omp_init_lock(&lock);
  for (long first = 0; first < images; first += kTogether) {
    const long count = smaller(kTogether, images - first), all = count * grid.down;
    Blocks found[kTogether];
    for (long image = 0; image < count; ++image) found[image] = {};
#pragma omp parallel num_threads(threads) if (count * size > kAlone)
    {
      const long parts = omp_get_num_threads(), part = omp_get_thread_num();
      const long end = part_begin(all, parts, part + 1);
      for (long row = part_begin(all, parts, part), next; row < end; row = next) {
        const long image = row / grid.down, top = image * grid.down;
        next = smaller(end, top + grid.down);
        const Blocks seen = grid.look(x + (first + image) * size, row - top, next - top);
        if (next - row == grid.down) {
          found[image] = seen;
        } else {  // other threads look at its other rows
          omp_set_lock(&lock);
          found[image].add(seen);
          omp_unset_lock(&lock);
        }
      }
    }
    for (long image = 0; image < count; ++image) {
      in_image = in_image || found[image].filled == 1 ||  // there is no usual block
                 found[image].stand_out(blocks, kFarInImage, 1);
      batch.add(found[image]);
    }
  }
  omp_destroy_lock(&lock);
  const bool in_batch = batch.stand_out(images * blocks, kFarInBatch, 0);
  return (in_image ? kInImage : 0) | (in_batch ? kInBatch : 0);
}

}  // namespace

int outliers(const void* x, Element element, long images, long height, long width, long channels,
             int threads) {
  if (element == Element::kFloat32)
    return find_outliers(floats(x), images, height, width, channels, threads);
  return find_outliers(halves(x), images, height, width, channels, threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

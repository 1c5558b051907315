// Maximum and average pooling, forward and backward. Memory is read once, and vectors hold
// channels.
#include "pool/pool.h"

#include "simd/bfloat16.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// The part of a window inside the image, [y0, y1) x [x0, x1), and the divisor of its
// average.
struct Window {
  long y0, y1, x0, x1;
  float divisor;
};

BESTOF_INLINE Window window_at(const PoolProblem& p, long oy, long ox) {
  const long y = oy * p.stride_y - p.pad_top, x = ox * p.stride_x - p.pad_left;
  Window w = {larger(y, 0), smaller(y + p.kernel_height, p.in_height), larger(x, 0),
              smaller(x + p.kernel_width, p.in_width), 1.0f};
  const long inside = (w.y1 - w.y0) * (w.x1 - w.x0);
  w.divisor =
      static_cast<float>(p.count_padding ? p.kernel_height * p.kernel_width : larger(inside, 1));
  return w;
}

template <class Element>
BESTOF_INLINE Vec read(const Element* from, long lanes) {
  return lanes == kLanes ? load(from) : load_first(from, lanes);
}

template <class Element>
BESTOF_INLINE void write(Element* to, Vec v, long lanes) {
  if (lanes == kLanes) {
    store(to, v);
  } else {
    store_first(to, v, lanes);
  }
}

// Channels of a result that are reduced in one go.
constexpr int kMany = 4;
constexpr long kTogether = kMany * kLanes;

// Writes kVectors vectors of channels of one result; `image` and `to` begin at the first of them. A
// single vector has `lanes` channels.
template <bool kMaximum, int kVectors, class Element>
BESTOF_INLINE void reduce(const PoolProblem& p, const Element* image, const Window& w, Element* to,
                          long lanes) {
  Vec found[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) found[i] = kMaximum ? broadcast(-__builtin_inff()) : Vec{};
  for (long y = w.y0; y < w.y1; ++y) {
    const Element* from = image + (y * p.in_width + w.x0) * p.channels;
    for (long x = w.x0; x < w.x1; ++x, from += p.channels) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const Vec v = kVectors > 1 ? load(from + i * kLanes) : read(from, lanes);
        if constexpr (kMaximum) {
          found[i] = largest(v, found[i]);
        } else {
          found[i] += v;
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const Vec v = kMaximum ? found[i] : found[i] / w.divisor;
    write(to + i * kLanes, v, kVectors > 1 ? kLanes : lanes);
  }
}

// Writes channels [begin, end) of one result.
template <bool kMaximum, class Element>
BESTOF_INLINE void reduce_channels(const PoolProblem& p, const Element* image, const Window& w,
                                   Element* to, long begin, long end) {
  long c = begin;
  for (; c + kTogether <= end; c += kTogether)
    reduce<kMaximum, kMany>(p, image + c, w, to + c, kLanes);
  for (; c < end; c += kLanes)
    reduce<kMaximum, 1>(p, image + c, w, to + c, smaller(end - c, kLanes));
}

// Writes the maximum of a window of kSize x kSize, as if no element were NaN: to look at each takes
// twice as long. Adds all elements to `seen`, which is NaN afterwards if one of them is.
template <int kVectors, int kSize, class Element>
BESTOF_INLINE void take_largest(const Element* corner, long line, long channels, Element* to,
                                Vec* seen) {
  Vec found[kVectors];
#pragma GCC unroll 3
  for (int y = 0; y < kSize; ++y) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const Element* from = corner + y * line + i * kLanes;
      Vec sum = load(from);
      if (y == 0) {
        found[i] = sum;
      } else {
        found[i] = sum > found[i] ? sum : found[i];
      }
#pragma GCC unroll 3
      for (int x = 1; x < kSize; ++x) {
        const Vec v = load(from + x * channels);
        found[i] = v > found[i] ? v : found[i];
        sum += v;
      }
      seen[i] += sum;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) store(to + i * kLanes, found[i]);
}

BESTOF_INLINE bool holds_nan(const Vec* seen) {
  float sum = 0.0f;
  for (int i = 0; i < kMany; ++i) {
    for (long l = 0; l < kLanes; ++l) sum += seen[i][l];
  }
  return sum != sum;
}

// A row of results, or some of its channels.
template <class Element>
struct PoolRow {
  const PoolProblem& p;
  const Element* image;
  Element* to;          // the first result of the row
  long oy, begin, end;  // the row in its image; channels

  Element* result(long ox) const { return to + ox * pixel_pitch(p); }

  template <bool kMaximum>
  void exactly() const {
    for (long ox = 0; ox < p.out_width; ++ox)
      reduce_channels<kMaximum>(p, image, window_at(p, oy, ox), result(ox), begin, end);
  }

  // Maxima of kSize x kSize. On two threads of a Zen 5, 3x3 by 2 takes half of the time of
  // `exactly`.
  template <int kSize>
  void largest_of() const {
    const long channels = p.channels, line = p.in_width * channels;
    Vec seen[kMany] = {};
    for (long ox = 0; ox < p.out_width; ++ox) {
      const Window w = window_at(p, oy, ox);
      Element* out = result(ox);
      long c = begin;
      if (w.y1 - w.y0 == kSize && w.x1 - w.x0 == kSize) {
        const Element* corner = image + w.y0 * line + w.x0 * channels;
        for (; c + kTogether <= end; c += kTogether)
          take_largest<kMany, kSize>(corner + c, line, channels, out + c, seen);
        for (; c + kLanes <= end; c += kLanes)
          take_largest<1, kSize>(corner + c, line, channels, out + c, seen);
      }
      reduce_channels<true>(p, image, w, out, c, end);
    }
    if (holds_nan(seen)) exactly<true>();
  }

  void run() const {
    if (!p.maximum) return exactly<false>();
    if (p.kernel_height == 3 && p.kernel_width == 3) return largest_of<3>();
    if (p.kernel_height == 2 && p.kernel_width == 2) return largest_of<2>();
    exactly<true>();
  }
};

// Few rows, as the one of a mean of all pixels, are cut into parts of their channels, so that every
// thread has work.
template <class Element>
void pool(const PoolProblem& p, const Element* x, Element* y, int threads) {
  const long rows = p.batch * p.out_height, blocks = divide_up(p.channels, kTogether);
  const long parts = rows < 4L * threads ? smaller(blocks, divide_up(4L * threads, rows)) : 1;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < rows * parts; ++item) {
    const long part = item % parts, row = item / parts;
    const PoolRow<Element> one = {
        p,
        x + row / p.out_height * p.in_height * p.in_width * p.channels,
        y + row * p.out_width * pixel_pitch(p),
        row % p.out_height,
        part_begin(blocks, parts, part) * kTogether,
        smaller(part_begin(blocks, parts, part + 1) * kTogether, p.channels)};
    one.run();
  }
}

}  // namespace

void pool_forward(const PoolProblem& p, const void* x, void* y, int threads) {
  if (p.element == Element::kFloat32) {
    pool(p, static_cast<const float*>(x), static_cast<float*>(y), threads);
  } else {
    pool(p, static_cast<const Bfloat16*>(x), static_cast<Bfloat16*>(y), threads);
  }
}

// Returns which element of its window is the maximum of each lane, counted in reading order: as in
// PyTorch, the last NaN, or the first of several equal ones.
BESTOF_INLINE VecInt place_of_maximum(const PoolProblem& p, const float* image, const Window& w,
                                      long c, long lanes) {
  Vec best = broadcast(-__builtin_inff());
  VecInt place = {};
  int index = 0;
  for (long y = w.y0; y < w.y1; ++y) {
    for (long x = w.x0; x < w.x1; ++x, ++index) {
      const Vec v = read(image + (y * p.in_width + x) * p.channels + c, lanes);
      const auto is_new = (v > best) | (v != v);
      best = is_new ? v : best;
      place = is_new ? VecInt{} + index : place;
    }
  }
  return place;
}

// Computes the gradient of x. Threads share images and vectors of channels, because windows
// overlap only within an image.
void pool_backward(const PoolProblem& p, const float* grad, const float* x, float* result,
                   int threads) {
  const long parts = divide_up(p.channels, kLanes), plane = p.in_height * p.in_width * p.channels;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < p.batch * parts; ++item) {
    const long n = item / parts, c = item % parts * kLanes, lanes = smaller(p.channels - c, kLanes);
    float* to = result + n * plane + c;
    for (long i = 0; i < p.in_height * p.in_width; ++i) write(to + i * p.channels, Vec{}, lanes);
    for (long oy = 0; oy < p.out_height; ++oy) {
      for (long ox = 0; ox < p.out_width; ++ox) {
        const Window w = window_at(p, oy, ox);
        const Vec g =
            read(grad + ((n * p.out_height + oy) * p.out_width + ox) * p.channels + c, lanes);
        VecInt place = {};
        if (p.maximum) place = place_of_maximum(p, x + n * plane, w, c, lanes);
        int index = 0;
        for (long iy = w.y0; iy < w.y1; ++iy) {
          for (long ix = w.x0; ix < w.x1; ++ix, ++index) {
            float* at = to + (iy * p.in_width + ix) * p.channels;
            const Vec share = p.maximum ? (place == index ? g : Vec{}) : g / w.divisor;
            write(at, read(at, lanes) + share, lanes);
          }
        }
      }
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

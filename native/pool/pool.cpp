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

template <class Element>
BESTOF_INLINE Vec reduce(const PoolProblem& p, const Element* image, const Window& w, long c,
                         long lanes) {
  Vec best = p.maximum ? broadcast(-__builtin_inff()) : Vec{};
  for (long y = w.y0; y < w.y1; ++y) {
    for (long x = w.x0; x < w.x1; ++x) {
      const Vec v = read(image + (y * p.in_width + x) * p.channels + c, lanes);
      if (p.maximum) {
        best = largest(v, best);
      } else {
        best += v;
      }
    }
  }
  return p.maximum ? best : best / w.divisor;
}

template <class Element>
void pool(const PoolProblem& p, const Element* x, Element* y, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long row = 0; row < p.batch * p.out_height; ++row) {
    const Element* image = x + row / p.out_height * p.in_height * p.in_width * p.channels;
    for (long ox = 0; ox < p.out_width; ++ox) {
      const Window w = window_at(p, row % p.out_height, ox);
      Element* to = y + (row * p.out_width + ox) * p.channels;
      for (long c = 0; c < p.channels; c += kLanes) {
        const long lanes = smaller(p.channels - c, kLanes);
        write(to + c, reduce(p, image, w, c, lanes), lanes);
      }
    }
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

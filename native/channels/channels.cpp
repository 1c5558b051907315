// Memory sets the pace. A shuffle in two groups, as ShuffleNetV2 has, weaves two runs in registers.
// A norm reads each run once, where it lies.
#include "channels/channels.h"

#include "conv/epilogue.h"
#include "simd/kernels.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Pixels whose runs are copied one after the other: what they write stays in L1.
constexpr long kBlock = 16;

// Elements that pay for one more thread.
constexpr long kShare = 16384;

BESTOF_INLINE void copy(const float* x, float* y, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, load(x + i));
  if (i < count) store_first(y + i, load_first(x + i, count - i), count - i);
}

BESTOF_INLINE void copy(const Bfloat16* x, Bfloat16* y, long count) {
  __builtin_memcpy(y, x, count * sizeof(Bfloat16));
}

// Lane l is lane (l + kHalf kLanes) / 2 of a, or of b where l is odd.
template <int kHalf>
BESTOF_INLINE Vec woven(Vec a, Vec b) {
  VecInt from;
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l)
    from[l] = (l + kHalf * static_cast<int>(kLanes)) / 2 + l % 2 * static_cast<int>(kLanes);
  return __builtin_shuffle(a, b, from);
}

// Sets y[2 i] = a[i] and y[2 i + 1] = b[i].
BESTOF_INLINE void weave(const float* a, const float* b, float* y, long count) {
  long i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec even = load(a + i), odd = load(b + i);
    store(y + 2 * i, woven<0>(even, odd));
    store(y + 2 * i + kLanes, woven<1>(even, odd));
  }
  if (i == count) return;
  const long rest = count - i, behind = larger(2 * rest - kLanes, 0);
  const Vec even = load_first(a + i, rest), odd = load_first(b + i, rest);
  store_first(y + 2 * i, woven<0>(even, odd), 2 * rest - behind);
  if (behind) store_first(y + 2 * i + kLanes, woven<1>(even, odd), behind);
}

BESTOF_INLINE void weave(const Bfloat16* a, const Bfloat16* b, Bfloat16* y, long count) {
  for (long i = 0; i < count; ++i) {
    y[2 * i] = a[i];
    y[2 * i + 1] = b[i];
  }
}

template <class Number>
BESTOF_INLINE const Number* run_at(const ChannelRun& run, const void* const* sources, long pixel) {
  return static_cast<const Number*>(sources[run.source]) + pixel * run.width + run.first;
}

// Gathers pixels [begin, end).
template <class Number>
void gather(const ChannelProblem& p, const void* const* sources, Number* y, long begin, long end) {
  const ChannelRun *a = p.runs, *b = p.runs + 1;
  if (p.step == 2 && p.run_count == 2 && a->count == b->count) {
    if (a->at > b->at) {
      a = p.runs + 1;
      b = p.runs;
    }
    for (long i = begin; i < end; ++i) {
      weave(run_at<Number>(*a, sources, i), run_at<Number>(*b, sources, i), y + i * p.channels,
            a->count);
    }
    return;
  }
  for (long r = 0; r < p.run_count; ++r) {
    const ChannelRun& run = p.runs[r];
    for (long i = begin; i < end; ++i) {
      const Number* from = run_at<Number>(run, sources, i);
      Number* to = y + i * p.channels + run.at;
      if (p.step == 1) {
        copy(from, to, run.count);
      } else {
        for (long c = 0; c < run.count; ++c) to[c * p.step] = from[c];
      }
    }
  }
}

// The same channels of some pixels: of a source, and of the result. residual may be null.
template <class Number>
struct Pixels {
  const Number *x, *residual;
  Number* y;
  long width, channels, count;  // elements from pixel to pixel of x, and of y; pixels
};

// Norms kVectors vectors of channels, from channel c on.
template <Activation kActivation, int kVectors, class Number>
BESTOF_INLINE void norm_vectors(const Pixels<Number>& pixels, const float* scale,
                                const float* shift, float slope, long c) {
  Vec factor[kVectors], term[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    factor[j] = load(scale + c + j * kLanes);
    term[j] = load(shift + c + j * kLanes);
  }
  for (long i = 0; i < pixels.count; ++i) {
    const Number* x = pixels.x + i * pixels.width + c;
    const long at = i * pixels.channels + c;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      Vec v = load(x + j * kLanes) * factor[j] + term[j];
      if (pixels.residual) v += load(pixels.residual + at + j * kLanes);
      store(pixels.y + at + j * kLanes, activate_inline(v, kActivation, slope));
    }
  }
}

// Norms channels [0, count). Where there are more than a vector of them, the last vector overlaps
// the one before: without masks, the lanes of a tail would pass one by one.
template <Activation kActivation, class Number>
void norm_run(const Pixels<Number>& pixels, const float* scale, const float* shift, float slope,
              long count) {
  long c = 0;
  for (; c + 4 * kLanes <= count; c += 4 * kLanes)
    norm_vectors<kActivation, 4>(pixels, scale, shift, slope, c);
  if (c + 2 * kLanes <= count) {
    norm_vectors<kActivation, 2>(pixels, scale, shift, slope, c);
    c += 2 * kLanes;
  }
  if (c + kLanes <= count) {
    norm_vectors<kActivation, 1>(pixels, scale, shift, slope, c);
    c += kLanes;
  }
  if (c == count) return;
  if (count >= kLanes)
    return norm_vectors<kActivation, 1>(pixels, scale, shift, slope, count - kLanes);
  const Vec factor = load_first(scale, count), term = load_first(shift, count);
  for (long i = 0; i < pixels.count; ++i) {
    const long at = i * pixels.channels;
    Vec v = load_first(pixels.x + i * pixels.width, count) * factor + term;
    if (pixels.residual) v += load_first(pixels.residual + at, count);
    store_first(pixels.y + at, activate_inline(v, kActivation, slope), count);
  }
}

// Norms pixels [begin, end).
template <Activation kActivation, class Number>
void norm_pixels(const ChannelProblem& p, const void* const* sources, const Number* residual,
                 Number* y, long begin, long end) {
  for (long r = 0; r < p.run_count; ++r) {
    const ChannelRun& run = p.runs[r];
    const long at = begin * p.channels + run.at;
    const Pixels<Number> pixels = {run_at<Number>(run, sources, begin),
                                   residual ? residual + at : nullptr,
                                   y + at,
                                   run.width,
                                   p.channels,
                                   end - begin};
    norm_run<kActivation>(pixels, p.norm.scale + run.at, p.norm.shift + run.at, p.norm.slope,
                          run.count);
  }
}

template <class Number>
void norm(const ChannelProblem& p, const void* const* sources, const Number* residual, Number* y,
          long begin, long end) {
  switch (p.norm.activation) {
#define BESTOF_ACTIVATION(enumerator, name, falls, result) \
  case Activation::enumerator:                             \
    return norm_pixels<Activation::enumerator>(p, sources, residual, y, begin, end);
#include "conv/activations.inc"
#undef BESTOF_ACTIVATION
  }
}

template <class Number>
void gather_all(const ChannelProblem& p, const void* const* sources, const void* residual, void* y,
                int threads) {
  const long team = smaller(threads, divide_up(p.pixels * p.channels, kShare));
  // Each thread has as many pixels as the others: of 49, blocks of 16 gave one thread 32.
  const long blocks = round_up(divide_up(p.pixels, kBlock), team);
#pragma omp parallel for schedule(static) num_threads(static_cast<int>(team))
  for (long block = 0; block < blocks; ++block) {
    const long begin = part_begin(p.pixels, blocks, block);
    const long end = part_begin(p.pixels, blocks, block + 1);
    if (p.norm.scale) {
      norm(p, sources, static_cast<const Number*>(residual), static_cast<Number*>(y), begin, end);
    } else {
      gather(p, sources, static_cast<Number*>(y), begin, end);
    }
  }
}

}  // namespace

void gather_channels(const ChannelProblem& p, const void* const* sources, const void* residual,
                     void* y, int threads) {
  if (p.element == Element::kFloat32) {
    gather_all<float>(p, sources, residual, y, threads);
  } else {
    gather_all<Bfloat16>(p, sources, residual, y, threads);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

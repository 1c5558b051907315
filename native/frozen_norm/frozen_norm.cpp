// Batch norm with fixed statistics. Both passes are bound by memory: they read each operand once
// and write the result once. Results of float32 that no cache can keep bypass the caches.
#include "frozen_norm/frozen_norm.h"

#include <omp.h>

#include "simd/bfloat16.h"
#include "simd/kernels.h"
#include "simd/stream.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Elements that one thread takes at a time.
constexpr long kPart = 16384;

// Below it, starting threads takes longer than they save.
constexpr long kFewest = 4 * kPart;

template <class Value>
struct Forward {
  const Value* x;
  const float *scale, *shift;

  BESTOF_INLINE Vec at(long i) const { return load(x + i); }
  BESTOF_INLINE Vec first(long i, long n) const { return load_first(x + i, n); }
  BESTOF_INLINE Vec result(Vec value, Vec factor, Vec term) const { return value * factor + term; }
};

template <class Value>
struct ForwardRelu : Forward<Value> {
  BESTOF_INLINE Vec result(Vec value, Vec factor, Vec term) const {
    return at_least(value * factor + term, Vec{});  // keeps NaN, as PyTorch does
  }
};

// `shift` is not read: its pointer is that of `scale`.
template <class Value>
struct Backward {
  const Value* gradient;
  const float *scale, *shift;

  BESTOF_INLINE Vec at(long i) const { return load(gradient + i); }
  BESTOF_INLINE Vec first(long i, long n) const { return load_first(gradient + i, n); }
  BESTOF_INLINE Vec result(Vec value, Vec factor, Vec) const { return value * factor; }
};

// As in PyTorch, the mask comes before the product: an infinite scale makes NaN of a 0.
template <class Value>
struct BackwardRelu : Backward<Value> {
  const Value* y;

  BESTOF_INLINE Vec masked(Vec value, Vec result) const { return result <= Vec{} ? Vec{} : value; }
  BESTOF_INLINE Vec at(long i) const { return masked(load(this->gradient + i), load(y + i)); }
  BESTOF_INLINE Vec first(long i, long n) const {
    return masked(load_first(this->gradient + i, n), load_first(y + i, n));
  }
};

template <bool kStream, class Value>
BESTOF_INLINE void finish(Value* out, Vec v) {
  if constexpr (kStream) {
    stream(out, v);
  } else {
    store(out, v);
  }
}

// Computes elements [begin, end) of one channel.
template <bool kStream, class Pass, class Value>
inline void channel(const Pass& pass, long begin, long end, long c, Value* out) {
  const Vec factor = broadcast(pass.scale[c]), term = broadcast(pass.shift[c]);
  long i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    finish<kStream>(out + i, pass.result(pass.at(i), factor, term));
  }
  if (i < end) {
    const long n = end - i;
    store_first(out + i, pass.result(pass.first(i, n), factor, term), n);
  }
}

// Computes all channels of the pixel that begins at element `begin`.
template <bool kStream, class Pass, class Value>
inline void pixel(const Pass& pass, long begin, long channels, Value* out) {
  long c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    const Vec factor = load(pass.scale + c), term = load(pass.shift + c);
    finish<kStream>(out + begin + c, pass.result(pass.at(begin + c), factor, term));
  }
  if (c < channels) {
    const long n = channels - c, i = begin + c;
    const Vec factor = load_first(pass.scale + c, n), term = load_first(pass.shift + c, n);
    store_first(out + i, pass.result(pass.first(i, n), factor, term), n);
  }
}

template <bool kStream, class Pass, class Value>
inline void run_parts(const FrozenNormProblem& p, const Pass& pass, Value* out, int threads) {
  const bool pixels = p.inner == 1;
  // A part is a number of pixels, or a piece of a plane.
  const long step = pixels ? larger(kPart / p.channels, 1) : smaller(p.inner, kPart);
  const long pieces = divide_up(pixels ? p.outer : p.inner, step);
  const long parts = pixels ? pieces : pieces * p.outer * p.channels;
  const bool few = p.outer * p.channels * p.inner < kFewest;
#pragma omp parallel num_threads(threads) if (!few)
  {
#pragma omp for schedule(static) nowait
    for (long part = 0; part < parts; ++part) {
      const long begin = part % pieces * step;
      if (pixels) {
        for (long row = begin; row < smaller(p.outer, begin + step); ++row) {
          pixel<kStream>(pass, row * p.channels, p.channels, out);
        }
      } else {
        const long plane = part / pieces, end = smaller(p.inner, begin + step);
        channel<kStream>(pass, plane * p.inner + begin, plane * p.inner + end, plane % p.channels,
                         out);
      }
    }
    end_stream();
  }
}

template <class Pass>
inline void run(const FrozenNormProblem& p, const Pass& pass, long operands, float* out,
                int threads) {
  const long line = p.inner == 1 ? p.channels : p.inner;
  const bool whole = line % kLanes == 0 && streamable(out);
  if (whole && beyond_caches(operands * p.outer * p.channels * p.inner)) {
    run_parts<true>(p, pass, out, threads);
  } else {
    run_parts<false>(p, pass, out, threads);
  }
}

// Results of bfloat16 are half as large, and always go through the caches.
template <class Pass>
inline void run(const FrozenNormProblem& p, const Pass& pass, long, Bfloat16* out, int threads) {
  run_parts<false>(p, pass, out, threads);
}

template <class Value>
void forward(const FrozenNormProblem& p, const Value* x, const float* scale, const float* shift,
             Value* y, int threads) {
  if (p.relu) return run(p, ForwardRelu<Value>{{x, scale, shift}}, 2, y, threads);
  run(p, Forward<Value>{x, scale, shift}, 2, y, threads);
}

template <class Value>
void backward(const FrozenNormProblem& p, const Value* gradient, const Value* y, const float* scale,
              Value* slope, int threads) {
  if (p.relu) return run(p, BackwardRelu<Value>{{gradient, scale, scale}, y}, 3, slope, threads);
  run(p, Backward<Value>{gradient, scale, scale}, 2, slope, threads);
}

}  // namespace

void frozen_norm_forward(const FrozenNormProblem& p, const void* x, const float* scale,
                         const float* shift, void* y, int threads) {
  if (p.element == Element::kBfloat16)
    return forward(p, static_cast<const Bfloat16*>(x), scale, shift, static_cast<Bfloat16*>(y),
                   threads);
  forward(p, static_cast<const float*>(x), scale, shift, static_cast<float*>(y), threads);
}

void frozen_norm_backward(const FrozenNormProblem& p, const void* gradient, const void* y,
                          const float* scale, void* slope, int threads) {
  if (p.element == Element::kBfloat16)
    return backward(p, static_cast<const Bfloat16*>(gradient), static_cast<const Bfloat16*>(y),
                    scale, static_cast<Bfloat16*>(slope), threads);
  backward(p, static_cast<const float*>(gradient), static_cast<const float*>(y), scale,
           static_cast<float*>(slope), threads);
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

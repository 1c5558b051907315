// One image at a time, so that x is read a second time from a cache. Threads share the pixels, then
// the rows of both small matrices, then the pixels again.
#include "excitation/excitation.h"

#include <omp.h>

#include "conv/epilogue.h"
#include "simd/kernels.h"
#include "simd/turn.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Elements that pay for one more thread.
constexpr long kShare = 16384;

// Pixels whose sum is one chain, so that means of large images are as exact as those of small ones.
constexpr long kChain = 64;

BESTOF_INLINE Vec read(const float* from, long lanes) {
  return lanes == kLanes ? load(from) : load_first(from, lanes);
}

BESTOF_INLINE void write(float* to, Vec v, long lanes) {
  if (lanes == kLanes) {
    store(to, v);
  } else {
    store_first(to, v, lanes);
  }
}

// Sets sums[c] to the sum of channel c of some pixels.
void sum_pixels(const float* x, long pixels, long channels, float* sums) {
  for (long c = 0; c < channels; ++c) sums[c] = 0.0f;
  for (long begin = 0; begin < pixels; begin += kChain) {
    const float* block = x + begin * channels;
    const long end = smaller(pixels - begin, kChain);
    long c = 0;
    for (; c + 4 * kLanes <= channels; c += 4 * kLanes) {
      Vec sum[4] = {};
      for (long i = 0; i < end; ++i) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sum[j] += load(block + i * channels + c + j * kLanes);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        store(sums + c + j * kLanes, load(sums + c + j * kLanes) + sum[j]);
    }
    for (; c < channels; c += kLanes) {
      const long lanes = smaller(channels - c, kLanes);
      Vec sum = {};
      for (long i = 0; i < end; ++i) sum += read(block + i * channels + c, lanes);
      write(sums + c, read(sums + c, lanes) + sum, lanes);
    }
  }
}

BESTOF_INLINE Vec gate_of(Vec v, bool hard) {
  if (hard) return at_most(at_least(v + 3.0f, Vec{}), broadcast(6.0f)) * (1.0f / 6.0f);
  return logistic(v);
}

// Returns bias + matrix * by for kLanes rows from `first` on; lanes behind `lanes` are undefined.
// The sums of a row lie in a vector until all rows are turned: to add the lanes of each row took
// longer than its products.
inline Vec products(const float* matrix, const float* bias, const float* by, long width, long first,
                    long lanes) {
  constexpr int kTogether = kLanes < 8 ? kLanes : 8;
  Vec sum[kLanes];
#pragma GCC unroll 2
  for (int begin = 0; begin < kLanes; begin += kTogether) {
    const float* row[kTogether];
    Vec part[kTogether];
#pragma GCC unroll 8
    for (int l = 0; l < kTogether; ++l) {
      row[l] = matrix + (first + smaller(begin + l, lanes - 1)) * width;
      part[l] = Vec{};
    }
    long i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const Vec x = load(by + i);
#pragma GCC unroll 8
      for (int l = 0; l < kTogether; ++l) part[l] += load(row[l] + i) * x;
    }
    if (i < width) {
      const Vec x = load_first(by + i, width - i);
#pragma GCC unroll 8
      for (int l = 0; l < kTogether; ++l) part[l] += load_first(row[l] + i, width - i) * x;
    }
#pragma GCC unroll 8
    for (int l = 0; l < kTogether; ++l) sum[begin + l] = part[l];
  }
  turn(sum);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int l = 0; l < half; ++l) sum[l] += sum[l + half];
  }
  return bias ? sum[0] + read(bias + first, lanes) : sum[0];
}

template <bool kBounded, bool kResidual>
void scale_pixels(const ExcitationProblem& p, const float* x, const float* residual,
                  const float* gate, float* y, long begin, long end) {
  const Bounds bounds(p.last);
  for (long i = begin; i < end; ++i) {
    for (long c = 0; c < p.channels; c += kLanes) {
      const long lanes = smaller(p.channels - c, kLanes), at = i * p.channels + c;
      Vec v = read(x + at, lanes) * read(gate + c, lanes);
      if constexpr (kResidual) v += read(residual + at, lanes);
      write(y + at, kBounded ? bounds(v) : activate_seldom(v, p.last, p.last_slope), lanes);
    }
  }
}

}  // namespace

void excite(const ExcitationProblem& p, const ExcitationCall& call) {
  const long plane = p.pixels * p.channels, width = round_up(p.channels, 16);
  const int most = static_cast<int>(smaller(call.threads, divide_up(plane, kShare)));
  float *sums = call.scratch, *gate = sums + call.threads * width, *hidden = gate + width;
  const auto scale = is_bounded(p.last)
                         ? (call.residual ? scale_pixels<true, true> : scale_pixels<true, false>)
                         : (call.residual ? scale_pixels<false, true> : scale_pixels<false, false>);
#pragma omp parallel num_threads(most)
  {
    const long team = omp_get_num_threads(), me = omp_get_thread_num();
    const long begin = part_begin(p.pixels, team, me), end = part_begin(p.pixels, team, me + 1);
    const auto each_vector = [&](long count, auto body) {
      const long vectors = divide_up(count, kLanes);
      for (long v = part_begin(vectors, team, me); v < part_begin(vectors, team, me + 1); ++v)
        body(v * kLanes, smaller(count - v * kLanes, kLanes));
    };
    for (long n = 0; n < p.batch; ++n) {
      const float *x = call.x + n * plane,
                  *residual = call.residual ? call.residual + n * plane : nullptr;
      sum_pixels(x + begin * p.channels, end - begin, p.channels, sums + me * width);
#pragma omp barrier
      each_vector(p.channels, [&](long c, long lanes) {
        Vec sum = {};
        for (long t = 0; t < team; ++t) sum += read(sums + t * width + c, lanes);
        write(gate + c, sum / static_cast<float>(p.pixels), lanes);
      });
#pragma omp barrier
      each_vector(p.hidden, [&](long h, long lanes) {
        const Vec v = products(call.squeeze, call.squeeze_bias, gate, p.channels, h, lanes);
        write(hidden + h, activate(v, p.inner, p.inner_slope), lanes);
      });
#pragma omp barrier
      each_vector(p.channels, [&](long c, long lanes) {
        const Vec v = products(call.excite, call.excite_bias, hidden, p.hidden, c, lanes);
        write(gate + c, gate_of(v, p.hard), lanes);
      });
#pragma omp barrier
      scale(p, x, residual, gate, call.y + n * plane, begin, end);
    }
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

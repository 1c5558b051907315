// Memory sets the pace. A shuffle in two groups, as ShuffleNetV2 has, weaves two runs in registers.
#include "channels/channels.h"

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

template <class Number>
void gather_all(const ChannelProblem& p, const void* const* sources, void* y, int threads) {
  const int team = static_cast<int>(smaller(threads, divide_up(p.pixels * p.channels, kShare)));
  const long blocks = divide_up(p.pixels, kBlock);
#pragma omp parallel for schedule(static) num_threads(team)
  for (long block = 0; block < blocks; ++block) {
    gather(p, sources, static_cast<Number*>(y), block * kBlock,
           smaller((block + 1) * kBlock, p.pixels));
  }
}

}  // namespace

void gather_channels(const ChannelProblem& p, const void* const* sources, void* y, int threads) {
  if (p.element == Element::kFloat32) {
    gather_all<float>(p, sources, y, threads);
  } else {
    gather_all<Bfloat16>(p, sources, y, threads);
  }
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

// A few rows times all weights. Weights are read once, in the order in which they lie:
// [output][input]. With so few rows, each weight is used so little that memory sets the
// pace.
#pragma once
#include <omp.h>

#include "conv/algorithm.h"
#include "conv/epilogue.h"
#include "conv/operands.h"
#include "simd/dot_block.h"

namespace bestof {
namespace BESTOF_TARGET {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

// Outputs whose weights are read side by side. Their sums, a vector of each and one of x stay in
// registers. For one row, eight streams from memory were the fastest of 1, 2, 4, 8, 12 and 16: 13.3
// ms, and 16.6 with one.
constexpr int outputs_at_once(int rows) {
  return (kRegisters - 1) / (rows + 1) < 8 ? (kRegisters - 1) / (rows + 1) : 8;
}

// How far ahead each stream is prefetched, in bytes: 256 and 512 are alike, 2048 takes 1.1 to 1.2
// times as long. Short streams end before a hardware prefetcher has found them. For them, the same
// place of the next outputs is prefetched: 512 to 1000 features take 0.7 of the time.
constexpr long kAheadBytes = 256;
constexpr long kShortBytes = 4096;

BESTOF_INLINE float sum_of_lanes(Vec v) {
  float part[kLanes];
  store(part, v);
  for (long half = kLanes / 2; half > 0; half /= 2) {
    for (long i = 0; i < half; ++i) part[i] += part[i + half];
  }
  return part[0];
}

// Results [0, K) of R rows, from `channel` on.
template <int R, int K, class Weight>
BESTOF_INLINE void multiply_outputs(const float* x, const Weight* w, long inputs, long outputs,
                                    long channel, const Call& call) {
  Vec sum[R][K];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) sum[i][k] = Vec{};
  }
  constexpr long kSize = sizeof(Weight);
  const long ahead = inputs * kSize <= kShortBytes ? K * inputs : kAheadBytes / kSize;
  add_dot_block(x, inputs, w, inputs, inputs, sum, [&](long c) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) __builtin_prefetch(w + k * inputs + c + ahead, 0, 3);
  });
  for (int i = 0; i < R; ++i) {
    float results[K];
    for (int k = 0; k < K; ++k) results[k] = sum_of_lanes(sum[i][k]);
    float* out = floats(call.result) + i * outputs + channel;
    for (long k = 0; k < K; k += kLanes) {
      const long n = smaller(K - k, kLanes);
      finish(load_first(results + k, n), out + k, n, channel + k, call.epilogue,
             floats(call.result));
    }
  }
}

template <int R, class Weight>
inline void multiply_rows(const Problem& p, const Weight* w, const Call& call) {
  constexpr int kOutputs = outputs_at_once(R);
  const long inputs = p.in_channels, outputs = p.out_channels;
  // Threads ask for chunks of a few blocks, because cores do not get equal shares of the memory
  // bandwidth.
  const long share = outputs / (8L * kOutputs * call.threads);
  const long chunk = kOutputs * smaller(larger(share, 1), 8);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (long first = 0; first < outputs; first += chunk) {
    const long last = smaller(first + chunk, outputs);
    long k = first;
    for (; k + kOutputs <= last; k += kOutputs) {
      multiply_outputs<R, kOutputs>(floats(call.first), w + k * inputs, inputs, outputs, k, call);
    }
    for (; k < last; ++k)
      multiply_outputs<R, 1>(floats(call.first), w + k * inputs, inputs, outputs, k, call);
  }
}

template <class Weight>
inline void run_few_rows(const Problem& p, const Weight* w, const Call& call) {
  constexpr void (*kRun[kMostRows])(const Problem&, const Weight*, const Call&) = {
      multiply_rows<1, Weight>, multiply_rows<2, Weight>, multiply_rows<3, Weight>,
      multiply_rows<4, Weight>, multiply_rows<5, Weight>, multiply_rows<6, Weight>,
      multiply_rows<7, Weight>, multiply_rows<8, Weight>};
  const long rows = p.batch * p.in_height * p.in_width;
  if (rows == 0) return;
  kRun[rows - 1](p, w, call);
}

inline long no_scratch(const Problem&, int) {
  return 0;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

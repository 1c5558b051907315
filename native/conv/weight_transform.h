// The transform of weights for Winograd tiles, U = GY g GX^T, in double before it is rounded.
#pragma once
#include "conv/weights.h"
#include "conv/winograd_matrices.h"

namespace bestof {
namespace BESTOF_TARGET {

// Two registers of doubles. No template takes it as an argument, because a type argument loses its
// alignment.
typedef double Wide __attribute__((vector_size(2 * BESTOF_VECTOR_BYTES), aligned(4)));

BESTOF_INLINE Wide wide(const float* from) {
  return __builtin_convertvector(load(from), Wide);
}

BESTOF_INLINE void store_rounded(float* to, Wide v) {
  store(to, __builtin_convertvector(v, Vec));
}

template <int N>
BESTOF_INLINE Wide wide_dot(const double* coefficients, const Wide* in) {
  Wide sum = coefficients[0] * in[0];
#pragma GCC unroll 8
  for (int k = 1; k < N; ++k) sum += coefficients[k] * in[k];
  return sum;
}

// Calls transform(taps, panel, input, k) for each vector of outputs, the k-th and following of a
// panel. Its taps lie `kStep` floats apart. kBlock: the inputs whose weights are gathered at a
// time, so that they stay in L1.
template <int kTaps, int kTapsX, long kBlock, class Transform>
inline void transform_panels(const WeightView& view, int threads, const Transform& transform) {
  constexpr long kStep = kBlock * kPanel;
  const long panels = divide_up(view.outputs, kPanel), parts = divide_up(view.inputs, kBlock);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < panels * parts; ++item) {
    const long panel = item / parts, begin = item % parts * kBlock;
    float gathered[kTaps * kStep];
    WeightView part = view;
    part.inputs = smaller(view.inputs - begin, kBlock);
    for (int tap = 0; tap < kTaps; ++tap) {
      const float* from = view.data + begin * view.input_stride + tap / kTapsX * view.y_stride;
      pack_panel(part, from + tap % kTapsX * view.x_stride, panel * kPanel, gathered + tap * kStep);
    }
    for (long c = 0; c < part.inputs; ++c) {
      for (long k = 0; k < kPanel; k += kLanes)
        transform(gathered + c * kPanel + k, panel, begin + c, k);
    }
  }
}

// Packed as [frequency][panel][input][kPanel].
template <class Y, class X>
inline void transform_axes_weights(const WeightView& view, float* u, int threads) {
  constexpr long kBlock = Y::kTaps * X::kTaps > 9 ? 8 : 16, kStep = kBlock * kPanel;
  const long step = divide_up(view.outputs, kPanel) * view.inputs * kPanel;
  transform_panels<Y::kTaps * X::kTaps, X::kTaps, kBlock>(
      view, threads, [&](const float* taps, long panel, long input, long k) {
        Wide half[Y::kAlpha][X::kTaps];
#pragma GCC unroll 8
        for (int s = 0; s < X::kTaps; ++s) {
          Wide g[Y::kTaps];
#pragma GCC unroll 8
          for (int r = 0; r < Y::kTaps; ++r) g[r] = wide(taps + (r * X::kTaps + s) * kStep);
#pragma GCC unroll 10
          for (int i = 0; i < Y::kAlpha; ++i) half[i][s] = wide_dot<Y::kTaps>(Y::kMatrices.g[i], g);
        }
        // In a register: `step` itself would be read again after each store, which may alias it.
        const long distance = step;
        float* to = u + (panel * view.inputs + input) * kPanel + k;
#pragma GCC unroll 10
        for (int i = 0; i < Y::kAlpha; ++i) {
#pragma GCC unroll 10
          for (int j = 0; j < X::kAlpha; ++j) {
            store_rounded(to + (i * X::kAlpha + j) * distance,
                          wide_dot<X::kTaps>(X::kMatrices.g[j], half[i]));
          }
        }
      });
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

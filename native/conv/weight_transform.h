// The transform of weights for Winograd tiles, U = GY g GX^T, in double before it is rounded.
#pragma once
#include "conv/weights.h"
#include "conv/winograd_matrices.h"

namespace bestof {
namespace BESTOF_TARGET {

// Two registers of doubles. No template takes it as an argument, because a type argument loses its
// alignment.
typedef double Wide __attribute__((vector_size(2 * BESTOF_VECTOR_BYTES), aligned(4)));

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

// U = GY g GX^T of a vector of outputs, in double. tap(r, s) returns a tap, and at(i, j) is where
// the frequency (i, j) is stored. A kernel may have fewer taps than F has, and then fewer
// frequencies.
template <class Y, class X, int kTapsY = Y::kTaps, int kTapsX = X::kTaps, int kRows = Y::kAlpha,
          int kColumns = X::kAlpha, class Tap, class At>
BESTOF_INLINE void transform_taps(const Tap& tap, const At& at) {
  Wide half[kRows][kTapsX];
#pragma GCC unroll 8
  for (int s = 0; s < kTapsX; ++s) {
    Wide g[kTapsY];
#pragma GCC unroll 8
    for (int r = 0; r < kTapsY; ++r) g[r] = __builtin_convertvector(tap(r, s), Wide);
#pragma GCC unroll 10
    for (int i = 0; i < kRows; ++i) half[i][s] = wide_dot<kTapsY>(Y::kMatrices.g[i], g);
  }
#pragma GCC unroll 10
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 10
    for (int j = 0; j < kColumns; ++j)
      store_rounded(at(i, j), wide_dot<kTapsX>(X::kMatrices.g[j], half[i]));
  }
}

// Part of the rows of U: [row][input of the part][kPanel]. The rows of U themselves lie a power of
// two apart for many layers, so vectors that were stored to all of them would fall into the same
// sets of the caches and be written to memory twice (512 channels, 4x4 taps of stride 2: 55 ms in
// place of 26). Rows of a part are a cache line longer than needed, for the same reason.
template <long kRows, long kInputs>
struct SpectrumPart {
  static constexpr long kStep = kInputs * kPanel + 64 / sizeof(float);
  alignas(64) float rows[kRows * kStep];

  // Row `row` of input `input` of the part.
  BESTOF_INLINE float* at(long row, long input) { return rows + row * kStep + input * kPanel; }
  // Copies `inputs` of a row to U.
  BESTOF_INLINE void copy(long row, long inputs, float* to) const {
    for (long i = 0; i < inputs * kPanel; i += kLanes) store(to + i, load(rows + row * kStep + i));
  }
};

// Calls transform(taps, part, c, k) for each vector of outputs, the k-th and following of a panel,
// and each input c of a part. Its taps lie `kBlock` * kPanel floats apart. place(row, panel) is
// where a row of U begins for a panel. kBlock: the inputs of a part, so that their weights stay in
// L1.
template <int kTaps, int kTapsX, long kRows, long kBlock, class Element, class Transform,
          class Place>
inline void transform_panels(const Weights<Element>& view, int threads, const Transform& transform,
                             const Place& place) {
  constexpr long kStep = kBlock * kPanel;
  const long panels = divide_up(view.outputs, kPanel), parts = divide_up(view.inputs, kBlock);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < panels * parts; ++item) {
    const long panel = item / parts, begin = item % parts * kBlock;
    float gathered[kTaps * kStep];
    SpectrumPart<kRows, kBlock> spectrum;
    Weights<Element> part = view;
    part.inputs = smaller(view.inputs - begin, kBlock);
    for (int tap = 0; tap < kTaps; ++tap) {
      const Element* from = view.data + begin * view.input_stride + tap / kTapsX * view.y_stride;
      pack_panel(part, from + tap % kTapsX * view.x_stride, panel * kPanel, gathered + tap * kStep);
    }
    for (long c = 0; c < part.inputs; ++c) {
      for (long k = 0; k < kPanel; k += kLanes)
        transform(gathered + c * kPanel + k, spectrum, c, k);
    }
    for (long row = 0; row < kRows; ++row)
      spectrum.copy(row, part.inputs, place(row, panel) + begin * kPanel);
  }
}

// Packed as [frequency][panel][input][kPanel].
template <class Y, class X, class Element>
inline void transform_axes_weights(const Weights<Element>& view, float* u, int threads) {
  constexpr int kTaps = Y::kTaps * X::kTaps, kRows = Y::kAlpha * X::kAlpha;
  constexpr long kBlock = kTaps > 9 ? 8 : 16, kStep = kBlock * kPanel;
  const long panel_floats = view.inputs * kPanel,
             step = divide_up(view.outputs, kPanel) * panel_floats;
  transform_panels<kTaps, X::kTaps, kRows, kBlock>(
      view, threads,
      [](const float* taps, SpectrumPart<kRows, kBlock>& part, long input, long k) {
        transform_taps<Y, X>([=](int r, int s) { return load(taps + (r * X::kTaps + s) * kStep); },
                             [&](int i, int j) { return part.at(i * X::kAlpha + j, input) + k; });
      },
      [=](long row, long panel) { return u + row * step + panel * panel_floats; });
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

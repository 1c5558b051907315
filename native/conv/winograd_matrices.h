// Generates the matrices of Winograd's F(M, R) at compile time by Toom-Cook, and multiplies by
// them.
#pragma once
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_TARGET {

// Y = AT [(G g G^T) * (BT d B)] A. The finite points are 0 and pairs p, -p; infinity is the last.
// The two rows of a pair differ in the sign of every other element only, so a product computes even
// and odd part once for both.
template <int M, int R>
struct Matrices {
  double at[M][M + R - 1] = {};
  double g[M + R - 1][R] = {};
  double bt[M + R - 1][M + R - 1] = {};
};

// The pairs beside 0, by the number of points, M + R - 3. +-1/sqrt2, +-sqrt2 halve the error of
// +-1, +-2 for F(4, 3) (rms 1.3e-6 instead of 2.6e-6 on 256 channels). The eight come from a search
// for the smallest rms of the products: 2.6e-6 for F(4, 7) on 192 channels; +-1, +-2, +-1/2, +-4
// have 9.3e-6.
constexpr double kPairs2[] = {1.0};
constexpr double kPairs4[] = {0.70710678118654752440, 1.41421356237309504880};
constexpr double kPairs6[] = {1.0, 2.0, 0.5};
constexpr double kPairs8[] = {5.0 / 12, 12.0 / 5, 4.0 / 5, 5.0 / 4};

template <int Points>
constexpr double pair_point(int i) {
  static_assert(Points == 2 || Points == 4 || Points == 6 || Points == 8,
                "no points for this F(M, R)");
  return Points == 2   ? kPairs2[i]
         : Points == 4 ? kPairs4[i]
         : Points == 6 ? kPairs6[i]
                       : kPairs8[i];
}

// F(M, R) on points of F(Of, R): 0, as many pairs as needed, and infinity if one point is missing.
// G has those rows of F(Of, R); BT corrects their scale.
template <int M, int R, int Of>
constexpr Matrices<M, R> toom_cook() {
  constexpr int kAlpha = M + R - 1, kPoints = Of + R - 2;  // finite ones of F(Of, R)
  static_assert((Of + R - 1) % 2 == 0, "0, pairs and infinity");
  constexpr bool kInfinity = kAlpha % 2 == 0;
  constexpr int kFinite = kInfinity ? kAlpha - 1 : kAlpha;
  Matrices<M, R> m;
  double point[kPoints] = {};
  for (int i = 0; i < (kPoints - 1) / 2; ++i) {
    point[2 * i + 1] = pair_point<kPoints - 1>(i);
    point[2 * i + 2] = -pair_point<kPoints - 1>(i);
  }
  for (int i = 0; i < kAlpha; ++i) {
    const bool infinity = kInfinity && i == kAlpha - 1;
    // The polynomial whose roots are all other finite points; for infinity, all finite points.
    double poly[kAlpha] = {1.0};
    int degree = 0;
    double scale = 1.0, made_up = 1.0;
    for (int j = 0; j < kPoints; ++j) {
      if (j == i && !infinity) continue;
      if (!infinity) scale *= point[i] - point[j];
      if (j >= kFinite) {
        if (!infinity) made_up *= point[i] - point[j];
        continue;
      }
      for (int k = degree + 1; k > 0; --k) poly[k] = poly[k - 1] - point[j] * poly[k];
      poly[0] *= -point[j];
      ++degree;
    }
    for (int k = 0; k <= degree; ++k) m.bt[i][k] = poly[k] * made_up;
    if (infinity) {
      m.at[M - 1][i] = 1.0;
      m.g[i][R - 1] = 1.0;
    } else {
      double power = 1.0;
      for (int k = 0; k < (M > R ? M : R); ++k, power *= point[i]) {
        if (k < M) m.at[k][i] = power;
        if (k < R) m.g[i][k] = power / scale;
      }
    }
  }
  return m;
}

// F(M, R). For a tile of F(Of, R) of which only M results are wanted: these, by as few frequencies
// as they need, with the weights of F(Of, R).
template <int M, int R = 3, int Of = M>
struct Winograd {
  static constexpr int kTile = M, kTaps = R, kAlpha = M + R - 1, kPairs = (kAlpha - 1) / 2;
  static constexpr bool kInfinity = kAlpha % 2 == 0;
  static constexpr Matrices<M, R> kMatrices = toom_cook<M, R, Of>();

  // The frequency of F(Of, R) that is the i-th here.
  static constexpr long frequency(long i) { return kInfinity && i == kAlpha - 1 ? Of + R - 2 : i; }

  // out = BT in, for kAlpha vectors.
  static BESTOF_INLINE void input(const Vec* in, Vec* out) {
    dot<kAlpha>(kMatrices.bt[0], in, out[0]);
    if constexpr (kInfinity) dot<kAlpha>(kMatrices.bt[kAlpha - 1], in, out[kAlpha - 1]);
#pragma GCC unroll 8
    for (int i = 1; i < kAlpha - 1; i += 2) {
      Vec even = Vec{}, odd = Vec{};
#pragma GCC unroll 10
      for (int k = 0; k < kAlpha; ++k)
        add_product(kMatrices.bt[i][k], in[k], k % 2 == 0 ? even : odd);
      out[i] = even + odd;
      out[i + 1] = even - odd;
    }
  }

  // out = AT in: kAlpha vectors to M.
  static BESTOF_INLINE void output(const Vec* in, Vec* out) {
    Vec sum[kPairs], difference[kPairs];
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i) {
      sum[i] = in[2 * i + 1] + in[2 * i + 2];
      difference[i] = in[2 * i + 1] - in[2 * i + 2];
    }
#pragma GCC unroll 8
    for (int k = 0; k < M; ++k) {
      Vec v = k == 0 ? in[0] : kInfinity && k == M - 1 ? in[kAlpha - 1] : Vec{};
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        add_product(kMatrices.at[k][2 * i + 1], k % 2 == 0 ? sum[i] : difference[i], v);
      }
      out[k] = v;
    }
  }

  // out = A in: M vectors to kAlpha, the adjoint of `output`.
  static BESTOF_INLINE void output_adjoint(const Vec* in, Vec* out) {
    out[0] = in[0];
    if constexpr (kInfinity) out[kAlpha - 1] = in[M - 1];
#pragma GCC unroll 8
    for (int i = 1; i < kAlpha - 1; i += 2) {
      Vec even = Vec{}, odd = Vec{};
#pragma GCC unroll 8
      for (int k = 0; k < M; ++k) add_product(kMatrices.at[k][i], in[k], k % 2 == 0 ? even : odd);
      out[i] = even + odd;
      out[i + 1] = even - odd;
    }
  }

 private:
  static BESTOF_INLINE void add_product(double coefficient, Vec v, Vec& sum) {
    const float c = static_cast<float>(coefficient);
    if (c == 1.0f) {
      sum += v;
    } else if (c == -1.0f) {
      sum -= v;
    } else if (c != 0.0f) {
      sum += v * c;
    }
  }

  template <int N>
  static BESTOF_INLINE void dot(const double* coefficients, const Vec* in, Vec& out) {
    out = Vec{};
#pragma GCC unroll 10
    for (int k = 0; k < N; ++k) add_product(coefficients[k], in[k], out);
  }
};

// F(1, 1): an axis with one tap, along which nothing is transformed.
template <>
struct Winograd<1, 1, 1> {
  static constexpr int kTile = 1, kTaps = 1, kAlpha = 1;
  static constexpr struct {
    double g[1][1];
  } kMatrices = {{{1.0}}};

  static BESTOF_INLINE void input(const Vec* in, Vec* out) { out[0] = in[0]; }
  static BESTOF_INLINE void output(const Vec* in, Vec* out) { out[0] = in[0]; }
  static BESTOF_INLINE void output_adjoint(const Vec* in, Vec* out) { out[0] = in[0]; }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Square tiles F(M x M, 3 x 3). Short tiles leave out the products that they do not need.
#pragma once
#include "conv/weight_transform.h"
#include "conv/winograd.h"
#include "conv/winograd_gradient.h"
#include "conv/winograd_transforms.h"

namespace bestof {
namespace BESTOF_TARGET {

// Products along one axis of `results`. The last tile has as many as its results need.
template <int M>
inline double products_along(long results) {
  return static_cast<double>(results + 2 * divide_up(results, M));
}

template <int M>
struct SquareTiles : PlainTiles {
  using AxisY = Winograd<M>;
  using AxisX = Winograd<M>;
  static constexpr long kRows = M, kColumns = M, kReadRows = M + 2, kStride = 1;
  static constexpr long kFrequencies = (M + 2) * (M + 2), kPlanes = kFrequencies,
                        kProducts = kFrequencies;
  static constexpr Blocking kBlocking = {.level2_parts = 3,
                                         .least = 14,
                                         .most = 96,
                                         .align = 1024,
                                         .pad = 80,
                                         .phases = true,
                                         .streams = true,
                                         .fetches = true};
  using Order = ShortTilesOrder<M>;

  template <class Element>
  static void transform_weights(const Weights<Element>& view, float* u, int threads) {
    transform_axes_weights<AxisY, AxisX>(view, u, threads);
  }
  template <class Element>
  static void transform_input(const Problem& p, const TilePlan& t, const Order& order,
                              const Element* x, long first, long count, long from, long to,
                              float* v) {
    transform_square_input<M>(p, t, order, x, first, count, from, to, v);
  }
  template <class Element>
  static void transform_output(const Problem& p, const TilePlan& t, const Order& order,
                               const float* m, long first, long count, long from, long to,
                               const Epilogue& epilogue, Element* y) {
    transform_square_output<M>(p, t, order, m, first, count, from, to, epilogue, y);
  }
  static void transform_gradient(const Problem& p, const TilePlan& t, const Order& order,
                                 const float* grad, long first, long count, float* z) {
    transform_square_gradient<M>(p, t, order, grad, first, count, z);
  }
  static double products(const Problem& p) {
    return products_along<M>(p.out_height) * products_along<M>(p.out_width) * p.batch;
  }
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

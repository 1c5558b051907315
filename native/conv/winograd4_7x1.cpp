// Winograd F(4, 7) along columns, for kernels of 7x1.
#include "conv/algorithms.h"
#include "conv/winograd_axes.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = AxisTiles<Winograd<4, 7>, Winograd<1, 1>>;

const Passes passes::winograd4_7x1 = {
    .forward = WinogradPass<Tiles>::forward(),
    .backward_input = WinogradPass<Tiles>::backward_input(),
    .backward_weight = WinogradWeightPass<Tiles>::pass(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

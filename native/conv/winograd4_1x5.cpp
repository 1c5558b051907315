// Winograd F(4, 5) along rows, for kernels of 1x5, as 1-D convolutions have: 2.5 times fewer
// multiplications.
#include "conv/algorithms.h"
#include "conv/winograd_axes.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = AxisTiles<Winograd<1, 1>, Winograd<4, 5>>;

const Passes passes::winograd4_1x5 = {
    .forward = WinogradPass<Tiles>::forward(),
    .backward_input = WinogradPass<Tiles>::backward_input(),
    .backward_weight = WinogradWeightPass<Tiles>::pass(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

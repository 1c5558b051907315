// Winograd F(4 x 4, 5 x 5): 6.25 times fewer multiplications. Its points are those of F(6 x 6, 3 x
// 3), and so is its error.
#include "conv/algorithms.h"
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = AxisTiles<Winograd<4, 5>, Winograd<4, 5>>;

const Passes passes::winograd4_5x5 = {
    .forward = WinogradPass<Tiles>::forward(),
    .backward_input = WinogradPass<Tiles>::backward_input(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

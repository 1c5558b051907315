// Winograd F(2 x 2, 5 x 5): 2.78 times fewer multiplications. Its points are those of F(4 x 4, 3 x
// 3), and so is its error.
#include "conv/algorithms.h"
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = AxisTiles<Winograd<2, 5>, Winograd<2, 5>>;

const Passes passes::winograd2_5x5 = {
    .forward = WinogradPass<Tiles>::forward(),
    .backward_input = WinogradPass<Tiles>::backward_input(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

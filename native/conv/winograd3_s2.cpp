// Winograd for 3x3 kernels of stride 2, tiles of 3 x 3 results.
#include "conv/algorithms.h"
#include "conv/winograd_strided.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = StridedTiles<3, 3>;

const Passes passes::winograd3_s2 = {
    .forward = WinogradPass<Tiles>::forward(),
    .backward_weight = WinogradWeightPass<Tiles>::pass(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

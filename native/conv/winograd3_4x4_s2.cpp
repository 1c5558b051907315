// Winograd for 4x4 kernels of stride 2, tiles of 3 x 3 results: 2.25 times fewer multiplications.
#include "conv/algorithms.h"
#include "conv/winograd_strided.h"
#include "conv/winograd_strided_input.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = StridedTiles<3, 4>;

const Passes passes::winograd3_4x4_s2 = {
    .forward = WinogradPass<Tiles>::forward(),
    .backward_input = InterleavedPass<3, 4>::pass(),
    .backward_weight = WinogradWeightPass<Tiles>::pass(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

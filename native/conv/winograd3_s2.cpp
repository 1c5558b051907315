// Winograd for 3x3 kernels of stride 2, tiles of 3 x 3 results.
#include "conv/algorithms.h"
#include "conv/winograd_strided.h"

namespace bestof {
namespace BESTOF_TARGET {

const Passes passes::winograd3_s2 = {.forward = WinogradPass<StridedTiles<3, 3>>::forward()};

}  // namespace BESTOF_TARGET
}  // namespace bestof

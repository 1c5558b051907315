// Winograd F(4 x 4, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_square.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = SquareTiles<4>;

const Passes passes::winograd4 = {
    .forward = WideningPass<Tiles>::forward(),
    .backward_input = WinogradPass<Tiles>::backward_input(),
    .backward_weight = WinogradWeightPass<Tiles>::pass(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

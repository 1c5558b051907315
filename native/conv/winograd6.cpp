// Winograd F(6 x 6, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_square.h"

namespace bestof {
namespace BESTOF_TARGET {

using Tiles = SquareTiles<6>;

const Passes passes::winograd6 = {
    .forward = WideningPass<Tiles>::forward(),
    .backward_input = WinogradPass<Tiles>::backward_input(),
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

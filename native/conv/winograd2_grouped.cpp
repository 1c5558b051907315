// Winograd F(2 x 2, 3 x 3) for few channels a group.
#include "conv/algorithms.h"
#include "conv/winograd_grouped.h"

namespace bestof {
namespace BESTOF_TARGET {

const Passes passes::winograd2_grouped = {.forward = GroupedWinogradPass<2>::forward()};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Winograd F(4 x 4, 3 x 3) for few channels a group.
#include "conv/algorithms.h"
#include "conv/winograd_grouped.h"

namespace bestof {
namespace BESTOF_TARGET {

const Passes passes::winograd4_grouped = {.forward = GroupedWinogradPass<4>::forward()};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Winograd F(2 x 2, 5 x 5): 2.78 times fewer multiplications, with the points, and so the error, of
// F(4 x 4, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_axes.h"

namespace bestof {
namespace BESTOF_TARGET {

const Algorithm kWinograd2Square5 =
    winograd_axes<Winograd<2, 5>, Winograd<2, 5>>("winograd2_5x5", 5e-6);

}  // namespace BESTOF_TARGET
}  // namespace bestof

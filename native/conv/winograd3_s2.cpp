// Winograd for 3x3 kernels of stride 2, tiles of 3 x 3 results.
#include "conv/algorithms.h"
#include "conv/winograd_strided.h"

namespace bestof {
namespace BESTOF_TARGET {

const Algorithm kWinograd3Strided = winograd_strided<3>("winograd3_s2", 1.5e-6);

}  // namespace BESTOF_TARGET
}  // namespace bestof

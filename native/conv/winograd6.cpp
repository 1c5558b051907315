// Winograd F(6 x 6, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd.h"

namespace bestof {
namespace BESTOF_TARGET {

const Algorithm kWinograd6 = {
    "winograd6",
    {winograd_supports<6>, winograd_weight_floats<6>, WinogradPass<6>::pack, winograd_scratch<6>,
     WinogradPass<6>::run_forward, 2.5e-5, WinogradPass<6>::flops, 0.0, true},
    {winograd_supports<6>, nullptr, nullptr, WinogradPass<6>::backward_input_scratch,
     WinogradPass<6>::run_backward_input, 2.5e-5, WinogradPass<6>::flops},
    {},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Winograd F(2 x 2, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

const Algorithm kWinograd2 = {
    "winograd2",
    {winograd_supports<2>, winograd_weight_floats<2>, WinogradPass<2>::pack, winograd_scratch<2>,
     WinogradPass<2>::run_forward, 2e-6, WinogradPass<2>::flops, 0.0, true},
    {winograd_supports<2>, nullptr, nullptr, WinogradPass<2>::backward_input_scratch,
     WinogradPass<2>::run_backward_input, 2e-6, WinogradPass<2>::flops},
    {winograd_supports<2>, nullptr, nullptr, WinogradWeightPass<2>::scratch,
     WinogradWeightPass<2>::run, 2e-6, WinogradPass<2>::flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Winograd F(4 x 4, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

const Algorithm kWinograd4 = {
    "winograd4",
    {winograd_supports<4>, winograd_weight_floats<4>, WinogradPass<4>::pack, winograd_scratch<4>,
     WinogradPass<4>::run_forward, 5e-6, WinogradPass<4>::flops, 0.0, true},
    {winograd_supports<4>, nullptr, nullptr, WinogradPass<4>::backward_input_scratch,
     WinogradPass<4>::run_backward_input, 5e-6, WinogradPass<4>::flops},
    {winograd_supports<4>, nullptr, nullptr, WinogradWeightPass<4>::scratch,
     WinogradWeightPass<4>::run, 5e-6, WinogradPass<4>::flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

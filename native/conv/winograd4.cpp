// Winograd F(4 x 4, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

const Passes passes::winograd4 = {
    .forward = {WinogradPass<4>::run_forward, winograd_scratch<4>, WinogradPass<4>::flops,
                winograd_weight_floats<4>, WinogradPass<4>::pack},
    .backward_input = {WinogradPass<4>::run_backward_input, WinogradPass<4>::backward_input_scratch,
                       WinogradPass<4>::flops},
    .backward_weight = {WinogradWeightPass<4>::run, WinogradWeightPass<4>::scratch,
                        WinogradPass<4>::flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

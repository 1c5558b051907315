// Winograd F(2 x 2, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd_weight.h"

namespace bestof {
namespace BESTOF_TARGET {

const Passes passes::winograd2 = {
    .forward = {WinogradPass<2>::run_forward, winograd_scratch<2>, WinogradPass<2>::flops,
                winograd_weight_floats<2>, WinogradPass<2>::pack},
    .backward_input = {WinogradPass<2>::run_backward_input, WinogradPass<2>::backward_input_scratch,
                       WinogradPass<2>::flops},
    .backward_weight = {WinogradWeightPass<2>::run, WinogradWeightPass<2>::scratch,
                        WinogradPass<2>::flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

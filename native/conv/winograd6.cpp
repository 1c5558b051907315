// Winograd F(6 x 6, 3 x 3).
#include "conv/algorithms.h"
#include "conv/winograd.h"

namespace bestof {
namespace BESTOF_TARGET {

const Passes passes::winograd6 = {
    .forward = {WinogradPass<6>::run_forward, winograd_scratch<6>, WinogradPass<6>::flops,
                winograd_weight_floats<6>, WinogradPass<6>::pack},
    .backward_input = {WinogradPass<6>::run_backward_input, WinogradPass<6>::backward_input_scratch,
                       WinogradPass<6>::flops},
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

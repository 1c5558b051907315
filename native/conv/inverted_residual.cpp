#include "conv/inverted_residual.h"

#include "conv/residual_rows.h"

namespace bestof {
namespace BESTOF_TARGET {

const InvertedResidualPass inverted_residual = {run_residual_rows<float, float>,
                                                residual_floats<float, float>};

}  // namespace BESTOF_TARGET
}  // namespace bestof

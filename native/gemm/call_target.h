// Where the results of a call go, for algorithms whose rows are those of A.
#pragma once
#include "gemm/product.h"
#include "gemm/tile.h"

namespace bestof {
namespace BESTOF_TARGET {

// The target of matrix `matrix` of the batch.
template <class Out>
inline Target<Out> call_target(const Product& p, const ProductCall& call, long matrix) {
  const bool turned = p.c.column != 1;
  const long offset = matrix * p.c.batch;
  Target<Out> target = {static_cast<Out*>(call.c) + offset,
                        turned ? p.c.column : p.c.row,
                        turned,
                        nullptr,
                        call.bias,
                        false,
                        nullptr,
                        call.activation,
                        call.slope};
  if (call.residual) target.added = static_cast<const Out*>(call.residual) + offset;
  if (call.factor) target.factor = static_cast<const Out*>(call.factor) + offset;
  return target;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

// One call of a matrix product, and what it looks like.
#pragma once
#include <cstdint>

#include "cpp_kernel.h"
#include "known_calls.h"
#include "stable_abi.h"

namespace shim {

// A product operator of PyTorch: C = A B, or C = bias + A B, of matrices or of batches of them.
struct ProductOperation {
  const char* name;
  bool is_batched, has_bias;
};
constexpr int PRODUCTS = 4;
constexpr ProductOperation PRODUCT_OPERATIONS[PRODUCTS] = {
    {"mm", false, false}, {"addmm", false, true}, {"bmm", true, false}, {"baddbmm", true, true}};

// A batch of matrices [batch, rows, columns] with its strides, in elements.
struct Matrices {
  int64_t batch, rows, columns;
  int64_t batch_stride, row_stride, column_stride;

  // Reads the sizes of a tensor of three dimensions if `is_batched`, else of two; false for others.
  bool read_sizes(stable::Tensor tensor, bool is_batched);
  // Reads the strides of the same tensor.
  bool read_strides(stable::Tensor tensor, bool is_batched);
  // Returns whether each matrix has dense rows or dense columns that do not overlap, and the batch
  // is not expanded.
  bool is_plain() const;
};

// The arguments of a call, which PyTorch owns.
struct ProductCall {
  int operation;        // a place in PRODUCT_OPERATIONS
  uint64_t keys;        // the dispatch keys
  stable::Tensor bias;  // null if the operator has none
  stable::Tensor a, b;
  const Scalar *beta, *alpha;  // null if the operator has none
  Matrices left, right;        // what `read` has found

  // Returns whether bestof may choose what computes this call: dense float32 matrices that fit, of
  // at least `least` multiply-adds, a bias that fits, and no factors.
  bool read(int64_t least);
  // Adds everything that a decision depends on, such as whether weights may stay as they are: no
  // gradient is recorded or computed by this thread.
  void describe(Call& call, int64_t level) const;

 private:
  bool reads_bias() const;
};

}  // namespace shim

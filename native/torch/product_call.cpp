#include "product_call.h"

#include "gradients.h"

namespace shim {

namespace {

bool is_float32(stable::Tensor tensor) {
  int32_t dtype = 0;
  return stable::aoti_torch_get_dtype(tensor, &dtype) == 0 && dtype == stable::FLOAT32;
}

}  // namespace

bool Matrices::read_sizes(stable::Tensor tensor, bool is_batched) {
  int64_t dimensions = 0, *sizes = nullptr;
  if (stable::aoti_torch_get_dim(tensor, &dimensions) != 0 || dimensions != (is_batched ? 3 : 2) ||
      stable::aoti_torch_get_sizes(tensor, &sizes) != 0)
    return false;
  batch = is_batched ? *sizes++ : 1;
  rows = sizes[0];
  columns = sizes[1];
  return true;
}

bool Matrices::read_strides(stable::Tensor tensor, bool is_batched) {
  int64_t* strides = nullptr;
  if (stable::aoti_torch_get_strides(tensor, &strides) != 0) return false;
  batch_stride = is_batched ? *strides++ : 0;
  row_stride = strides[0];
  column_stride = strides[1];
  return true;
}

bool Matrices::is_plain() const {
  const bool has_rows =
      (column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1);
  const bool has_columns =
      (row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1);
  return (has_rows || has_columns) && (batch == 1 || batch_stride > 0);
}

bool ProductCall::read(int64_t least) {
  const ProductOperation& one = PRODUCT_OPERATIONS[operation];
  if (!left.read_sizes(a, one.is_batched) || !right.read_sizes(b, one.is_batched) ||
      left.columns != right.rows || left.batch != right.batch)
    return false;
  // In floating point, because sizes of expanded tensors may have any product.
  const double work = static_cast<double>(left.batch) * static_cast<double>(left.rows) *
                      static_cast<double>(left.columns) * static_cast<double>(right.columns);
  if (work < static_cast<double>(least)) return false;  // first, because small products are many
  return is_float32(a) && is_float32(b) && left.read_strides(a, one.is_batched) &&
         right.read_strides(b, one.is_batched) && left.is_plain() && right.is_plain() &&
         (!one.has_bias || reads_bias());
}

bool ProductCall::reads_bias() const {
  if (!beta->is_one() || !alpha->is_one() || !is_float32(bias)) return false;
  int64_t dimensions = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  if (stable::aoti_torch_get_dim(bias, &dimensions) != 0 || dimensions != 1 ||
      stable::aoti_torch_get_sizes(bias, &sizes) != 0 ||
      stable::aoti_torch_get_strides(bias, &strides) != 0)
    return false;
  return sizes[0] == right.columns && (strides[0] == 1 || sizes[0] == 1);
}

void ProductCall::describe(Call& call, int64_t level) const {
  uint32_t threads = 0;
  stable::torch_get_num_threads(&threads);
  const int64_t words[] = {operation,
                           level,
                           threads,
                           is_inference(),
                           left.batch,
                           left.rows,
                           left.columns,
                           right.columns,
                           left.batch_stride,
                           left.row_stride,
                           left.column_stride,
                           right.batch_stride,
                           right.row_stride,
                           right.column_stride};
  call.add(words, static_cast<int>(sizeof(words) / sizeof(words[0])));
}

}  // namespace shim

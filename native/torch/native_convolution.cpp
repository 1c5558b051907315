#include "native_convolution.h"

namespace shim {

namespace {

// The layout of a dense tensor (N, C, H, W): planes (channels first) or rows (channels
// last).
enum class Layout { kPlanes, kRows, kOther };

// Returns whether dimensions in this order, outermost first, are dense. Strides of dimensions of
// size 1 do not matter.
bool is_dense(const int64_t* sizes, const int64_t* strides, const int (&order)[4]) {
  int64_t step = 1;
  for (int place = 3; place >= 0; --place) {
    const int dimension = order[place];
    if (sizes[dimension] != 1 && strides[dimension] != step) return false;
    step *= sizes[dimension];
  }
  return true;
}

// Returns the layout and the address of a dense float32 tensor of four dimensions; rows if both
// layouts are the same.
Layout read(stable::Tensor tensor, const float** data) {
  int32_t dtype = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  const void* address = nullptr;  // a mutable address would copy tensors that are copied on write
  if (stable::aoti_torch_get_dtype(tensor, &dtype) != 0 || dtype != stable::FLOAT32 ||
      stable::aoti_torch_get_sizes(tensor, &sizes) != 0 ||
      stable::aoti_torch_get_strides(tensor, &strides) != 0 ||
      stable::torch_get_const_data_ptr(tensor, &address) != 0 || address == nullptr)
    return Layout::kOther;
  *data = static_cast<const float*>(address);
  if (is_dense(sizes, strides, {0, 2, 3, 1})) return Layout::kRows;
  return is_dense(sizes, strides, {0, 1, 2, 3}) ? Layout::kPlanes : Layout::kOther;
}

// Reads a bias [filters]; null if there is none. Returns false for anything else.
bool read_bias(stable::Tensor tensor, int64_t filters, const float** bias) {
  *bias = nullptr;
  if (tensor == nullptr) return true;
  int32_t dtype = 0;
  int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr;
  const void* address = nullptr;
  if (stable::aoti_torch_get_dtype(tensor, &dtype) != 0 || dtype != stable::FLOAT32 ||
      stable::aoti_torch_get_dim(tensor, &dimensions) != 0 || dimensions != 1 ||
      stable::aoti_torch_get_sizes(tensor, &sizes) != 0 || sizes[0] != filters ||
      stable::aoti_torch_get_strides(tensor, &strides) != 0 || (filters != 1 && strides[0] != 1) ||
      stable::torch_get_const_data_ptr(tensor, &address) != 0 || address == nullptr)
    return false;
  *bias = static_cast<const float*>(address);
  return true;
}

// A new tensor, dense in channels first or in channels last.
class Made {
 public:
  Made() = default;
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() { drop(); }

  void drop() {
    if (tensor_ != nullptr) stable::aoti_torch_delete_tensor_object(tensor_);
    tensor_ = nullptr;
  }

  // Returns its address; null if memory is short.
  float* make(const int64_t (&sizes)[4], bool rows) {
    const int64_t plane = sizes[2] * sizes[3];
    const int64_t first = sizes[1] * plane;
    const int64_t in_rows[4] = {first, 1, sizes[1] * sizes[3], sizes[1]},
                  in_planes[4] = {first, plane, sizes[3], 1};
    void* address = nullptr;
    if (stable::aoti_torch_empty_strided(4, sizes, rows ? in_rows : in_planes, stable::FLOAT32,
                                         stable::CPU, 0, &tensor_) != 0) {
      tensor_ = nullptr;
      return nullptr;
    }
    return stable::torch_get_mutable_data_ptr(tensor_, &address) == 0 ? static_cast<float*>(address)
                                                                      : nullptr;
  }
  stable::Tensor release() {
    const stable::Tensor tensor = tensor_;
    tensor_ = nullptr;
    return tensor;
  }

 private:
  stable::Tensor tensor_ = nullptr;
};

}  // namespace

bool NativeConvolution::run(LentWeights& lent, const stable::Tensor* operands,
                            stable::Tensor* results) const {
  const ConvolutionShape& s = shape_;
  const stable::Tensor input = operands[0], weight = operands[1], bias = operands[2];
  const float *x = nullptr, *w = nullptr, *b = nullptr;
  const Layout from = read(input, &x), filters = read(weight, &w);
  if (from == Layout::kOther || filters == Layout::kOther || !read_bias(bias, s.filters, &b))
    return false;
  // Check the weights first: if Python must pack them, nothing was converted in vain.
  Borrowed borrowed;
  if (key_ != 0 && !borrowed.take(lent, *kernels_, weight, w, key_ + (filters == Layout::kRows),
                                  s.filters * s.depth * s.kernel_height * s.kernel_width))
    return false;
  Made turned, turned_weight, result, rows;
  if (key_ == 0 && filters == Layout::kPlanes) {
    float* copy = turned_weight.make({s.filters, s.depth, s.kernel_height, s.kernel_width}, true);
    if (copy == nullptr) return false;
    kernels_->turn(w, s.filters, s.depth, s.kernel_height * s.kernel_width, copy);
    w = copy;
  }
  if (from == Layout::kPlanes) {
    float* copy = turned.make({s.images, s.channels, s.height, s.width}, true);
    if (copy == nullptr) return false;
    kernels_->turn(x, s.images, s.channels, s.height * s.width, copy);
    x = copy;
  }
  const int64_t sizes[4] = {s.images, s.filters, s.out_height, s.out_width};
  const int64_t pixels = s.out_height * s.out_width;
  const bool is_turned = !channels_last_ && s.filters > 1 && pixels > 1;
  Made& made = is_turned ? rows : result;
  float* computed = made.make(sizes, is_turned || channels_last_);
  const void* const given[3] = {x, w, b};
  void* const written[1] = {computed};
  if (computed == nullptr || !kernels_->run(plan_, given, written, borrowed.packed())) return false;
  if (is_turned) {
    turned.drop();  // before the third copy
    float* y = result.make(sizes, false);
    if (y == nullptr) return false;
    kernels_->turn(computed, s.images, pixels, s.filters, y);
  }
  results[0] = result.release();
  return true;
}

}  // namespace shim

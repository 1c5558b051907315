// A handle of a tensor that is deleted with its owner.
#pragma once
#include "stable_abi.h"

namespace shim {

class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
  ~OwnedTensor() {
    if (tensor != nullptr) stable::aoti_torch_delete_tensor_object(tensor);
  }

  // Makes a tensor and returns its address; null if memory is short.
  void* make(int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype) {
    void* address = nullptr;
    if (stable::aoti_torch_empty_strided(dimensions, sizes, strides, dtype, stable::CPU, 0,
                                         &tensor) != 0) {
      tensor = nullptr;
      return nullptr;
    }
    return stable::torch_get_mutable_data_ptr(tensor, &address) == 0 ? address : nullptr;
  }
  // The same of float32.
  float* make(int64_t dimensions, const int64_t* sizes, const int64_t* strides) {
    return static_cast<float*>(make(dimensions, sizes, strides, stable::FLOAT32));
  }
  stable::Tensor release() {
    const stable::Tensor released = tensor;
    tensor = nullptr;
    return released;
  }

  stable::Tensor tensor = nullptr;
};

}  // namespace shim

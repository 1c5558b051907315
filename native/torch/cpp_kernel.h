// Kernels in the form that PyTorch's C++ code calls: without boxing, with tensors by reference.
//
// The stable interface cannot register operators that take a Scalar (aten::addmm, aten::baddbmm):
// it refuses to convert the argument. It also allocates a handle for every tensor, which takes a
// third of a microsecond. So these kernels are registered by two C++ functions of PyTorch's
// library, torch::CppFunction's constructor and torch::Library::_impl, by the names that they have
// there. The names tell the types of their arguments; the layout of the types is that of
// PyTorch 2.13.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stable_abi.h"

namespace shim {

// An at::Tensor that a kernel returns: one pointer that owns. Like at::Tensor it is returned in
// memory of the caller, because it has a destructor.
class Result {
 public:
  // Takes the tensor of a handle over, and deletes the handle.
  explicit Result(stable::Tensor handle);
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result();

 private:
  void* tensor_;
};

// The number behind a const c10::Scalar&.
class Scalar {
 public:
  static Scalar one() {
    Scalar made;
    made.kind_ = WHOLE;
    made.value_.whole = 1;
    return made;
  }
  // Returns whether it is the real number 1.
  bool is_one() const {
    if (kind_ == REAL) return value_.real == 1.0;
    return kind_ == WHOLE && value_.whole == 1;
  }

 private:
  static constexpr int32_t REAL = 0, WHOLE = 1;  // of c10::Scalar::Tag
  int32_t kind_;
  alignas(16) union {  // as large and aligned as a complex number
    double real;
    int64_t whole;
    double complex[2];
  } value_;
};

class StackList;

// A c10::IValue: an argument or a result of a boxed call.
struct StackValue {
  // Of c10::IValue::Tag.
  static constexpr uint32_t NONE = 0, TENSOR = 1, REAL = 3, WHOLE = 5, TRUTH = 10, TEXT = 12,
                            LIST = 14;

  union {
    void* tensor;  // owned
    double real;
    int64_t whole;
    bool truth;
    void* counted;  // owned: a text or a list, behind its counts
  } payload;
  uint32_t tag;

  // Takes the tensor of a handle over, and deletes the handle.
  static StackValue of(stable::Tensor handle);
  // Lets go of what it owns. It must have one of the tags above.
  void drop();
  const std::string& text() const;
  const StackList& list() const;
  // Returns a handle of the tensor, which stays in its place.
  stable::Tensor handle() { return reinterpret_cast<stable::Tensor>(&payload.tensor); }
};

// The values of a c10::detail::ListImpl.
class StackList {
 public:
  std::size_t size() const { return values_.size(); }
  // Reads a whole number or a truth value; false for others.
  bool read(std::size_t place, int64_t* item) const {
    const StackValue& value = values_[place];
    *item = value.tag == StackValue::TRUTH ? value.payload.truth : value.payload.whole;
    return value.tag == StackValue::WHOLE || value.tag == StackValue::TRUTH;
  }
  bool has_truths() const { return !values_.empty() && values_[0].tag == StackValue::TRUTH; }

 private:
  std::vector<StackValue> values_;
};

// A c10::KernelFunction: how the dispatcher calls a kernel.
struct KernelFunction {
  void* functor = nullptr;
  void* boxed = nullptr;    // void (functor, operator, keys, stack)
  void* unboxed = nullptr;  // the kernel itself, with the functor and the keys before its arguments
  void* symbolic = nullptr;
  void* tokens = nullptr;
  ~KernelFunction() {}  // as there, so that it is passed by reference
};

// Returns whether the library of this path is loaded and has the functions.
bool find_registration(const char* path);

// Reads the kernel that an object of torch.library.get_kernel holds, which must outlive its use.
// Returns false unless the kernel is PyTorch's own and has the layout that is expected here.
// Without sizes that may be symbolic, it can be called unboxed.
bool read_kernel(void* object, KernelFunction* kernel);

// Registers a kernel in a library of aoti_torch_library_init_impl. Returns false if PyTorch
// refuses.
bool register_kernel(stable::Library library, const char* operation, const KernelFunction& kernel);

}  // namespace shim

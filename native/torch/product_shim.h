// Kernels for the matrix products of PyTorch's dispatcher on the CPU.
#pragma once
#include "cpp_kernel.h"
#include "native_product.h"
#include "product_call.h"
#include "shim.h"

namespace shim {

// Small products go straight to PyTorch's kernel: the shim reads their sizes and nothing else. So
// do all calls that bestof does not choose for. Only calls of a size that was met before are put to
// Python, which answers (operation, bias or None, a, b) -> C.
class ProductShim final : public Shim {
 public:
  // Calls with one key that PyTorch answers before Python is asked about it. Programs whose shapes
  // never repeat thus never ask.
  static constexpr uint32_t UNTIL_ASKED = 2;

  // `originals` are PyTorch's kernels, in the order of PRODUCT_OPERATIONS; `kept` keeps them.
  // `least` is the number of multiply-adds from which on products are chosen for. The shim takes
  // the references.
  ProductShim(Conversions conversions, PyObject* answer, PyObject* kept,
              const KernelFunction (&originals)[PRODUCTS], int64_t least, PyObject* first_only);
  ~ProductShim() override;

  bool put_in() override;
  void take_out() override;

  Result multiply(ProductCall& call);
  // Computes as `multiply` does for calls that are noted for this kernel. Returns false, without a
  // result, if the kernel refuses.
  bool compute(const NativeProduct& native, const ProductCall& call, stable::Tensor* output) {
    return native.run(lent_, call, output);
  }
  // Calls PyTorch's kernel with the arguments as they are.
  Result by_pytorch(const ProductCall& call) const;
  const KernelFunction& original(int operation) const { return originals_[operation]; }
  // Counts the questions that Python was asked.
  uint64_t asked() const { return asked_.load(std::memory_order_relaxed); }

 private:
  PyObject *answer_, *kept_;
  KernelFunction originals_[PRODUCTS];
  int64_t least_;
  std::atomic<uint64_t> asked_{0};
};

}  // namespace shim

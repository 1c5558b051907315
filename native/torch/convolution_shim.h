// Kernels for the convolutions of PyTorch's dispatcher on the CPU.
#pragma once
#include "arguments.h"
#include "native_convolution.h"
#include "shim.h"
#include "stable_abi.h"

namespace shim {

class ConvolutionShim final : public Shim {
 public:
  // `forward` and `backward` answer unknown calls, with the arguments of aten::convolution and
  // aten::convolution_backward. They also answer training passes while the dict `kept` is not
  // empty. The shim takes the references.
  ConvolutionShim(Conversions conversions, PyObject* forward, PyObject* backward, PyObject* kept,
                  PyObject* first_only)
      : Shim(conversions, first_only, 4096), forward_(forward), backward_(backward), kept_(kept) {}
  ~ConvolutionShim() override;

  bool put_in(const char* key) override;
  void take_out() override;

  void convolve(stable::Value* stack);
  void differentiate(stable::Value* stack);

 private:
  // Returns what answers a call; null if Python does.
  Known* answer_to(const Call& call, bool is_training);

  PyObject *forward_, *backward_, *kept_;
};

}  // namespace shim

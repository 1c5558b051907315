#include "convolution_shim.h"

#include <atomic>

#include "guards.h"
#include "python_error.h"

namespace shim {

namespace {

// The shim that was put in last. A thread may still call it after it was taken out.
std::atomic<ConvolutionShim*> current{nullptr};
stable::Library library = nullptr;

// Adds the shape and strides of a tensor of four dimensions to the call; false for others.
bool describe(stable::Tensor tensor, Call& call) {
  int64_t dimensions = 0;
  int64_t* numbers = nullptr;
  if (stable::aoti_torch_get_dim(tensor, &dimensions) != 0 || dimensions != 4) return false;
  if (stable::aoti_torch_get_sizes(tensor, &numbers) != 0) return false;
  call.add(numbers, 4);
  if (stable::aoti_torch_get_strides(tensor, &numbers) != 0) return false;
  call.add(numbers, 4);
  return true;
}

struct Geometry {
  int64_t stride[2], padding[2], dilation[2], output_padding[2], groups;

  // Reads the six arguments from `first` on; false if this is no 2-D convolution.
  bool read(const Arguments& arguments, int first, Call& call) {
    if (arguments.truth(first + 3) || arguments.list(first, stride, 2) != 2 ||
        arguments.list(first + 1, padding, 2) != 2 || arguments.list(first + 2, dilation, 2) != 2 ||
        arguments.list(first + 4, output_padding, 2) != 2)
      return false;
    groups = arguments.number(first + 5);
    call.add(stride, 2);
    call.add(padding, 2);
    call.add(dilation, 2);
    call.add(groups);
    return true;
  }
};

// Without a bias, operators above pass an undefined tensor.
bool is_there(const stable::Tensor* tensor) {
  bool is_defined = false;
  return tensor != nullptr && stable::aoti_torch_is_defined(*tensor, &is_defined) == 0 &&
         is_defined;
}

void add_state(Call& call, stable::Tensor input, bool is_training, int64_t level) {
  uint32_t threads = 0;
  int32_t dtype = 0;
  stable::torch_get_num_threads(&threads);
  stable::aoti_torch_get_dtype(input, &dtype);
  call.add(threads);
  call.add(dtype);
  call.add(is_training);
  call.add(level);
}

// A call with its arguments on PyTorch's stack.
class StackQuestion final : public Question {
 public:
  StackQuestion(Arguments& arguments, stable::Value* stack, uint64_t results)
      : arguments_(arguments), stack_(stack), results_(results) {}
  PyObject* arguments(const Conversions& conversions) override {
    PyObject* given = arguments_.to_python(conversions);
    arguments_.release();
    return given;
  }
  bool take(PyObject* result, const Conversions& conversions) override {
    return from_python(result, stack_, results_, conversions);
  }

 private:
  Arguments& arguments_;
  stable::Value* stack_;
  uint64_t results_;
};

void forward_kernel(stable::Value* stack, uint64_t, uint64_t) {
  current.load(std::memory_order_acquire)->convolve(stack);
}

void backward_kernel(stable::Value* stack, uint64_t, uint64_t) {
  current.load(std::memory_order_acquire)->differentiate(stack);
}

struct Kernel {
  const char* operation;
  stable::Kernel kernel;
};
constexpr Kernel KERNELS[] = {{"convolution", forward_kernel},
                              {"convolution_backward", backward_kernel}};

}  // namespace

ConvolutionShim::~ConvolutionShim() {
  Py_XDECREF(forward_);
  Py_XDECREF(backward_);
  Py_XDECREF(kept_);
}

bool ConvolutionShim::put_in(const char* key) {
  if (library != nullptr) return false;
  if (stable::aoti_torch_library_init_impl("aten", key, "bestof.torch.backends.shim", 0,
                                           &library) != 0) {
    library = nullptr;
    return false;
  }
  ConvolutionShim* before = current.exchange(this, std::memory_order_acq_rel);
  bool all = true;
  for (const Kernel& row : KERNELS)
    all =
        all && stable::torch_library_impl(library, row.operation, row.kernel, stable::VERSION) == 0;
  if (all) return true;
  take_out();
  current.store(before, std::memory_order_release);
  return false;
}

void ConvolutionShim::take_out() {
  if (library == nullptr || current.load() != this) return;
  stable::aoti_torch_delete_library_object(library);
  library = nullptr;
}

Known* ConvolutionShim::answer_to(const Call& call, bool is_training) {
  Known* known = known_.find(call);
  // The length of a dict is one word, so it can be read without the interpreter's lock.
  if (known == nullptr || (is_training && PyDict_GET_SIZE(kept_) > 0)) return nullptr;
  return is_sampled(*known) ? nullptr : known;
}

void ConvolutionShim::convolve(stable::Value* stack) {
  Arguments arguments(stack, "TTtLLLbLi");
  const bool is_training = stable::aoti_torch_grad_mode_is_enabled();
  Call call;
  Geometry geometry;
  stable::Tensor* bias = arguments.optional_tensor(2);
  call.add(is_there(bias));
  const bool has_form = !is_traced() && describe(arguments.tensor(0), call) &&
                        describe(arguments.tensor(1), call) && geometry.read(arguments, 3, call);
  if (has_form)
    add_state(call, arguments.tensor(0), is_training, level_.load(std::memory_order_relaxed));
  Known* known = has_form ? answer_to(call, is_training) : nullptr;
  stable::Tensor output = nullptr;
  const Native* native = known == nullptr ? nullptr : known->native.load(std::memory_order_acquire);
  bool refused = false;
  if (native != nullptr) {
    const stable::Tensor operands[3] = {arguments.tensor(0), arguments.tensor(1),
                                        is_there(bias) ? *bias : nullptr};
    if (!allows_native())
      known = nullptr;
    else
      refused = !native->run(lent_, operands, &output);
  }
  if (known == nullptr || refused) {
    StackQuestion question(arguments, stack, 1);
    return ask(forward_, question, has_form ? &call : nullptr, refused);
  }
  known->count();
  int failed = 0;
  if (native == nullptr)
    failed = stable::aoti_torch_cpu_convolution(
        arguments.tensor(0), arguments.tensor(1), bias, geometry.stride, 2, geometry.padding, 2,
        geometry.dilation, 2, 0, geometry.output_padding, 2, geometry.groups, &output);
  arguments.release();
  if (failed != 0) throw_failure("convolution");  // it took them before: memory is short
  stack[0] = reinterpret_cast<stable::Value>(output);
}

void ConvolutionShim::differentiate(stable::Value* stack) {
  Arguments arguments(stack, "TTTlLLLbLiM");
  Call call;
  Geometry geometry;
  int64_t bias_size = 0, mask[3] = {};
  const size_t bias_sizes = arguments.optional_list(3, &bias_size, 1);
  call.add(static_cast<int64_t>(bias_sizes));
  call.add(bias_size);
  const bool has_form = !is_traced() && bias_sizes <= 1 && arguments.list(10, mask, 3) == 3 &&
                        describe(arguments.tensor(0), call) &&
                        describe(arguments.tensor(1), call) &&
                        describe(arguments.tensor(2), call) && geometry.read(arguments, 4, call);
  int32_t wanted[3];
  for (int place = 0; place < 3; ++place) wanted[place] = static_cast<uint8_t>(mask[place]) != 0;
  if (has_form) {
    call.add(wanted[0] + 2 * wanted[1] + 4 * wanted[2]);
    add_state(call, arguments.tensor(1), true, level_.load(std::memory_order_relaxed));
  }
  Known* known = has_form ? answer_to(call, false) : nullptr;
  if (known == nullptr) {
    StackQuestion question(arguments, stack, 3);
    return ask(backward_, question, has_form ? &call : nullptr);
  }
  known->count();
  const int64_t* sizes = &bias_size;
  stable::Tensor gradients[3] = {};
  const int failed = stable::aoti_torch_cpu_convolution_backward(
      arguments.tensor(0), arguments.tensor(1), arguments.tensor(2),
      bias_sizes == 0 ? nullptr : &sizes, bias_sizes, geometry.stride, 2, geometry.padding, 2,
      geometry.dilation, 2, 0, geometry.output_padding, 2, geometry.groups, wanted, 3,
      &gradients[0], &gradients[1], &gradients[2]);
  arguments.release();
  if (failed != 0) throw_failure("convolution");  // it took them before: memory is short
  for (int place = 0; place < 3; ++place)
    stack[place] = reinterpret_cast<stable::Value>(gradients[place]);
}

}  // namespace shim

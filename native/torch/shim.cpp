#include "shim.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "determinism.h"

namespace shim {

namespace {

class Lock {
 public:
  Lock() : state_(PyGILState_Ensure()) {}
  ~Lock() { PyGILState_Release(state_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace

}  // namespace shim

#pragma GCC visibility push(default)
// Carries Python's exception through PyTorch. PyTorch catches it by this name and takes the first
// three fields, as torch/csrc/Exceptions.h declares them. A class derived from PyTorchError would
// keep type and text alone, and not every exception can be made from a text: UnicodeDecodeError
// became TypeError, and SystemExit(3) ended the process with 1.
struct python_error : public std::exception {
  // Takes the references over.
  python_error(PyObject* type, PyObject* value, PyObject* traceback, std::string message)
      : type(type), value(value), traceback(traceback), message(std::move(message)) {}
  python_error(const python_error& other)
      : type(other.type), value(other.value), traceback(other.traceback), message(other.message) {
    const shim::Lock lock;
    Py_XINCREF(type);
    Py_XINCREF(value);
    Py_XINCREF(traceback);
  }
  python_error& operator=(const python_error&) = delete;
  ~python_error() override {
    const shim::Lock lock;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  }
  const char* what() const noexcept override { return message.c_str(); }

  PyObject *type, *value, *traceback;
  std::string message;
};
#pragma GCC visibility pop

namespace shim {

namespace {

// The shim that was put in last. A thread may still call it after it was taken out.
std::atomic<Shim*> current{nullptr};
stable::Library library = nullptr;
thread_local const Call* asked = nullptr;
thread_local bool asked_refused = false;

[[noreturn]] void throw_what_is_set() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* text = value == nullptr ? nullptr : PyObject_Str(value);
  const char* read = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
  std::string message = read == nullptr ? "" : read;
  PyErr_Clear();
  Py_XDECREF(text);
  throw python_error(type, value, traceback, std::move(message));
}

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

// PyTorch's own kernel failed on arguments that it took before: memory is short.
[[noreturn]] void throw_failure() {
  const char* why = stable::torch_exception_get_what_without_backtrace();
  throw std::runtime_error(why == nullptr ? "convolution failed" : why);
}

void forward_kernel(stable::Value* stack, uint64_t, uint64_t) {
  current.load(std::memory_order_acquire)->convolve(stack);
}

void backward_kernel(stable::Value* stack, uint64_t, uint64_t) {
  current.load(std::memory_order_acquire)->differentiate(stack);
}

}  // namespace

Shim::~Shim() {
  Py_XDECREF(conversions_.to_tensors);
  Py_XDECREF(conversions_.to_handle);
  Py_XDECREF(forward_);
  Py_XDECREF(backward_);
  Py_XDECREF(kept_);
  Py_XDECREF(first_only_);
}

bool Shim::put_in() {
  if (library != nullptr) return false;
  if (stable::aoti_torch_library_init_impl("aten", "CPU", "bestof.torch.shim", 0, &library) != 0) {
    library = nullptr;
    return false;
  }
  Shim* before = current.exchange(this, std::memory_order_acq_rel);
  if (stable::torch_library_impl(library, "convolution", forward_kernel, stable::VERSION) == 0 &&
      stable::torch_library_impl(library, "convolution_backward", backward_kernel,
                                 stable::VERSION) == 0)
    return true;
  take_out();
  current.store(before, std::memory_order_release);
  return false;
}

void Shim::take_out() {
  if (library == nullptr || current.load() != this) return;
  stable::aoti_torch_delete_library_object(library);
  library = nullptr;
}

void Shim::set_level(int64_t level) {
  level_.store(level, std::memory_order_relaxed);
  forget();
}

bool Shim::note(uint64_t generation, std::vector<std::shared_ptr<Count>> counts,
                std::shared_ptr<const NativeConvolution> native) {
  return asked != nullptr && known_.note(*asked, generation, std::move(counts), std::move(native));
}

bool Shim::is_refused() {
  return asked_refused;
}

Known* Shim::answer_to(const Call& call, bool is_training) {
  Known* known = known_.find(call);
  // The length of a dict is one word, so it can be read without the interpreter's lock.
  if (known == nullptr || (is_training && PyDict_GET_SIZE(kept_) > 0)) return nullptr;
  const bool is_asked =
      known->turn.fetch_add(1, std::memory_order_relaxed) % ASKED_EVERY == ASKED_EVERY - 1;
  return is_asked ? nullptr : known;
}

void Shim::convolve(stable::Value* stack) {
  Arguments arguments(stack, "TTtLLLbLi");
  const bool is_training = stable::aoti_torch_grad_mode_is_enabled();
  Call call;
  Geometry geometry;
  stable::Tensor* bias = arguments.optional_tensor(2);
  call.add(is_there(bias));
  const bool has_form = describe(arguments.tensor(0), call) &&
                        describe(arguments.tensor(1), call) && geometry.read(arguments, 3, call);
  if (has_form)
    add_state(call, arguments.tensor(0), is_training, level_.load(std::memory_order_relaxed));
  Known* known = has_form ? answer_to(call, is_training) : nullptr;
  stable::Tensor output = nullptr;
  const NativeConvolution* native =
      known == nullptr ? nullptr : known->native.load(std::memory_order_acquire);
  bool refused = false;
  if (native != nullptr) {
    if (is_deterministic() || PyList_GET_SIZE(first_only_) > 0)  // read without the lock too
      known = nullptr;
    else
      refused = !native->run(lent_, arguments.tensor(0), arguments.tensor(1), bias, &output);
  }
  if (known == nullptr || refused)
    return ask(forward_, arguments, has_form ? &call : nullptr, stack, 1, refused);
  known->count();
  int failed = 0;
  if (native == nullptr)
    failed = stable::aoti_torch_cpu_convolution(
        arguments.tensor(0), arguments.tensor(1), bias, geometry.stride, 2, geometry.padding, 2,
        geometry.dilation, 2, 0, geometry.output_padding, 2, geometry.groups, &output);
  arguments.release();
  if (failed != 0) throw_failure();
  stack[0] = reinterpret_cast<stable::Value>(output);
}

void Shim::differentiate(stable::Value* stack) {
  Arguments arguments(stack, "TTTlLLLbLiM");
  Call call;
  Geometry geometry;
  int64_t bias_size = 0, mask[3] = {};
  const size_t bias_sizes = arguments.optional_list(3, &bias_size, 1);
  call.add(static_cast<int64_t>(bias_sizes));
  call.add(bias_size);
  const bool has_form = bias_sizes <= 1 && arguments.list(10, mask, 3) == 3 &&
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
  if (known == nullptr) return ask(backward_, arguments, has_form ? &call : nullptr, stack, 3);
  known->count();
  const int64_t* sizes = &bias_size;
  stable::Tensor gradients[3] = {};
  const int failed = stable::aoti_torch_cpu_convolution_backward(
      arguments.tensor(0), arguments.tensor(1), arguments.tensor(2),
      bias_sizes == 0 ? nullptr : &sizes, bias_sizes, geometry.stride, 2, geometry.padding, 2,
      geometry.dilation, 2, 0, geometry.output_padding, 2, geometry.groups, wanted, 3,
      &gradients[0], &gradients[1], &gradients[2]);
  arguments.release();
  if (failed != 0) throw_failure();
  for (int place = 0; place < 3; ++place)
    stack[place] = reinterpret_cast<stable::Value>(gradients[place]);
}

void Shim::ask(PyObject* function, Arguments& arguments, const Call* call, stable::Value* stack,
               uint64_t results, bool refused) {
  const Call* outer = std::exchange(asked, call);  // an alternative may convolve in turn
  const bool outer_refused = std::exchange(asked_refused, refused);
  const Lock lock;
  PyObject* given = arguments.to_python(conversions_);
  arguments.release();
  PyObject* result = given == nullptr ? nullptr : PyObject_Call(function, given, nullptr);
  Py_XDECREF(given);
  asked = outer;
  asked_refused = outer_refused;
  const bool is_good = result != nullptr && from_python(result, stack, results, conversions_);
  Py_XDECREF(result);
  if (!is_good) throw_what_is_set();
}

}  // namespace shim

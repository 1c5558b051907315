#include "operator_call.h"

#include <cstring>

namespace shim {

namespace {

PyObject* another(PyObject* object) {
  Py_XINCREF(object);
  return object;
}

// The bits of a number or a short text.
int64_t word_of(const void* memory, std::size_t bytes) {
  int64_t word = 0;
  std::memcpy(&word, memory, bytes);
  return word;
}

bool add_tensor(stable::Tensor tensor, Call& call) {
  int32_t dtype = 0;
  int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr;
  if (stable::aoti_torch_get_dim(tensor, &dimensions) != 0 ||
      stable::aoti_torch_get_dtype(tensor, &dtype) != 0 ||
      stable::aoti_torch_get_sizes(tensor, &sizes) != 0 ||
      stable::aoti_torch_get_strides(tensor, &strides) != 0)
    return false;
  const auto count = static_cast<int>(dimensions);
  if (!call.has_place(2 * count + 1)) return false;
  // A dtype is below 256, and dimensions below 2^32.
  call.add(dimensions << 8 | dtype);
  call.add(sizes, count);
  call.add(strides, count);
  return true;
}

bool add_list(const StackList& list, Call& call) {
  if (!call.has_place(static_cast<int>(list.size()) + 1)) return false;
  call.add(static_cast<int64_t>(list.size()));
  for (std::size_t place = 0; place < list.size(); ++place) {
    int64_t item = 0;
    if (!list.read(place, &item)) return false;
    call.add(item);
  }
  return true;
}

PyObject* tuple_of(const StackList& list) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(list.size()));
  for (std::size_t place = 0; tuple != nullptr && place < list.size(); ++place) {
    int64_t item = 0;
    list.read(place, &item);  // as `describe` has
    PyObject* object =
        list.has_truths() ? PyBool_FromLong(static_cast<long>(item)) : PyLong_FromLongLong(item);
    if (object == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(place), object);
    }
  }
  return tuple;
}

}  // namespace

bool OperatorCall::add(const Argument& argument) {
  if (argument_count_ == MOST_ARGUMENTS) return false;
  if (argument.kind == Argument::TENSOR) {
    if (operand_count_ == MOST_OPERANDS) return false;
    operands_[operand_count_++] = argument.tensor;
  }
  arguments_[argument_count_++] = argument;
  return true;
}

bool OperatorCall::describe(Call& call) const {
  for (int place = 0; place < argument_count_; ++place) {
    const Argument& one = arguments_[place];
    if (!call.has_place(3)) return false;
    switch (one.kind) {
      case Argument::TENSOR:
        if (one.tensor == nullptr) {
          call.add(-1);  // dtypes and dimensions are above
        } else if (!add_tensor(one.tensor, call)) {
          return false;
        }
        break;
      case Argument::LIST:
        call.add(one.kind);  // for a list may be absent
        if (!add_list(*one.list, call)) return false;
        break;
      case Argument::TEXT:
        if (one.text->size() > sizeof(int64_t)) return false;
        call.add(one.kind);
        call.add(static_cast<int64_t>(one.text->size()));
        call.add(word_of(one.text->data(), one.text->size()));
        break;
      case Argument::TRUTH:
        call.add(one.truth);
        break;
      default:
        call.add(one.kind);  // for a number may be absent
        call.add(word_of(&one.whole, sizeof(one.whole)));
    }
  }
  return true;
}

PyObject* OperatorCall::arguments(const Conversions& conversions) {
  PyObject* tensors = to_python(operands_, operand_count_, conversions);
  PyObject* tuple = tensors == nullptr ? nullptr : PyTuple_New(argument_count_);
  Py_ssize_t taken = 0;
  for (int place = 0; tuple != nullptr && place < argument_count_; ++place) {
    const Argument& one = arguments_[place];
    PyObject* object = nullptr;
    switch (one.kind) {
      case Argument::TENSOR:
        object = another(one.tensor == nullptr ? Py_None : PyList_GetItem(tensors, taken++));
        break;
      case Argument::ABSENT:
        object = another(Py_None);
        break;
      case Argument::WHOLE:
        object = PyLong_FromLongLong(one.whole);
        break;
      case Argument::REAL:
        object = PyFloat_FromDouble(one.real);
        break;
      case Argument::TRUTH:
        object = PyBool_FromLong(one.truth);
        break;
      case Argument::LIST:
        object = tuple_of(*one.list);
        break;
      case Argument::TEXT:
        object = PyUnicode_FromStringAndSize(one.text->data(),
                                             static_cast<Py_ssize_t>(one.text->size()));
        break;
    }
    if (object == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, place, object);
    }
  }
  Py_XDECREF(tensors);
  return tuple;
}

}  // namespace shim

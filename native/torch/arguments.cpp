#include "arguments.h"

#include <utility>

namespace shim {

namespace {

bool append(stable::Tensor tensor, PyObject* capsules) {
  stable::Tensor handle = nullptr;  // which the conversion steals
  if (stable::aoti_torch_new_tensor_handle(tensor, &handle) != 0) {
    PyErr_NoMemory();
    return false;
  }
  PyObject* capsule = PyCapsule_New(handle, nullptr, nullptr);
  const bool is_added = capsule != nullptr && PyList_Append(capsules, capsule) == 0;
  Py_XDECREF(capsule);
  return is_added;
}

}  // namespace

namespace {

PyObject* tuple_of(stable::Value value, bool truths) {
  const auto list = reinterpret_cast<stable::List>(value);
  size_t size = 0;
  stable::torch_list_size(list, &size);
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(size));
  for (size_t place = 0; tuple != nullptr && place < size; ++place) {
    stable::Value item = 0;
    stable::torch_list_get_item(list, place, &item);
    PyObject* object = truths ? PyBool_FromLong(static_cast<uint8_t>(item))
                              : PyLong_FromLongLong(static_cast<int64_t>(item));
    if (object == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(place), object);
    }
  }
  stable::torch_delete_list(list);
  return tuple;
}

PyObject* another(PyObject* object) {
  Py_XINCREF(object);
  return object;
}

// The value behind an optional one, whose box is freed.
stable::Value unboxed(stable::Value boxed) {
  auto* box = reinterpret_cast<stable::Value*>(boxed);
  const stable::Value value = *box;
  stable::torch_delete_stable_ivalue(box);
  return value;
}

}  // namespace

size_t Arguments::items_of(stable::Value value, int64_t* items, size_t most) {
  const auto list = reinterpret_cast<stable::List>(value);
  size_t size = 0;
  stable::torch_list_size(list, &size);
  for (size_t place = 0; place < size && place < most; ++place) {
    stable::Value item = 0;
    stable::torch_list_get_item(list, place, &item);
    items[place] = static_cast<int64_t>(item);
  }
  return size;
}

PyObject* Arguments::tensors(PyObject* to_tensors) {
  PyObject* capsules = PyList_New(0);
  for (int place = 0; capsules != nullptr && kinds_[place] != 0; ++place) {
    if ((kinds_[place] != 'T' && kinds_[place] != 't') || stack_[place] == 0) continue;
    stable::Value handle = std::exchange(stack_[place], 0);
    if (kinds_[place] == 't') handle = unboxed(handle);
    PyObject* capsule = PyCapsule_New(reinterpret_cast<void*>(handle), nullptr, nullptr);
    if (capsule == nullptr || PyList_Append(capsules, capsule) < 0) Py_CLEAR(capsules);
    Py_XDECREF(capsule);
  }
  PyObject* tensors = capsules == nullptr ? nullptr : PyObject_CallOneArg(to_tensors, capsules);
  Py_XDECREF(capsules);
  return tensors;
}

PyObject* Arguments::to_python(const Conversions& conversions) {
  bool is_there[16] = {};
  Py_ssize_t count = 0;
  for (; kinds_[count] != 0; ++count) is_there[count] = stack_[count] != 0;
  PyObject* tensors = this->tensors(conversions.to_tensors);
  PyObject* tuple = tensors == nullptr ? nullptr : PyTuple_New(count);
  for (Py_ssize_t place = 0, taken = 0; tuple != nullptr && place < count; ++place) {
    const stable::Value value = std::exchange(stack_[place], 0);
    const char kind = kinds_[place];
    PyObject* object = nullptr;
    if (kind == 'b')
      object = PyBool_FromLong(static_cast<uint8_t>(value));
    else if (kind == 'i')
      object = PyLong_FromLongLong(static_cast<int64_t>(value));
    else if (kind == 'L' || kind == 'M')
      object = tuple_of(value, kind == 'M');
    else if (!is_there[place])
      object = another(Py_None);
    else
      object =
          kind == 'l' ? tuple_of(unboxed(value), false) : another(PyList_GetItem(tensors, taken++));
    if (object == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, place, object);
    }
  }
  Py_XDECREF(tensors);
  return tuple;
}

void Arguments::release() {
  for (int place = 0; kinds_[place] != 0; ++place) {
    stable::Value value = stack_[place];
    stack_[place] = 0;
    if (value == 0) continue;
    switch (kinds_[place]) {
      case 't':
        value = unboxed(value);
        [[fallthrough]];
      case 'T':
        stable::aoti_torch_delete_tensor_object(reinterpret_cast<stable::Tensor>(value));
        break;
      case 'l':
        value = unboxed(value);
        [[fallthrough]];
      case 'L':
      case 'M':
        stable::torch_delete_list(reinterpret_cast<stable::List>(value));
        break;
      default:
        break;
    }
  }
  kinds_ = "";
}

PyObject* to_python(const stable::Tensor* tensors, int count, const Conversions& conversions) {
  PyObject* capsules = PyList_New(0);
  for (int place = 0; place < count; ++place) {
    const stable::Tensor one = tensors[place];
    if (capsules != nullptr && one != nullptr && !append(one, capsules)) Py_CLEAR(capsules);
  }
  PyObject* found =
      capsules == nullptr ? nullptr : PyObject_CallOneArg(conversions.to_tensors, capsules);
  Py_XDECREF(capsules);
  return found;
}

bool from_python(PyObject* result, stable::Value* stack, uint64_t results,
                 const Conversions& conversions) {
  const bool is_one = results == 1;
  if (!is_one &&
      (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) != static_cast<Py_ssize_t>(results))) {
    PyErr_Format(PyExc_TypeError, "expected a tuple of %d results; got %R",
                 static_cast<int>(results), result);
    return false;
  }
  stable::Tensor handles[8] = {};
  uint64_t place = 0;
  for (; place < results; ++place) {
    PyObject* one = is_one ? result : PyTuple_GET_ITEM(result, static_cast<Py_ssize_t>(place));
    if (one == Py_None) {
      stable::aoti_torch_new_uninitialized_tensor(&handles[place]);
      continue;
    }
    PyObject* capsule = PyObject_CallOneArg(conversions.to_handle, one);
    if (capsule == nullptr) break;
    handles[place] =
        static_cast<stable::Tensor>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    Py_DECREF(capsule);
    if (handles[place] == nullptr) break;
  }
  if (place < results) {
    for (uint64_t made = 0; made < place; ++made)
      stable::aoti_torch_delete_tensor_object(handles[made]);
    return false;
  }
  for (place = 0; place < results; ++place)
    stack[place] = reinterpret_cast<stable::Value>(handles[place]);
  return true;
}

}  // namespace shim

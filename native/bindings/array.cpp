#include "bindings/array.h"

#include <cstdint>

namespace bestof {

const char* name_of(Element element) {
  return element == Element::kFloat32 ? "float32" : "bfloat16";
}

namespace {

bool holds(nb::dlpack::dtype given, Element element) {
  if (element == Element::kFloat32) return given == nb::dtype<float>();
  const bool bits = given == nb::dtype<std::uint16_t>();
  return bits || (given.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat) &&
                  given.bits == 16 && given.lanes == 1);
}

template <class Type>
Array take(nb::handle value, const char* name, int dimensions, const char* what, Element element) {
  Type array;
  if (!nb::try_cast<Type>(value, array)) {
    refuse(std::string(name) + ": expected " + what + " " + name_of(element) +
           " array on the CPU; got " + nb::str(value.type().attr("__name__")).c_str() +
           ", which cannot be read as one");
  }
  Array result;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    result.shape.push_back(static_cast<long>(array.shape(i)));
    result.strides.push_back(static_cast<long>(array.stride(i)));
  }
  if (!holds(array.dtype(), element)) {
    refuse(std::string(name) + ": expected " + name_of(element) + "; got another element type");
  }
  if (array.device_type() != nb::device::cpu::value)
    refuse(std::string(name) + ": expected an array on the CPU");
  if (dimensions == kAnyRank) dimensions = static_cast<int>(array.ndim());
  if (array.ndim() != static_cast<std::size_t>(dimensions)) {
    refuse(std::string(name) + ": expected " + std::to_string(dimensions) +
           " dimensions; got shape " + describe(result.shape));
  }
  result.data = const_cast<void*>(static_cast<const void*>(array.data()));
  result.element = element;
  result.keep = std::make_shared<Type>(std::move(array));
  return result;
}

Array read(nb::handle value, const char* name, int dimensions, Element element) {
  return take<nb::ndarray<nb::ro>>(value, name, dimensions, "a", element);
}

Array write(nb::handle value, const char* name, int dimensions, Element element) {
  return take<nb::ndarray<>>(value, name, dimensions, "a writeable", element);
}

Array contiguous(Array array, const char* name) {
  long stride = 1;
  for (std::size_t i = array.shape.size(); i-- > 0; stride *= array.shape[i]) {
    if (array.count() > 0 && array.shape[i] != 1 && array.strides[i] != stride) {
      refuse(std::string(name) +
             ": expected a C-contiguous array; got other strides for the shape " +
             describe(array.shape));
    }
  }
  return array;
}

// Returns how many bytes the farthest element in one direction lies beyond the first one.
long reach(const Array& array, bool upwards) {
  long elements = 0;
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    if ((array.strides[i] > 0) == upwards) elements += (array.shape[i] - 1) * array.strides[i];
  }
  return elements *
         static_cast<long>(array.element == Element::kFloat32 ? sizeof(float) : sizeof(Bfloat16));
}

}  // namespace

void refuse(const std::string& message) {
  nb::object error = nb::module_::import_("bestof.errors").attr("KernelError");
  PyErr_SetString(error.ptr(), message.c_str());
  throw nb::python_error();
}

std::string describe(const std::vector<long>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

long Array::count() const {
  long total = 1;
  for (long extent : shape) total *= extent;
  return total;
}

const char* Array::begin() const {
  return reinterpret_cast<const char*>(data) + (count() ? reach(*this, false) : 0);
}

const char* Array::end() const {
  if (count() == 0) return begin();
  return reinterpret_cast<const char*>(data) + reach(*this, true) +
         (element == Element::kFloat32 ? sizeof(float) : sizeof(Bfloat16));
}

Array read_array(nb::handle value, const char* name, int dimensions, Element element) {
  return contiguous(read(value, name, dimensions, element), name);
}

Array write_array(nb::handle value, const char* name, int dimensions, Element element) {
  return contiguous(write(value, name, dimensions, element), name);
}

Array read_strided(nb::handle value, const char* name, Element element) {
  return read(value, name, kAnyRank, element);
}

Array write_strided(nb::handle value, const char* name, Element element) {
  return write(value, name, kAnyRank, element);
}

void expect_shape(const Array& array, const char* name, const std::vector<long>& shape) {
  if (array.shape != shape) {
    refuse(std::string(name) + ": expected shape " + describe(shape) + "; got " +
           describe(array.shape));
  }
}

void expect_apart(const Array& written, const char* name, const Array& other,
                  const char* other_name) {
  if (written.count() == 0 || other.count() == 0) return;
  if (written.begin() < other.end() && other.begin() < written.end()) {
    refuse(std::string(name) + ": expected memory of its own; it overlaps " + other_name);
  }
}

}  // namespace bestof

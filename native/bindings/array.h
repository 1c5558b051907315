// Arrays of the caller, checked before anything is written. Every refusal raises a KernelError.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <vector>

#include "conv/problem.h"

namespace bestof {

namespace nb = nanobind;

const char* name_of(Element element);

// Raises bestof.errors.KernelError.
[[noreturn]] void refuse(const std::string& message);

std::string describe(const std::vector<long>& shape);

// An array on the CPU. `keep` holds the memory while this object lives. `data` is the address of
// its first element. Strides count elements.
struct Array {
  std::shared_ptr<void> keep;
  void* data = nullptr;
  std::vector<long> shape, strides;
  Element element = Element::kFloat32;

  float* floats() const { return static_cast<float*>(data); }  // of a float32 array
  long count() const;
  // The lowest address of an element, and the first address behind all elements.
  const char* begin() const;
  const char* end() const;
};

constexpr int kAnyRank = -1;

// Checks a C-contiguous array that is read. Refusals name the argument `name`. NumPy lacks
// bfloat16, so its bits may come as uint16.
Array read_array(nb::handle value, const char* name, int dimensions,
                 Element element = Element::kFloat32);

// Checks a C-contiguous array that is written.
Array write_array(nb::handle value, const char* name, int dimensions,
                  Element element = Element::kFloat32);

// The same for arrays of any strides.
Array read_strided(nb::handle value, const char* name, Element element);
Array write_strided(nb::handle value, const char* name, Element element);

void expect_shape(const Array& array, const char* name, const std::vector<long>& shape);
void expect_apart(const Array& written, const char* name, const Array& other,
                  const char* other_name);

}  // namespace bestof

// Arrays of the caller, checked at the edge; every refusal is a KernelError that was raised before
// anything is written.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <vector>

#include "conv/problem.h"

namespace bestof {

namespace nb = nanobind;

// Raises bestof.errors.KernelError.
[[noreturn]] void refuse(const std::string& message);

std::string describe(const std::vector<long>& shape);

// A C-contiguous array on the CPU. `keep` holds the memory for as long as this object lives; `data`
// is its address, of Bfloat16 where that is the element.
struct Array {
  std::shared_ptr<void> keep;
  float* data = nullptr;
  std::vector<long> shape;
  Element element = Element::kFloat32;

  long count() const;
  const char* begin() const;
  const char* end() const;
};

constexpr int kAnyRank = -1;

// Reads an array that stays as it is. `name` is the argument that a refusal names. For bfloat16,
// which NumPy lacks, its bits may come as uint16.
Array read_array(nb::handle value, const char* name, int dimensions,
                 Element element = Element::kFloat32);

// The same for one that is written to.
Array write_array(nb::handle value, const char* name, int dimensions,
                  Element element = Element::kFloat32);

void expect_shape(const Array& array, const char* name, const std::vector<long>& shape);
void expect_apart(const Array& written, const char* name, const Array& other,
                  const char* other_name);

}  // namespace bestof

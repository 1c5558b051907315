// Arrays of the caller, checked at the edge; every refusal is a KernelError that was raised before anything is written.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <string>
#include <vector>

namespace bestof {

namespace nb = nanobind;

// Raises bestof.errors.KernelError.
[[noreturn]] void refuse(const std::string& message);

std::string describe(const std::vector<long>& shape);

// A C-contiguous float32 array on the CPU. `keep` holds the memory for as long as this object lives.
struct Array {
  std::shared_ptr<void> keep;
  float* data = nullptr;
  std::vector<long> shape;

  long count() const;
};

constexpr int kAnyRank = -1;

// Reads an array that stays as it is. `name` is the argument that a refusal names.
Array read_array(nb::handle value, const char* name, int dimensions);

// The same for one that is written to.
Array write_array(nb::handle value, const char* name, int dimensions);

void expect_shape(const Array& array, const char* name, const std::vector<long>& shape);
void expect_apart(const Array& written, const char* name, const Array& other, const char* other_name);

}  // namespace bestof

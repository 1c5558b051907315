// Matrix products for Python: the table, packed matrices, runs.
#include "bindings/product.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bindings/module.h"

namespace bestof {

bool fits(const PackedMatrix& packed, const ProductAlgorithm& algorithm, const Product& p) {
  return packed.isa == kernels().isa && packed.algorithm == algorithm.name &&
         packed.shape == Shape{p.depth, p.columns};
}

void expect_fits(const PackedMatrix& packed, const ProductAlgorithm& algorithm, const Product& p) {
  if (fits(packed, algorithm, p)) return;
  refuse("b: expected a matrix packed for " + std::string(algorithm.name) + " on " + kernels().isa +
         " of shape " + describe({p.depth, p.columns}) + "; got one for " + packed.algorithm +
         " on " + packed.isa + " of shape " + describe(packed.shape) + ": pack again");
}

Outcome multiply(const ProductAlgorithm& algorithm, const Product& p, ProductCall call) {
  if (p.batch == 0 || p.rows == 0 || p.columns == 0) return Outcome::kDone;
  const ProductPass& pass = *algorithm.pass;
  call.scratch = scratch(pass.scratch_floats(p, call.packed != nullptr, call.threads));
  if (!call.scratch) return Outcome::kNoMemory;
  pass.run(p, call);
  return guard_stands() ? Outcome::kDone : Outcome::kGuardBroken;
}

void run_product(const ProductAlgorithm& algorithm, const Product& p, const ProductCall& call) {
  Outcome outcome;
  {
    nb::gil_scoped_release release;
    outcome = multiply(algorithm, p, call);
  }
  const std::string what = std::string(algorithm.name) + " of " +
                           describe({p.batch, p.rows, p.depth}) + " by " +
                           describe({p.depth, p.columns});
  if (outcome == Outcome::kNoMemory) refuse("scratch: no memory for " + what);
  if (outcome == Outcome::kGuardBroken) {
    PyErr_SetString(PyExc_SystemError,
                    ("bestof: a kernel wrote past its scratch: " + what).c_str());
    throw nb::python_error();
  }
}

std::unique_ptr<PackedMatrix> pack_matrix(nb::handle b, const std::string& algorithm,
                                          const std::string& dtype, int threads) {
  const Array matrix = read_strided(b, "b", element_of(dtype));
  if (matrix.shape.size() != 2)
    refuse("b: expected 2 dimensions (K, N); got shape " + describe(matrix.shape));
  const Shape a = {1, matrix.shape[0]}, c = {1, matrix.shape[1]};
  const Product p = make_product({a, {a[1], 1}}, {matrix.shape, matrix.strides}, {c, {c[1], 1}},
                                 element_of(dtype));
  const ProductAlgorithm& row = find_product(algorithm, p, true);
  const long floats = row.pass->packed_floats(p);
  auto packed = std::make_unique<PackedMatrix>(
      PackedMatrix{row.name, kernels().isa, matrix.shape, floats * 4, allocate(floats)});
  if (!packed->memory)
    refuse("b: no memory for " + std::to_string(floats * 4) + " bytes of a packed matrix");
  nb::gil_scoped_release release;
  if (floats > 0) row.pass->pack(p, matrix.data, packed->memory.get(), threads);
  return packed;
}

namespace {

// What a row promises for one product.
struct ProductPromise {
  const char* name;
  ErrorBound error;
  long scratch_bytes;
  double flops;
  bool packs;
};

std::vector<ProductPromise> promises(const Product& p, int threads) {
  std::vector<ProductPromise> promised;
  const double growth = std::fmax(1.0, std::sqrt(static_cast<double>(p.depth) / 512.0));
  for (int i = 0; i < kernels().product_count; ++i) {
    const ProductAlgorithm& row = kernels().products[i];
    if (!applies(row, p)) continue;
    const ErrorBound rounding = p.element == Element::kFloat32 ? row.rounding : ErrorBound{};
    const ErrorBound error = {rounding.rms + row.error.rms * growth,
                              rounding.maximum + row.error.maximum * growth};
    promised.push_back({row.name, error, row.pass->scratch_floats(p, false, threads) * 4,
                        2.0 * p.batch * p.rows * p.columns * p.depth, row.pass->pack != nullptr});
  }
  return promised;
}

// Reads an operand that lies as the result does.
Array read_alike(nb::handle given, const char* name, const Array& result, Element element) {
  const Array found = read_strided(given, name, element);
  expect_shape(found, name, result.shape);
  if (found.count() > 0 && found.strides != result.strides) {
    refuse(std::string(name) + ": expected the strides of out, " + describe(result.strides) +
           "; got " + describe(found.strides));
  }
  return found;
}

void matmul(nb::handle a, nb::handle b, nb::handle bias, nb::handle residual, nb::handle factor,
            nb::handle out, const std::string& algorithm, const std::string& dtype,
            const std::string& activation, float slope, int threads) {
  const Element element = element_of(dtype);
  const Activation function = activation_of(activation);
  threads = threads_of(threads);
  const PackedMatrix* packed = nullptr;
  const bool is_packed = nb::try_cast<PackedMatrix*>(b, const_cast<PackedMatrix*&>(packed));
  const Array left = read_strided(a, "a", element), result = write_strided(out, "out", element);
  Array right, offsets, addend, factors;
  if (is_packed) {
    right.shape = packed->shape;
    right.strides = {packed->shape[1], 1};
  } else {
    right = read_strided(b, "b", element);
  }
  expect_shape(result, "out", product_shape(left.shape, right.shape));
  const Product p = make_product({left.shape, left.strides}, {right.shape, right.strides},
                                 {result.shape, result.strides}, element);
  const std::string wanted = algorithm.empty() && is_packed ? packed->algorithm : algorithm;
  const ProductAlgorithm& row = find_product(wanted, p, is_packed);
  if (is_packed) expect_fits(*packed, row, p);
  expect_apart(result, "out", left, "a");
  if (!is_packed) expect_apart(result, "out", right, "b");
  if (!bias.is_none()) {
    offsets = read_array(bias, "bias", 1);
    expect_shape(offsets, "bias", {p.columns});
    expect_apart(result, "out", offsets, "bias");
  }
  if (!residual.is_none()) {
    addend = read_alike(residual, "residual", result, element);
    // Each element is read just before it is written.
    if (addend.data != result.data) expect_apart(result, "out", addend, "residual");
  }
  if (!factor.is_none()) {
    factors = read_alike(factor, "factor", result, element);
    expect_apart(result, "out", factors, "factor");
  }
  run_product(row, p,
              {left.data, right.data, is_packed ? packed->memory.get() : nullptr, result.data,
               offsets.floats(), addend.data, factors.data, function, slope, nullptr, threads});
}

void bind_rows(nb::module_& m) {
  nb::class_<ProductAlgorithm>(m, "ProductRow")
      .def_prop_ro("name", [](const ProductAlgorithm& row) { return row.name; })
      .def_ro("error", &ProductAlgorithm::error)
      .def_ro("rounding", &ProductAlgorithm::rounding)
      .def_prop_ro("relaxed",
                   [](const ProductAlgorithm& row) { return row.accuracy == Accuracy::kRelaxed; })
      .def_ro("few_rows", &ProductAlgorithm::few_rows)
      .def_ro("least_rows", &ProductAlgorithm::least_rows)
      .def_prop_ro("dtypes", [](const ProductAlgorithm& row) { return names_of(row.dtypes); })
      .def_ro("emulated", &ProductAlgorithm::emulated);
  nb::class_<ProductPromise>(m, "ProductPromise")
      .def_prop_ro("name", [](const ProductPromise& promise) { return promise.name; })
      .def_ro("error", &ProductPromise::error)
      .def_ro("scratch_bytes", &ProductPromise::scratch_bytes)
      .def_ro("flops", &ProductPromise::flops)
      .def_ro("packs", &ProductPromise::packs);
  m.def("product_rows", [] {
    return std::vector<ProductAlgorithm>(kernels().products,
                                         kernels().products + kernels().product_count);
  });
}

}  // namespace

void bind_product(nb::module_& m) {
  bind_rows(m);
  nb::class_<Product>(m, "Product")
      .def("__init__", [](Product* self, const Shape& a, const Shape& a_strides, const Shape& b,
                          const Shape& b_strides, const Shape& c, const Shape& c_strides,
                          const std::string& dtype) {
        new (self) Product(
            make_product({a, a_strides}, {b, b_strides}, {c, c_strides}, element_of(dtype)));
      });
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def_ro("algorithm", &PackedMatrix::algorithm)
      .def_ro("isa", &PackedMatrix::isa)
      .def_ro("nbytes", &PackedMatrix::bytes)
      .def_prop_ro("shape", [](const PackedMatrix& b) { return nb::tuple(nb::cast(b.shape)); })
      .def_prop_ro("address",
                   [](const PackedMatrix& b) { return reinterpret_cast<std::size_t>(&b); });
  m.def("product_shape",
        [](const Shape& a, const Shape& b) { return nb::tuple(nb::cast(product_shape(a, b))); });
  m.def("product_promises",
        [](const Product& p, int threads) { return promises(p, threads_of(threads)); });
  m.def("pack_matrix",
        [](nb::handle b, const std::string& algorithm, const std::string& dtype, int threads) {
          return pack_matrix(b, algorithm, dtype, threads_of(threads));
        });
  m.def("matmul", &matmul, nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg());
}

}  // namespace bestof

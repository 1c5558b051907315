// Matrix products with fixed shapes and strides, for Python and for the PyTorch module.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include "bindings/module.h"
#include "bindings/product.h"
#include "bindings/runnable.h"

namespace bestof {
namespace {

// One product and algorithm, checked when the plan is made. A run takes addresses, and neither
// copies nor checks them.
struct ProductPlan final : Runnable {
  Product product;
  const ProductAlgorithm* row;
  std::string isa;
  Activation activation;
  float slope;
  int threads;  // 0: as many as OpenMP uses

  ProductPlan(const Product& p, const std::string& algorithm, const std::string& activation_name,
              float slope_below, int count)
      : product(p),
        row(&find_product(algorithm, p, false)),
        isa(kernels().isa),
        activation(activation_of(activation_name)),
        slope(slope_below),
        threads(count) {}

  ProductCall call(const void* a, const void* b, const PackedMatrix* packed, const float* bias,
                   const void* residual, const void* factor, void* c) const {
    return {a,
            b,
            packed ? packed->memory.get() : nullptr,
            c,
            bias,
            residual,
            factor,
            activation,
            slope,
            nullptr,
            threads > 0 ? threads : omp_get_max_threads()};
  }

  void run(std::size_t a, nb::handle b, std::size_t out, std::size_t bias, std::size_t residual,
           std::size_t factor) const {
    PackedMatrix* packed = nullptr;
    std::size_t address = 0;
    if (nb::try_cast<PackedMatrix*>(b, packed)) {
      expect_fits(*packed, *row, product);
    } else {
      address = nb::cast<std::size_t>(b);
    }
    run_product(
        *row, product,
        call(reinterpret_cast<const void*>(a), reinterpret_cast<const void*>(address), packed,
             reinterpret_cast<const float*>(bias), reinterpret_cast<const void*>(residual),
             reinterpret_cast<const void*>(factor), reinterpret_cast<void*>(out)));
  }

  void run_packed(std::size_t a, const PackedMatrix& b, std::size_t out, std::size_t bias,
                  std::size_t residual, std::size_t factor) const {
    run_product(*row, product,
                call(reinterpret_cast<const void*>(a), nullptr, &b,
                     reinterpret_cast<const float*>(bias), reinterpret_cast<const void*>(residual),
                     reinterpret_cast<const void*>(factor), reinterpret_cast<void*>(out)));
  }

  bool run_on(const void* const* operands, void* const* results,
              const void* packed) const override {
    const auto* kept = static_cast<const PackedMatrix*>(packed);
    if (isa != kernels().isa || (kept && !fits(*kept, *row, product))) return false;
    const auto* bias = static_cast<const float*>(operands[0]);
    return multiply(*row, product,
                    call(operands[1], operands[2], kept, bias, nullptr, nullptr, results[0])) ==
           Outcome::kDone;
  }
};

// A plan with a packed matrix on fixed addresses, checked once. Python keeps the plan and the
// matrix.
struct BoundProduct {
  const ProductPlan& plan;
  const PackedMatrix& b;
  std::size_t a, out, bias, residual, factor;
  const Kernels* table = &kernels();

  BoundProduct(const ProductPlan& one, const PackedMatrix& matrix, std::size_t rows,
               std::size_t result, std::size_t offsets, std::size_t added, std::size_t gate)
      : plan(one), b(matrix), a(rows), out(result), bias(offsets), residual(added), factor(gate) {
    expect_fits(b, *plan.row, plan.product);
  }

  void run() const {
    // Checked again if another instruction set is in use.
    if (table != &kernels()) expect_fits(b, *plan.row, plan.product);
    plan.run_packed(a, b, out, bias, residual, factor);
  }
};

}  // namespace

void bind_product_plan(nb::module_& m) {
  nb::class_<ProductPlan>(m, "ProductPlan")
      .def(nb::init<const Product&, const std::string&, const std::string&, float, int>())
      .def("run", &ProductPlan::run)
      .def_prop_ro("algorithm", [](const ProductPlan& plan) { return plan.row->name; })
      .def_prop_ro("address", [](const ProductPlan& plan) { return plan.address(); });
  nb::class_<BoundProduct>(m, "BoundProduct")
      .def(nb::init<const ProductPlan&, const PackedMatrix&, std::size_t, std::size_t, std::size_t,
                    std::size_t, std::size_t>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("run", &BoundProduct::run);
}

}  // namespace bestof

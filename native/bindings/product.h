// Matrix products: problems from the arguments of Python, packed matrices, and plans.
#pragma once
#include <memory>
#include <string>

#include "bindings/arena.h"
#include "bindings/execute.h"
#include "bindings/problem.h"
#include "gemm/algorithm.h"

namespace bestof {

// Extents and strides of an operand: [rows, columns] or [batch, rows, columns].
struct Layout {
  Shape shape, strides;
};

// Returns the shape of A B, after A and B have been broadcast; refuses shapes that do not fit.
Shape product_shape(const Shape& a, const Shape& b);

// Returns the product of operands that lie so. Refuses strides of C that no product writes.
Product make_product(const Layout& a, const Layout& b, const Layout& c, Element element);

// Returns the row of that name, or for "" the one that serves most callers; refuses one that does
// not apply. `packs` asks for one that packs.
const ProductAlgorithm& find_product(const std::string& name, const Product& p, bool packs);

// B in the layout of an algorithm, packed once for many products.
struct PackedMatrix {
  std::string algorithm, isa;
  Shape shape;  // [depth, columns]
  long bytes;
  Memory memory;
};

std::unique_ptr<PackedMatrix> pack_matrix(nb::handle b, const std::string& algorithm,
                                          const std::string& dtype, int threads);

// Returns whether these were packed for this algorithm, on the instruction set in use, and for this
// product.
bool fits(const PackedMatrix& packed, const ProductAlgorithm& algorithm, const Product& p);

// Refuses packed columns that do not fit.
void expect_fits(const PackedMatrix& packed, const ProductAlgorithm& algorithm, const Product& p);

// Runs an algorithm, without a lock of Python. Writes nothing if memory is short.
Outcome multiply(const ProductAlgorithm& algorithm, const Product& p, ProductCall call);

// Releases Python's lock, which the caller holds, and runs an algorithm; raises a failure.
void run_product(const ProductAlgorithm& algorithm, const Product& p, const ProductCall& call);

}  // namespace bestof

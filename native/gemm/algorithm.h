// An algorithm of the matrix product: what it computes, and what its row of the table says about
// it.
//
// gemm/algorithms.inc has one row for each algorithm. The build, the tables of every instruction
// set, the bindings, the fuzzer and the tests read that list. The code of an algorithm stands in
// gemm/NAME.cpp, which defines `products::NAME`. Nothing else names it.
#pragma once
#include "conv/algorithm.h"
#include "gemm/product.h"

namespace bestof {

// The most rows, or columns, of a result that an algorithm for few rows takes, and the greatest
// depth: it sums in one chain. At a depth of 65,536, equal numbers give an error of 5e-4, where
// 1.1e-4 is promised; at 16,384, 7e-5.
constexpr long kFewRowsMost = 16, kFewRowsDeepest = 1 << 14;

struct ProductPass {
  void (*run)(const Product&, const ProductCall&) = nullptr;
  // Floats of scratch. `packed` tells whether B is given packed.
  long (*scratch_floats)(const Product&, bool packed, int threads) = nullptr;
  // Floats of B in the layout of the algorithm, and the function that writes them; null where it
  // reads B as it lies. The layout depends on `columns` and `depth` alone.
  long (*packed_floats)(const Product&) = nullptr;
  void (*pack)(const Product&, const void* b, float* packed, int threads) = nullptr;
};

// A row of gemm/algorithms.inc.
struct ProductAlgorithm {
  const char* name;
  const ProductPass* pass;
  DtypeColumns dtypes = {};
  // Error of the sums, up to a depth of 512; times sqrt(depth / 512) above.
  ErrorBound error = {};
  Rounds rounds = Rounds::kNothing;
  ErrorBound rounding = {};  // what rounding adds to `error`, whatever the depth
  Accuracy accuracy = Accuracy::kFloat32;
  // Whether the result has at most kFewRowsMost rows, or columns, and the depth is at most
  // kFewRowsDeepest.
  bool few_rows = false;
  long least_rows = 1;    // of the result, from which it may be the fastest; it computes any
  bool emulated = false;  // whether this instruction set lacks the products that it is made of
};

inline bool applies(const ProductAlgorithm& algorithm, const Product& p) {
  const bool few =
      (p.rows <= kFewRowsMost || p.columns <= kFewRowsMost) && p.depth <= kFewRowsDeepest;
  return algorithm.dtypes.take(p.element) && (!algorithm.few_rows || few);
}

}  // namespace bestof

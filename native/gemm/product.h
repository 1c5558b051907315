// What a matrix product is: its problem, and the operands of one call.
#pragma once
#include "conv/problem.h"

namespace bestof {

// Where the elements of a matrix lie: the distances, in elements, of two neighbours in a column, of
// two neighbours in a row, and of one element in two neighbouring matrices of a batch. A distance
// of 0 repeats elements.
struct MatrixStrides {
  long row, column, batch;
};

// C[rows, columns] = A[rows, depth] B[depth, columns], `batch` times. One of c.row and c.column is
// 1; elements of C do not overlap. A and B may lie anyhow.
struct Product {
  long batch, rows, columns, depth;
  MatrixStrides a, b, c;
  Element element = Element::kFloat32;  // of A, B and C
};

// C = activation(A B + bias + residual) * factor; a null pointer leaves its part out.
struct ProductCall {
  const void* a;
  const void* b;        // unused if `packed` is given
  const float* packed;  // B in the layout of the algorithm, the same for the whole batch; or null
  void* c;
  const float* bias;     // [columns]
  const void* residual;  // at the strides of C; may be C
  const void* factor;    // at the strides of C; not C, which holds sums before they are complete
  Activation activation;
  float slope;     // of kLeakyRelu below zero
  float* scratch;  // 64-byte aligned, scratch_floats long
  int threads;
};

}  // namespace bestof

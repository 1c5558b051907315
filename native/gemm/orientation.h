// A matrix product as the tiles see it. The elements of one operand, `rows`, are broadcast; the
// other one, `columns`, is read in vectors from packed panels. A and B take these roles, or, after
// C^T = B^T A^T, B and A.
#pragma once
#include "gemm/panels.h"
#include "gemm/product.h"

namespace bestof {
namespace BESTOF_TARGET {

struct Orientation {
  long batch, rows, columns, depth;
  View row_side, column_side;  // their data is null: only distances count
  long row_batch, column_batch, c_batch;
  long c_row, c_column;  // one of them is 1
  bool swapped;          // whether B is the side of the rows

  BESTOF_INLINE bool turned() const { return c_column != 1; }
  BESTOF_INLINE long c_stride() const { return turned() ? c_column : c_row; }
};

BESTOF_INLINE Orientation as_given(const Product& p) {
  return {p.batch,
          p.rows,
          p.columns,
          p.depth,
          {nullptr, p.a.row, p.a.column},
          {nullptr, p.b.column, p.b.row},
          p.a.batch,
          p.b.batch,
          p.c.batch,
          p.c.row,
          p.c.column,
          false};
}

BESTOF_INLINE Orientation swapped(const Orientation& o) {
  return {o.batch,        o.columns,   o.rows,    o.depth,    o.column_side, o.row_side,
          o.column_batch, o.row_batch, o.c_batch, o.c_column, o.c_row,       !o.swapped};
}

// Chooses the roles. Only a column side whose depth is contiguous must be transposed: the row side
// serves as it lies. Transposing a short A, and C on writing, costs less than transposing a long B.
BESTOF_INLINE Orientation orient(const Product& p, bool packed) {
  const Orientation given = as_given(p);
  if (packed) return given;
  const bool turns = given.column_side.across != 1;
  const bool swap_turns = given.row_side.across != 1;
  if (turns && !swap_turns) return swapped(given);
  if (turns && given.rows < given.columns / 32) return swapped(given);
  return given;
}

}  // namespace BESTOF_TARGET
}  // namespace bestof

// The types of numbers that an algorithm has, as columns of its row.
#pragma once
#include "conv/problem.h"

namespace bestof {

// The types of operands, of results, and of the sums between them.
struct Dtypes {
  Element operands, result, sums;
};

constexpr int kMostDtypes = 2;

// The types that a row has. A row has operands of float32 if it names none.
struct DtypeColumns {
  Dtypes rows[kMostDtypes] = {{Element::kFloat32, Element::kFloat32, Element::kFloat32}};
  int count = 1;

  constexpr bool take(Element operands) const {
    for (int i = 0; i < count; ++i) {
      if (rows[i].operands == operands) return true;
    }
    return false;
  }
};

constexpr Dtypes kOfFloat32 = {Element::kFloat32, Element::kFloat32, Element::kFloat32};
constexpr Dtypes kOfBfloat16 = {Element::kBfloat16, Element::kBfloat16, Element::kFloat32};

}  // namespace bestof

// The distances of heads and tokens in memory.
#pragma once

namespace bestof {

// Distances of elements; 0 where all read the same. Those of one token are side by side.
struct HeadStrides {
  long batch, head, token;
};

}  // namespace bestof

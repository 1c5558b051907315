// What _native offers to other modules of this project: plain C, for two modules share no classes.
// None of it needs Python's lock. `bestof.kernels._native.c_calls()` is the address of the only
// one.
#pragma once

namespace bestof {

struct CCalls {
  // y = x * w + bias by a Plan of the forward pass; x, w, y as bestof.kernels has them, bias may be
  // null. `packed` is null, or the address of PackedWeights to be taken in place of w. False where
  // they are packed for anything else, the plan was made for another instruction set than is in
  // use, or memory is short.
  bool (*convolve)(const void* plan, const float* x, const float* w, const void* packed,
                   const float* bias, float* y);
  // y[i][c][r] = x[i][r][c]; nothing is empty.
  void (*turn)(const float* x, long images, long rows, long columns, float* y);
  // See conv/fingerprint.h.
  unsigned long long (*fingerprint)(const void* memory, long bytes);
};

}  // namespace bestof

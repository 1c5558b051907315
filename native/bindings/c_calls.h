// The functions that _native offers to other modules of this project. They are plain C, for two
// modules share no classes, and need no lock of Python. `bestof.kernels._native.c_calls()` returns
// the address of the table.
#pragma once

namespace bestof {

struct CCalls {
  // Runs a plan at the address of its Runnable: see runnable.h.
  bool (*run)(const void* plan, const void* const* operands, void* const* results,
              const void* packed);
  // Sets y[i][c][r] = x[i][r][c]. No extent is 0.
  void (*turn)(const float* x, long images, long rows, long columns, float* y);
  // See conv/fingerprint.h.
  unsigned long long (*fingerprint)(const void* memory, long bytes);
};

}  // namespace bestof

// The functions that _native offers to other modules of this project. They are plain C, for two
// modules share no classes, and need no lock of Python. `bestof.kernels._native.c_calls()` returns
// the address of the table.
#pragma once

namespace bestof {

struct CCalls {
  // Computes y = x * w + bias by a Plan of the forward pass, in the layouts of bestof.kernels.
  // `bias` may be null. `packed` is null, or the address of PackedWeights that replace w. Returns
  // false if they were packed for another plan, if the plan is of another instruction set than is
  // in use, if the plan looks for elements that stand out and finds one, or if memory is short.
  bool (*convolve)(const void* plan, const float* x, const float* w, const void* packed,
                   const float* bias, float* y);
  // Sets y[i][c][r] = x[i][r][c]. No extent is 0.
  void (*turn)(const float* x, long images, long rows, long columns, float* y);
  // See conv/fingerprint.h.
  unsigned long long (*fingerprint)(const void* memory, long bytes);
  // Computes c = activation(a b + bias + residual) by a MatmulPlan, at its strides and in its
  // dtype. `bias` and `residual` may be null; `residual` may be `c`. `packed` is null, or the
  // address of a PackedMatrix that replaces b. Returns false, and writes nothing, if it was packed
  // for another plan, if the plan is of another instruction set than is in use, or if memory is
  // short.
  bool (*multiply)(const void* plan, const void* a, const void* b, const void* packed,
                   const float* bias, const void* residual, void* c);
  // Computes attention by an AttentionPlan. `mask` and `logsumexp` are null if the plan has none.
  // Returns false, and writes nothing, if memory is short.
  bool (*attend)(const void* plan, const void* q, const void* k, const void* v, const void* mask,
                 void* out, float* logsumexp);
  // Computes the gradients of q, k and v by an AttentionBackwardPlan. The operands are the gradient
  // of the result, q, k, v, the result, the logsumexp and the mask, which is null if the plan has
  // none. Returns false, and writes nothing, if memory is short.
  bool (*attend_backward)(const void* plan, const void* const operands[7],
                          void* const gradients[3]);
};

}  // namespace bestof

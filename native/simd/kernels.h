// The tables that each instruction set exports. It exports nothing else.
#pragma once
#include "activation/activation.h"
#include "attention/backward.h"
#include "attention/forward.h"
#include "channels/channels.h"
#include "conv/algorithm.h"
#include "conv/fingerprint.h"
#include "conv/inverted_residual.h"
#include "conv/outliers.h"
#include "excitation/excitation.h"
#include "frozen_norm/frozen_norm.h"
#include "gemm/algorithm.h"
#include "gemm/peak.h"
#include "loss/focal.h"
#include "norm/group_norm.h"
#include "norm/layer_norm.h"
#include "norm/norm.h"
#include "optim/lamb.h"
#include "pool/pool.h"
#include "random/bernoulli.h"
#include "rotary/rotary.h"
#include "simd/each_isa.h"
#include "softmax/softmax.h"
#include "transpose/blocked.h"

namespace bestof {

struct Kernels {
  const char* isa;
  long lanes;
  const Algorithm* algorithms;
  int algorithm_count;
  const ProductAlgorithm* products;
  int product_count;
  void (*transpose_blocked)(const float* x, const JoinedAxes& axes, float* y, int threads);
  unsigned long long (*fingerprint)(const void* memory, long bytes, int threads);
  int (*outliers)(const void* x, Element element, long images, long height, long width,
                  long channels, int threads);
  const InvertedResidualPass* inverted_residual;
  const InvertedResidualPass* inverted_residual_bf16;  // null where tile registers take its place
  PoolForward* pool_forward;
  PoolBackward* pool_backward;
  FocalLoss* focal_loss;
  LambMoments* lamb_moments;
  LambUpdate* lamb_update;
  FrozenNormForward* frozen_norm_forward;
  FrozenNormBackward* frozen_norm_backward;
  MultiplyAdds* multiply_adds;
  const AttentionPass* attention;
  const AttentionPass* attention_bf16;
  const AttentionBackwardPass* attention_backward;
  Normalize* normalize;
  Rotate* rotate;
  ActivationForward* activation_forward;
  ActivationBackward* activation_backward;
  Softmax* softmax;
  LayerNorm* layer_norm;
  LayerNormBackward* layer_norm_backward;
  GroupNormBackward* group_norm_backward;
  GatherChannels* gather_channels;
  Excite* excite;
  Bernoulli* bernoulli;
};

BESTOF_EACH_ISA(extern const Kernels kKernels;)

}  // namespace bestof

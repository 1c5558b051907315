// The tables of the instruction set for which this file is compiled.
#include "simd/kernels.h"

#include "conv/algorithms.h"
#include "gemm/algorithms.h"

#define BESTOF_QUOTE(name) #name
#define BESTOF_NAME(name) BESTOF_QUOTE(name)

#if defined(__AVX512BF16__)
#define BESTOF_HAS_PAIRS true
#else
#define BESTOF_HAS_PAIRS false
#endif
#if defined(__AMX_BF16__)
#define BESTOF_HAS_TILES true
#else
#define BESTOF_HAS_TILES false
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

namespace rest = BESTOF_REST;

// Tile registers compute attention by a kernel of their own. Its gradients are computed by products
// of bfloat16 wherever there are some.
#if defined(__AMX_BF16__)
namespace tiled = BESTOF_TARGET;
#else
namespace tiled = BESTOF_REST;
#endif
#if defined(__AVX512BF16__)
namespace paired = BESTOF_TARGET;
#else
namespace paired = BESTOF_REST;
#endif

#define BESTOF_ALGORITHM(algorithm, space, ...) \
  {.name = #algorithm, .passes = &bestof::space::passes::algorithm, __VA_ARGS__},
constexpr Algorithm kAlgorithms[] = {
#include "conv/algorithms.inc"
};
#undef BESTOF_ALGORITHM

#define BESTOF_PRODUCT(algorithm, space, ...) \
  {.name = #algorithm, .pass = &bestof::space::products::algorithm, __VA_ARGS__},
constexpr ProductAlgorithm kProducts[] = {
#include "gemm/algorithms.inc"
};
#undef BESTOF_PRODUCT

}  // namespace

const Kernels kKernels = {
    BESTOF_NAME(BESTOF_TARGET),
    kLanes,
    kAlgorithms,
    sizeof(kAlgorithms) / sizeof(kAlgorithms[0]),
    kProducts,
    sizeof(kProducts) / sizeof(kProducts[0]),
    rest::transpose_blocked,
    rest::fingerprint,
    rest::outliers,
    &rest::inverted_residual,
#if defined(__AMX_BF16__)
    nullptr,
#else
    &inverted_residual_bf16,
#endif
    rest::pool_forward,
    rest::pool_backward,
    rest::focal_loss,
    rest::lamb_moments,
    rest::lamb_update,
    rest::frozen_norm_forward,
    rest::frozen_norm_backward,
    rest::multiply_adds,
    &tiled::attention,
    &attention_bf16,
    &paired::attention_backward,
    rest::normalize,
    rest::rotate,
    rest::activation_forward,
    rest::activation_backward,
    rest::softmax,
    rest::layer_norm,
    rest::layer_norm_backward,
    rest::group_norm_backward,
    rest::gather_channels,
    rest::excite,
    rest::bernoulli,
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

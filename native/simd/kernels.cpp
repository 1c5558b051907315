// The tables of the instruction set that is being compiled.
#include "simd/kernels.h"

#include "conv/algorithms.h"

#define BESTOF_QUOTE(name) #name
#define BESTOF_NAME(name) BESTOF_QUOTE(name)

namespace bestof {
namespace BESTOF_TARGET {
namespace {

namespace rest = BESTOF_REST;

constexpr const Algorithm* kAlgorithms[] = {
    &rest::kDirect,
    &rest::kConvgemm,
    &kConvgemmBf16,
    &rest::kIm2row,
    &rest::kWinograd2,
    &rest::kWinograd4,
    &rest::kWinograd6,
    &rest::kWinograd4Row7,
    &rest::kWinograd4Column7,
    &rest::kWinograd2Square5,
    &rest::kWinograd4Square5,
    &rest::kWinograd3Strided,
    &rest::kWinograd3Strided7,
    &rest::kDepthwise,
    &rest::kMatvec,
    &rest::kMatvecBf16,
};

}  // namespace

const Kernels kKernels = {
    BESTOF_NAME(BESTOF_TARGET),
    kLanes,
    kAlgorithms,
    sizeof(kAlgorithms) / sizeof(kAlgorithms[0]),
    rest::transpose_blocked,
    rest::fingerprint,
    rest::pool_forward,
    rest::pool_backward,
    rest::focal_loss,
    rest::multiply_adds,
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

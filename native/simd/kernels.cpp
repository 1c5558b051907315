// The tables of the instruction set that is being compiled.
#include "simd/kernels.h"

#include "conv/algorithms.h"

#define BESTOF_QUOTE(name) #name
#define BESTOF_NAME(name) BESTOF_QUOTE(name)

namespace bestof {
namespace BESTOF_TARGET {
namespace {

constexpr const Algorithm* kAlgorithms[] = {&kDirect,           &kConvgemm,         &kIm2row,        &kWinograd2,
                                            &kWinograd4,        &kWinograd6,        &kWinograd4Row7, &kWinograd4Column7,
                                            &kWinograd2Square5, &kWinograd4Square5, &kDepthwise};

}  // namespace

const Kernels kKernels = {
    BESTOF_NAME(BESTOF_TARGET),
    kLanes,
    kAlgorithms,
    sizeof(kAlgorithms) / sizeof(kAlgorithms[0]),
    transpose_blocked,
    pool_forward,
    pool_backward,
    focal_loss,
    multiply_adds,
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

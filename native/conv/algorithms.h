// The rows of the table, one per file, of the instruction set that is being compiled. One that
// differs from another in a few rows only, and compiles no more, names that other as BESTOF_REST.
#pragma once
#include "conv/algorithm.h"
#include "simd/vector.h"

namespace bestof {
namespace BESTOF_REST {

extern const Algorithm kDirect;
extern const Algorithm kConvgemm;
extern const Algorithm kIm2row;
extern const Algorithm kWinograd2;
extern const Algorithm kWinograd4;
extern const Algorithm kWinograd6;
extern const Algorithm kWinograd4Row7;
extern const Algorithm kWinograd4Column7;
extern const Algorithm kWinograd2Square5;
extern const Algorithm kWinograd4Square5;
extern const Algorithm kWinograd3Strided;
extern const Algorithm kWinograd3Strided7;
extern const Algorithm kDepthwise;
extern const Algorithm kMatvec;
extern const Algorithm kMatvecBf16;

}  // namespace BESTOF_REST

namespace BESTOF_TARGET {

extern const Algorithm kConvgemmBf16;

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Pixels as parts of bfloat16 (gemm/bfloat16_parts.h). Taps share them, so no pixel is scaled. A
// result is multiplied by tiles if the largest magnitude among the pixels that it sees is zero or
// lies within limits, else by vectors. So the bits of a result depend only on what it sees.
#pragma once
#include "gemm/bfloat16_parts.h"

namespace bestof {
namespace BESTOF_TARGET {

// Weights are scaled so that the largest of an output lies within 2^-30 and 2^31. Sums of their
// products with pixels stay below 2^93 times the depth. What tiles take for zero is below 2^-64 of
// the largest of the pixels times the largest of the weights.
constexpr unsigned kLeastPixel = kExponentOfOne - 30, kMostPixel = kExponentOfOne + 60;

BESTOF_INLINE bool fits_tiles(unsigned largest) {
  return largest == 0 || (largest >= kLeastPixel << 23 && largest < (kMostPixel + 1) << 23);
}

// Splits pixels, and finds out whether all results that see them fit tiles.
class PixelSplitter {
 public:
  // Splits the channels of one group. Those of the parts lie `apart` elements apart.
  BESTOF_INLINE void split(const float* from, long count, long apart, Bfloat16* to) {
    VecInt most = VecInt{};
    for (long k = 0; k < count; k += kTileDepth, to += kTileDepth) {
      const long left = count - k;
      const Vec low = left >= kLanes ? load(from + k) : load_first(from + k, left);
      const Vec high = left >= kTileDepth ? load(from + k + kLanes)
                                          : load_first(from + k + kLanes, larger(left - kLanes, 0));
      most = larger_magnitude(larger_magnitude(most, low), high);
      const Parts parts = split_row(low, high);
#pragma GCC unroll 3
      for (int i = 0; i < kParts; ++i) store_line(to + i * apart, parts.part[i]);
    }
    most_ = most_ > most ? most_ : most;
    const auto bits = reinterpret_cast<__m512i>(most);
    const bool usual = _mm512_cmpge_epi32_mask(bits, _mm512_set1_epi32(kLeastPixel << 23)) != 0;
    small_ |= !usual && _mm512_test_epi32_mask(bits, bits) != 0;
  }

  // Whether each pixel so far is zero, or has a magnitude within the limits.
  bool all_fit() const {
    const auto beyond = _mm512_cmpge_epi32_mask(reinterpret_cast<__m512i>(most_),
                                                _mm512_set1_epi32((kMostPixel + 1) << 23));
    return !small_ && beyond == 0;
  }

 private:
  VecInt most_ = VecInt{};
  bool small_ = false;
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// The next panel of columns, split into parts piece by piece while tile registers multiply another
// panel: tiles and vectors then work side by side, and what comes from memory has time to arrive.
#pragma once
#include "gemm/panel_parts.h"

namespace bestof {
namespace BESTOF_TARGET {

// A panel of float32: `columns` <= kPanel columns of `depth` steps.
struct PanelSource {
  View view;
  long depth, columns;
  const ScaleExponent* scale;  // of kPanel columns, or null if the magnitudes are not known
};

// A panel in parts, and the scales of its columns.
struct SplitPanel {
  const Bfloat16* parts;
  const ScaleExponent* scale;
};

// Magnitudes that nobody asks for.
struct NoMagnitudes {
  BESTOF_INLINE void add(int, Vec) {}
};

class ComingPanel {
 public:
  // parts: [2][longest panel], `panel` elements each. scale: [2][kPanel].
  ComingPanel(Bfloat16* parts, long panel, ScaleExponent* scale)
      : parts_(parts), panel_(panel), scale_(scale) {}

  // Begins a panel, of which `calls` calls of proceed() split equal shares.
  void begin(const PanelSource& source, long calls) {
    source_ = source;
    used_ = 1 - used_;
    piece_ = 0;
    pieces_ = divide_up(source.depth, kTileDepth) * kPairs;
    share_ = pieces_;
    calls_ = larger(calls, 1);
    fetches_ = calls_ <= kFetchingCalls * pieces_ || (source.view.along != 1 && !source.scale);
    magnitudes_ = {};
    for (Vec& factor : factor_) factor = broadcast(1.0f);
    if (source.scale) factors_of(source.scale, factor_);
  }

  BESTOF_INLINE void proceed() {
    for (credit_ += share_; credit_ >= calls_; credit_ -= calls_) split_next();
  }

  // Splits what is left, and returns the panel. It stays until the panel after the next one begins.
  SplitPanel finish() {
    while (piece_ < pieces_) split_next();
    share_ = credit_ = 0;
    if (source_.scale) return {parts(), source_.scale};
    ScaleExponent* scale = scale_ + used_ * kPanel;
    if (scales_of(magnitudes_, scale)) {
      factors_of(scale, factor_);
      split_columns<Pairing::kNeighbours>(source_.view, source_.depth, source_.columns, factor_,
                                          parts());
    }
    return {parts(), scale};
  }

 private:
  // A panel in one piece is fetched by the processor, which costs nothing. Asking for it helps if
  // few rows give it little time: cold weights take 0.94 of the time with 64 rows, but 1.06 with
  // 512.
  static constexpr long kFetchingCalls = 2;
  static constexpr long kHalfPairs = kPairs / 2, kHalfDepth = kTileDepth / 2;

  Bfloat16* parts() const { return parts_ + used_ * panel_; }

  // Splits one pair of each column.
  __attribute__((noinline)) void split_next() {
    if (piece_ >= pieces_) return;
    const long step = piece_ / kPairs, pair = piece_ % kPairs, k = step * kTileDepth;
    ++piece_;
    const View from = source_.view.at(0, k);
    const long left = source_.depth - k;
    const float* rows = step_;
    long stride = kPanel;
    if (from.across == 1 && source_.columns == kPanel && left >= kTileDepth) {
      rows = from.data;
      stride = from.along;
    } else if (pair % kHalfPairs == 0) {
      const long first = 2 * pair;
      copy_step(from, left, source_.columns, first, first + kHalfDepth, step_);
    }
    if (fetches_) fetch(from, pair);
    Bfloat16* to = parts() + step * kStepElements;
    if (source_.scale) {
      NoMagnitudes none;
      split_pairs_of<Pairing::kNeighbours>(rows, stride, pair, pair + 1, factor_, to, none);
    } else {
      split_pairs_of<Pairing::kNeighbours>(rows, stride, pair, pair + 1, factor_, to, magnitudes_);
    }
  }

  // Asks for a pair's share of the next step.
  BESTOF_INLINE void fetch(const View& from, long pair) const {
    if (from.across == 1) {
      for (long k = kTileDepth + 2 * pair; k < kTileDepth + 2 * pair + 2; ++k) {
        __builtin_prefetch(from.data + k * from.along, 0, 2);
        __builtin_prefetch(from.data + k * from.along + kLanes, 0, 2);
      }
    } else if (from.along == 1) {
      for (long j = 2 * pair; j < smaller(2 * pair + 2, source_.columns); ++j) {
        __builtin_prefetch(from.data + j * from.across + kTileDepth, 0, 2);
        __builtin_prefetch(from.data + j * from.across + kTileDepth + kLanes, 0, 2);
      }
    }
  }

  Bfloat16* parts_;
  long panel_;
  ScaleExponent* scale_;
  PanelSource source_ = {};
  long used_ = 0, piece_ = 0, pieces_ = 0;
  bool fetches_ = false;
  long share_ = 0, calls_ = 1, credit_ = 0;
  LargestMagnitudes magnitudes_;
  Vec factor_[kPanelVectors];
  alignas(64) float step_[kTileDepth * kPanel];
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

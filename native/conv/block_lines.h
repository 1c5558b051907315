// The cache lines of images that a block of Winograd tiles reads or writes, asked for while products are computed.
#pragma once
#include "conv/winograd_tiles.h"

namespace bestof {
namespace BESTOF_TARGET {

// Rows of pixels, in the order in which they are asked for, so many lines at a time. A block rarely spans more than two
// rows of tiles; what finds no room is met cold.
class BlockLines {
 public:
  // The pixels under `count` tiles from `first` on, of `height` x `width` pixels of `channels` each, and `rim` rows
  // above and below them.
  template <int M>
  void add(const TilePlan& t, const float* image, long height, long width, long channels, long first, long count,
           long rim) {
    const long plane = t.tiles_y * t.tiles_x, row = width * channels, end = first + count;
    while (first < end) {
      const long n = first / plane, tile_y = first % plane / t.tiles_x, tile_x = first % t.tiles_x;
      const long run = smaller(t.tiles_x - tile_x, end - first);
      const long x0 = tile_x * M, floats = (smaller(x0 + run * M, width) - x0) * channels;
      for (long y = larger(tile_y * M - rim, 0); y < smaller((tile_y + 1) * M + rim, height); ++y) {
        if (rows_ < kMostRows) row_[rows_++] = {image + (n * height + y) * row + x0 * channels, divide_up(floats, 16)};
      }
      first += run;
    }
  }

  // Spreads them over so many calls of `ask`.
  void spread(long calls) {
    long lines = 0;
    for (int i = 0; i < rows_; ++i) lines += row_[i].lines;
    each_ = divide_up(lines, calls);
  }

  BESTOF_INLINE void ask() {
    for (long left = each_; left > 0 && now_ < rows_;) {
      Row& row = row_[now_];
      const long lines = smaller(left, row.lines);
      for (long i = 0; i < lines; ++i) __builtin_prefetch(row.at + i * 16, 0, 2);
      row.at += lines * 16;
      row.lines -= lines;
      left -= lines;
      if (row.lines == 0) ++now_;
    }
  }

 private:
  static constexpr int kMostRows = 48;
  struct Row {
    const float* at;
    long lines;
  };
  Row row_[kMostRows];
  int rows_ = 0, now_ = 0;
  long each_ = 0;
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

// Prefetches the cache lines of images that a block of Winograd tiles reads or writes, while
// products are computed.
#pragma once
#include "conv/winograd_tiles.h"

namespace bestof {
namespace BESTOF_TARGET {

// The pixels of a tile: its rows and columns, and the rows above and below
// it.
struct TilePixels {
  long rows, columns, above, below;
};

// Rows of pixels, and how many of their lines are prefetched at a time, in this order. Rows beyond
// kMostRows are left out: a block of 28 tiles has up to 70 rows on images of 14 columns, 20 on
// those of 224.
class BlockLines {
 public:
  // Adds the pixels of `count` tiles from `first` on, in images of `height` x `width` pixels, which
  // lie `pitch` elements apart.
  template <class Element>
  void add(const TilePlan& t, const Element* image, long height, long width, long channels,
           long pitch, long first, long count, const TilePixels& pixels) {
    constexpr long kBytes = sizeof(Element);
    const long plane = t.tiles_y * t.tiles_x, row = width * pitch, end = first + count;
    while (first < end) {
      const long n = first / plane, tile_y = first % plane / t.tiles_x, tile_x = first % t.tiles_x;
      const long run = smaller(t.tiles_x - tile_x, end - first);
      const long x0 = tile_x * pixels.columns,
                 columns = smaller(x0 + run * pixels.columns, width) - x0;
      for (long y = larger(tile_y * pixels.rows - pixels.above, 0);
           y < smaller((tile_y + 1) * pixels.rows + pixels.below, height); ++y) {
        if (columns <= 0 || rows_ == kMostRows) break;
        const char* at = reinterpret_cast<const char*>(image + (n * height + y) * row + x0 * pitch);
        const long lines = divide_up(channels * kBytes, kLine);
        row_[rows_++] = pitch == channels
                            ? Row{at, divide_up(columns * channels * kBytes, kLine), 1, 0, 0}
                            : Row{at, lines, columns, lines, pitch * kBytes - lines * kLine};
      }
      first += run;
    }
  }

  // Spreads them over `calls` calls of `ask`.
  void spread(long calls) {
    long lines = 0;
    for (int i = 0; i < rows_; ++i) lines += row_[i].runs * row_[i].lines;
    each_ = divide_up(lines, calls);
  }

  BESTOF_INLINE void ask() {
    for (long left = each_; left > 0 && now_ < rows_;) {
      Row& row = row_[now_];
      const long lines = smaller(left, row.lines);
      for (long i = 0; i < lines; ++i) __builtin_prefetch(row.at + i * kLine, 0, 2);
      row.at += lines * kLine;
      row.lines -= lines;
      left -= lines;
      if (row.lines > 0) continue;
      if (--row.runs == 0) {
        ++now_;
      } else {
        row.at += row.skipped;
        row.lines = row.each;
      }
    }
  }

 private:
  static constexpr int kMostRows = 128;
  static constexpr long kLine = 64;  // bytes
  // `runs` runs of lines. `lines` are left of the first one; the others have `each`, and `skipped`
  // bytes lie between two of them.
  struct Row {
    const char* at;
    long lines, runs, each, skipped;
  };
  Row row_[kMostRows];
  int rows_ = 0, now_ = 0;
  long each_ = 0;
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

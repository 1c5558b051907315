// In which order the tiles of a block lie in V and in the products.
#pragma once
#include "conv/winograd_tiles.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

// A tile by its place in the image, and how many of its results lie there.
struct Tile {
  long n, y, x, rows, columns;
};

inline Tile tile_at(const TilePlan& t, long index) {
  const long line = index / t.tiles_x, n = line / t.tiles_y;
  Tile tile = {n, line - n * t.tiles_y, index - line * t.tiles_x, t.side, t.side};
  if (tile.y == t.tiles_y - 1) tile.rows = t.last_rows;
  if (tile.x == t.tiles_x - 1) tile.columns = t.last_columns;
  return tile;
}

// Which frequency of F(M, 3) the i-th of Winograd<results, 3, M> is; and whether it has frequency i
// of F(M, 3).
template <int M>
constexpr long frequency_at(long results, long i) {
  return results % 2 == 0 && i == results + 1 ? M + 1 : i;
}
template <int M>
constexpr bool has_frequency(long results, long i) {
  return results % 2 == 0 ? i < results + 1 || i == M + 1 : i < results + 2;
}

// The tiles of a block that is a run of tiles in the order of pixels. One at the end of a row or
// column of which fewer results lie in the image has fewer frequencies: 14 x 14 results by F(4, 3)
// have 484 products a pair of channels, not 576; 7 x 7 have 121 and not 144. First come the tiles
// that are short along x alone, then those that are not, then those short along y alone, then those
// short in both, so that for each frequency the tiles that have it lie together.
class TileOrder {
 public:
  struct Run {
    long begin, count;
  };

  TileOrder(const TilePlan& t, long first, long count)
      : plan_(t), before_(kinds_before(tile_at(t, first), first)) {
    const Kinds all = kinds_before(tile_at(t, first + count), first + count);
    count_ = {all.columns - before_.columns, all.whole - before_.whole, all.rows - before_.rows,
              all.both - before_.both};
  }

  long place(const Tile& tile) const {
    const long index = (tile.n * plan_.tiles_y + tile.y) * plan_.tiles_x + tile.x;
    const Kinds here = kinds_before(tile, index);
    const bool rows = tile.rows < plan_.side, columns = tile.columns < plan_.side;
    if (rows && columns)
      return count_.columns + count_.whole + count_.rows + here.both - before_.both;
    if (rows) return count_.columns + count_.whole + here.rows - before_.rows;
    if (columns) return here.columns - before_.columns;
    return count_.columns + here.whole - before_.whole;
  }

  // The tiles that have frequency `xi` of F(M, 3)^2.
  template <int M>
  Run run(long xi) const {
    return run(has_frequency<M>(plan_.last_rows, xi / (M + 2)),
               has_frequency<M>(plan_.last_columns, xi % (M + 2)));
  }

  // In how many tiles of the micro-kernel they are multiplied, by all frequencies.
  template <int M>
  long parts() const {
    const long rows = plan_.last_rows + 2,
               columns = plan_.last_columns + 2;  // frequencies that all tiles have
    return rows * columns * parts(true, true) + (M + 2 - rows) * columns * parts(false, true) +
           (M + 2 - columns) * (rows * parts(true, false) + (M + 2 - rows) * parts(false, false));
  }

 private:
  // How many tiles are short along x alone, along neither axis, along y alone, along both.
  struct Kinds {
    long columns, whole, rows, both;
  };

  Kinds kinds_before(const Tile& tile, long index) const {
    const bool short_rows = plan_.last_rows < plan_.side,
               short_columns = plan_.last_columns < plan_.side;
    const long in_last_row = tile.y == plan_.tiles_y - 1 ? tile.x : 0;
    const long columns = short_columns ? tile.n * plan_.tiles_y + tile.y : 0;
    const long rows = short_rows ? tile.n * plan_.tiles_x + in_last_row : 0;
    const long both = short_rows && short_columns ? tile.n : 0;
    return {columns - both, index - columns - rows + both, rows - both, both};
  }

  // The tiles that have a frequency which those short along y have, or lack; and those short along
  // x.
  Run run(bool rows, bool columns) const {
    const long begin = columns ? 0 : count_.columns;
    const long end =
        count_.columns + count_.whole + (rows ? count_.rows + (columns ? count_.both : 0) : 0);
    return {begin, end - begin};
  }

  long parts(bool rows, bool columns) const { return cut_rows(run(rows, columns).count).tiles; }

  const TilePlan& plan_;
  const Kinds before_;
  Kinds count_;
};

}  // namespace BESTOF_TARGET
}  // namespace bestof

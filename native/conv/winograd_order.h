// The order in which the tiles of a block lie in V and in the products.
#pragma once
#include "conv/winograd_tiles.h"
#include "gemm/micro_kernel.h"

namespace bestof {
namespace BESTOF_TARGET {

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

// Tiles that lie together in V and in the products.
struct TileRun {
  long begin, count;
};

// The order of tiles that all have every frequency: by number.
class NumberedOrder {
 public:
  NumberedOrder(const TilePlan&, long first, long count) : first_(first), count_(count) {}

  long place(long index, const Tile&) const { return index - first_; }
  TileRun run(long) const { return {0, count_}; }
  long parts(long frequencies) const { return frequencies * cut_rows(count_).tiles; }

 private:
  const long first_, count_;
};

// The order of tiles of F(M x M, 3 x 3) that leaves out products.
//
// A tile at the end of a row or column has fewer results inside the image, and so fewer
// frequencies: 14 x 14 results by F(4, 3) have 484 products a pair of channels instead of 576;
// 7 x 7 have 121 instead of 144. The order is: tiles short along x alone, whole tiles, tiles
// short along y alone, tiles short in both. So for any frequency, the tiles that have it lie
// together.
template <int M>
class ShortTilesOrder {
 public:
  ShortTilesOrder(const TilePlan& t, long first, long count)
      : plan_(t), before_(kinds_before(tile_at(t, first), first)) {
    const Kinds all = kinds_before(tile_at(t, first + count), first + count);
    count_ = {all.columns - before_.columns, all.whole - before_.whole, all.rows - before_.rows,
              all.both - before_.both};
  }

  long place(long index, const Tile& tile) const {
    const Kinds here = kinds_before(tile, index);
    const bool rows = tile.rows < M, columns = tile.columns < M;
    if (rows && columns)
      return count_.columns + count_.whole + count_.rows + here.both - before_.both;
    if (rows) return count_.columns + count_.whole + here.rows - before_.rows;
    if (columns) return here.columns - before_.columns;
    return count_.columns + here.whole - before_.whole;
  }

  // Returns the tiles that have frequency `xi`.
  TileRun run(long xi) const {
    return run(has_frequency<M>(plan_.last_rows, xi / (M + 2)),
               has_frequency<M>(plan_.last_columns, xi % (M + 2)));
  }

  // The number of micro-kernel tiles that all frequencies take together.
  long parts(long) const {
    const long rows = plan_.last_rows + 2,
               columns = plan_.last_columns + 2;  // frequencies that all tiles have
    return rows * columns * parts(true, true) + (M + 2 - rows) * columns * parts(false, true) +
           (M + 2 - columns) * (rows * parts(true, false) + (M + 2 - rows) * parts(false, false));
  }

 private:
  // The numbers of tiles short along x alone, along neither axis, along y alone, along both.
  struct Kinds {
    long columns, whole, rows, both;
  };

  Kinds kinds_before(const Tile& tile, long index) const {
    const bool short_rows = plan_.last_rows < M, short_columns = plan_.last_columns < M;
    const long in_last_row = tile.y == plan_.tiles_y - 1 ? tile.x : 0;
    const long columns = short_columns ? tile.n * plan_.tiles_y + tile.y : 0;
    const long rows = short_rows ? tile.n * plan_.tiles_x + in_last_row : 0;
    const long both = short_rows && short_columns ? tile.n : 0;
    return {columns - both, index - columns - rows + both, rows - both, both};
  }

  // The tiles that have a frequency which those short along y have, or lack; and those short along
  // x.
  TileRun run(bool rows, bool columns) const {
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

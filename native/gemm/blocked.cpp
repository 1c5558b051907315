// The product of matrices of any size, in blocks. A block of rows stays in L2, and a panel of
// columns passes it once. Both are packed in the call, from any orientation, unless B was packed
// before. Each thread has a part of C of its own; if C has too few tiles, also a part of the depth.
#include <omp.h>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#include "gemm/orientation.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Tiles of a block of rows: about 168 rows of 768 floats take half of an L2 of 1 MiB.
constexpr long kBlockTiles = 168 / kTileRows;
// Up to so many tiles are not cut into two blocks: the second would read packed columns from L3.
// 197 rows of 768 take 0.93 of the time if B is packed in the call (Xeon with 2 MiB of L2).
constexpr long kUncutTiles = kBlockTiles * 3 / 2;
// Columns that are packed for several blocks of rows.
constexpr long kColumnBlock = 1024;
// Parts of the depth are at least this long.
constexpr long kLeastDepth = 256;

// Blocks of depth of nearly the same length; 16 for no depth.
long block_length(long depth) {
  return round_up(larger(divide_up(depth, larger(divide_up(depth, kDepthBlock), 1)), 1), 16);
}

// How many parts the rows, the columns and the depth are cut into.
struct Cut {
  long rows, columns, depth;

  long count() const { return rows * columns * depth; }
};

// A batch that does not feed all threads evenly is cut further.
long wanted_parts(long batch, long threads) {
  long parts = 1;
  while (batch * parts < 4 * threads && batch * parts % threads != 0) ++parts;
  return parts;
}

Cut cut_parts(const Orientation& o, bool packed, long threads) {
  const long tiles = divide_up(o.rows, kTileRows), panels = divide_up(o.columns, kPanel);
  const long parts = wanted_parts(o.batch, threads);
  Cut best = {1, 1, 1};
  // Each part packs its rows and its columns, so these should be few in all.
  double least = 0.0;
  for (long rows = 1; rows <= smaller(parts, tiles); ++rows) {
    const long columns = smaller(divide_up(parts, rows), panels);
    const double tiles_each = 1.0 * divide_up(tiles, rows) * divide_up(panels, columns);
    const double copies = 1.0 * rows * o.columns + 1.0 * columns * o.rows;
    const double cost = tiles_each * (o.rows + o.columns) + 1e-3 * copies;
    if (rows == 1 || cost < least) {
      least = cost;
      best = {rows, columns, 1};
    }
  }
  const long left = parts / (best.rows * best.columns);
  const long most = packed ? divide_up(o.depth, block_length(o.depth)) : o.depth / kLeastDepth;
  best.depth = larger(smaller(left, most), 1);
  return best;
}

// The scratch of a call: sums of the parts of the depth, then rows and columns of each thread.
struct Scratch {
  long sums, rows, columns;

  long thread() const { return rows + columns; }
};

Scratch scratch_of(const Orientation& o, const Cut& cut, bool packed) {
  const long most = kUncutTiles * kTileRows, rows = divide_up(o.rows, cut.rows);
  const long columns = smaller(round_up(o.columns, kPanel), rows <= most ? kPanel : kColumnBlock);
  const long length = smaller(kDepthBlock, round_up(o.depth, 16));
  return {cut.depth > 1 ? round_up(cut.depth * o.batch * o.rows * o.columns, 16) : 0,
          smaller(rows, most) * kCopyStride, packed ? 0 : columns * length};
}

// One part of the product, by one thread: rows x columns results, over a part of the depth.
struct Part {
  View rows, columns;   // at the first row, column and step of the part
  const float* packed;  // packed columns, at the first step, or null
  long packed_columns;  // how many columns these are
  long first_column;    // of the part, among them
  long row_count, column_count, depth;
  long length;           // of the blocks of depth
  Target<float> target;  // of result (0, 0) after the last block of depth
  float* row_buffer;
  float* column_buffer;
};

// The rows of a block as the tiles read them, and the first tile of the block.
struct BlockRows {
  View view;
  bool copied;
  long first, last, begin;  // tiles; the row of the first
};

// Into how many blocks the tiles of a part are cut.
long blocks_of(long tiles) {
  return tiles <= kUncutTiles ? 1 : divide_up(tiles, kBlockTiles);
}

bool copies_rows(const Part& part, long blocks) {
  if (part.rows.along != 1 && part.rows.across != 1) return true;
  if (part.column_count <= 4 * kPanel) return false;
  const bool collide = part.rows.across * static_cast<long>(sizeof(float)) % 1024 == 0;
  return blocks > 1 || collide || part.rows.along != 1;
}

// Copies rows that lie by depth, a step of all tiles of the block at a time. A step often begins a
// page of its own, and tile by tile each would be looked up again: products of a transposed a took
// 1.04 to 1.14 times as long (Zen 5, one thread).
void copy_steps(const TileCut& tiles, const BlockRows& block, const View& rows, long depth,
                float* buffer) {
  const long count = tiles.begin(block.last) - block.begin;
  for (long k = 0; k < depth; ++k) {
    const float* row = rows.data + block.begin + k * rows.along;
    for (long i = 0; i < count; i += kLanes)
      __builtin_prefetch(row + kRowsAhead * rows.along + i, 0, 2);
    for (long tile = block.first; tile < block.last; ++tile) {
      const long at = tiles.begin(tile) - block.begin;
      const long height = tiles.begin(tile + 1) - tiles.begin(tile);
      float* to = buffer + at * depth + k * height;
      for (long i = 0; i < height; i += kLanes) {
        const long n = smaller(height - i, kLanes);
        store_first(to + i, load_first(row + at + i, n), n);
      }
    }
  }
}

// Copies the rows of a block of `depth` steps.
View copy_block(const TileCut& tiles, const BlockRows& block, const View& rows, long depth,
                float* buffer) {
  if (rows.along != 1 && rows.across == 1) {
    copy_steps(tiles, block, rows, depth, buffer);
    return {buffer, 1, 0};
  }
  for (long tile = block.first; tile < block.last; ++tile) {
    const long begin = tiles.begin(tile), height = tiles.begin(tile + 1) - begin;
    copy_rows_of_tile(rows.at(begin, 0), depth, height,
                      buffer + (begin - block.begin) * kCopyStride);
  }
  return {buffer, kCopyStride, 1};
}

// What tile `tile` of a block asks for: its share of kPanel x depth floats at `next`, or nothing.
// The first tile of a panel would otherwise wait for L3 or memory.
Fetch fetch_of(const float* next, long tile, long tiles, long depth) {
  const long step = divide_up(kPanel, tiles);
  return {next + smaller(tile * step, kPanel) * depth, step};
}

// Multiplies a tile by a panel.
BESTOF_INLINE void multiply_tile(const BlockRows& block, long begin, long height,
                                 const Panel& panel, long depth, long columns,
                                 const Target<float>& to, const Fetch& fetch) {
  const View& rows = block.view;
  const long copied = begin - block.begin;
  if (block.copied && rows.along == 1) {
    product_tile_of<Lie::kCopied>(height, rows.data + copied * kCopyStride, 0, panel, depth,
                                  columns, to, fetch);
  } else if (block.copied) {
    product_tile_of<Lie::kByDepth>(height, rows.data + copied * depth, height, panel, depth,
                                   columns, to, fetch);
  } else if (rows.along == 1) {
    product_tile_of<Lie::kByRow>(height, rows.data + begin * rows.across, rows.across, panel, depth,
                                 columns, to, fetch);
  } else {
    product_tile_of<Lie::kByDepth>(height, rows.data + begin, rows.along, panel, depth, columns, to,
                                   fetch);
  }
}

// The columns that a block of rows is multiplied by: panels that lie `step` apart. If `packed` is
// not null, each is packed there, from `source`, when the first tile meets it.
struct BlockColumns {
  View source;
  float* packed;
  const float* panels;
  long step, count;

  const float* panel(long j) const { return panels + j / kPanel * step; }
};

// Multiplies a block of rows by `depth` steps of its columns.
void multiply_block(const TileCut& tiles, const BlockRows& block, const BlockColumns& columns,
                    long depth, const Target<float>& target) {
  for (long j = 0; j < columns.count; j += kPanel) {
    const long count = smaller(columns.count - j, kPanel);
    const long next = j + kPanel < columns.count ? j + kPanel : j;
    float* to = columns.packed ? columns.packed + j / kPanel * columns.step : nullptr;
    const bool passing = to && count == kPanel && columns.source.across == 1;
    if (to && !passing) pack_columns(columns.source.at(j, 0), depth, count, to);
    // Columns that will be turned can be asked for if they lie side by side.
    const float* coming = columns.panel(to ? j : next);
    if (to && columns.source.across == depth) coming = columns.source.at(next, 0).data;
    for (long tile = block.first; tile < block.last; ++tile) {
      const long begin = tiles.begin(tile), height = tiles.begin(tile + 1) - begin;
      Panel panel = {columns.panel(j), kPanel, nullptr};
      if (passing && tile == block.first)
        panel = {columns.source.data + j, columns.source.along, to};
      const Fetch fetch = fetch_of(coming, tile - block.first, block.last - block.first, depth);
      multiply_tile(block, begin, height, panel, depth, count, target_at(target, begin, j), fetch);
    }
  }
}

// Multiplies one block of depth, `depth` steps from k on, by columns [first, last) of the part.
void multiply_depth(const Part& part, long k, long depth, long first, long last) {
  const TileCut tiles = cut_rows(part.row_count);
  const long blocks = blocks_of(tiles.tiles);
  const bool copy = copies_rows(part, blocks);
  Target<float> target = target_at(part.target, 0, first);
  if (k > 0) target.added = target.c;
  if (k + depth < part.depth) {
    target.bias = nullptr;
    target.factor = nullptr;
    target.activation = Activation::kNone;
  }
  // Panels that one block of rows uses follow each other in one place.
  const long step = !part.packed && blocks == 1 ? 0 : kPanel * depth;
  BlockColumns columns = {part.columns.at(first, k), part.column_buffer, part.column_buffer, step,
                          last - first};
  if (part.packed) {
    columns.packed = nullptr;
    columns.panels = part.packed + k * part.packed_columns + (part.first_column + first) * depth;
  }
  for (long at = 0; at < blocks; ++at) {
    BlockRows block = {part.rows.at(0, k), copy, part_begin(tiles.tiles, blocks, at),
                       part_begin(tiles.tiles, blocks, at + 1), 0};
    block.begin = tiles.begin(block.first);
    if (copy) block.view = copy_block(tiles, block, block.view, depth, part.row_buffer);
    multiply_block(tiles, block, columns, depth, target);
    columns.packed = nullptr;
  }
}

void multiply_part(const Part& part) {
  const bool one_block = blocks_of(divide_up(part.row_count, kTileRows)) <= 1;
  // Packed columns are read where they lie, so their blocks would only copy the rows again: 1,024
  // rows of 768 took 1.03 times as long (3,072 columns, Xeon).
  const bool whole = one_block || part.packed;
  const long step = whole ? larger(part.column_count, 1) : kColumnBlock;
  for (long j = 0; j < part.column_count; j += step) {
    // A product without depth has one empty block.
    for (long k = 0; k == 0 || k < part.depth; k += part.length) {
      multiply_depth(part, k, smaller(part.length, part.depth - k), j,
                     smaller(j + step, part.column_count));
    }
  }
}

// Adds up the sums of the parts of the depth, and finishes them.
void add_parts(const Orientation& o, const ProductCall& call, long parts) {
  const long results = o.rows * o.columns;
#pragma omp parallel for schedule(static) num_threads(call.threads)
  for (long item = 0; item < o.batch * o.rows; ++item) {
    const long matrix = item / o.rows, i = item % o.rows;
    for (long j = 0; j < o.columns; ++j) {
      float sum = 0.0f;
      for (long part = 0; part < parts; ++part)
        sum += call.scratch[(part * o.batch + matrix) * results + i * o.columns + j];
      const long at = matrix * o.c_batch + i * o.c_row + j * o.c_column;
      if (call.residual) sum += floats(call.residual)[at];
      if (call.bias) sum += call.bias[o.swapped ? i : j];
      const float result = activate(broadcast(sum), call.activation, call.slope)[0];
      floats(call.c)[at] = call.factor ? result * floats(call.factor)[at] : result;
    }
  }
}

// The part that item `item` of a call computes.
Part part_of(const Orientation& o, const ProductCall& call, const Cut& cut, const Scratch& s,
             long item) {
  const long matrix = item / cut.count(), row_part = item / cut.columns % cut.rows;
  const long depth_part = item / (cut.rows * cut.columns) % cut.depth;
  const long panels = divide_up(o.columns, kPanel);
  const long i = part_begin(o.rows, cut.rows, row_part);
  const long j = part_begin(panels, cut.columns, item % cut.columns) * kPanel;
  const long end = part_begin(panels, cut.columns, item % cut.columns + 1) * kPanel;
  // Packed columns can be cut only between their blocks of depth.
  const long length = block_length(o.depth), unit = call.packed ? length : 16;
  const long units = divide_up(o.depth, unit);
  const long k = part_begin(units, cut.depth, depth_part) * unit;
  const long k_end = smaller(part_begin(units, cut.depth, depth_part + 1) * unit, o.depth);
  const float* row_data = floats(o.swapped ? call.b : call.a) + matrix * o.row_batch;
  const float* column_data = floats(o.swapped ? call.a : call.b) + matrix * o.column_batch;
  Part part = {};
  part.rows = View{row_data, o.row_side.across, o.row_side.along}.at(i, k);
  part.columns = View{column_data, o.column_side.across, o.column_side.along}.at(j, k);
  part.packed_columns = panels * kPanel;
  if (call.packed) part.packed = call.packed + k * part.packed_columns;
  part.first_column = j;
  part.row_count = part_begin(o.rows, cut.rows, row_part + 1) - i;
  part.column_count = smaller(end, o.columns) - j;
  part.depth = k_end - k;
  part.length = call.packed ? length : block_length(part.depth);
  Target<float> target = {floats(call.c),        o.c_stride(),    o.turned(),
                          floats(call.residual), call.bias,       o.swapped,
                          floats(call.factor),   call.activation, call.slope};
  target.c += matrix * o.c_batch;
  if (target.added) target.added += matrix * o.c_batch;
  if (target.factor) target.factor += matrix * o.c_batch;
  if (cut.depth > 1) {
    float* sums = call.scratch + (depth_part * o.batch + matrix) * o.rows * o.columns;
    target = {sums, o.columns, false, nullptr, nullptr, false, nullptr, Activation::kNone, 0.0f};
  }
  part.target = target_at(target, i, j);
  part.row_buffer = call.scratch + s.sums + omp_get_thread_num() * s.thread();
  part.column_buffer = part.row_buffer + s.rows;
  return part;
}

void run(const Product& p, const ProductCall& call) {
  const bool packed = call.packed != nullptr;
  const Orientation o = orient(p, packed);
  const Cut cut = cut_parts(o, packed, call.threads);
  const Scratch s = scratch_of(o, cut, packed);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.threads)
  for (long item = 0; item < o.batch * cut.count(); ++item)
    multiply_part(part_of(o, call, cut, s, item));
  if (cut.depth > 1) add_parts(o, call, cut.depth);
}

long scratch_floats(const Product& p, bool packed, int threads) {
  const Orientation o = orient(p, packed);
  const Cut cut = cut_parts(o, packed, threads);
  const Scratch s = scratch_of(o, cut, packed);
  return s.sums + threads * s.thread();
}

long packed_floats(const Product& p) {
  return round_up(p.columns, kPanel) * p.depth;
}

// B as [block of depth][panel][depth][kPanel].
void pack(const Product& p, const void* b, float* packed, int threads) {
  const View all = {floats(b), p.b.column, p.b.row};
  const long panels = divide_up(p.columns, kPanel), length = block_length(p.depth);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < panels * divide_up(p.depth, length); ++item) {
    const long k = item / panels * length, j = item % panels * kPanel;
    const long depth = smaller(length, p.depth - k);
    pack_columns(all.at(j, k), depth, smaller(p.columns - j, kPanel),
                 packed + k * panels * kPanel + j * depth);
  }
}

}  // namespace

const ProductPass products::blocked = {run, scratch_floats, packed_floats, pack};

}  // namespace BESTOF_TARGET
}  // namespace bestof

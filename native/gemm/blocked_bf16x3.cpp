// The product of float32 matrices by tile registers of bfloat16, at the accuracy of float32: each
// operand is the sum of three numbers of bfloat16 (gemm/bfloat16_parts.h). Rows are split block by
// block. Each block splits each panel of B, while tiles multiply the panel before. For several
// blocks, B is packed before. Instruction sets without tile registers multiply float32.
#include <omp.h>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#if defined(__AMX_BF16__)
#include "gemm/call_target.h"
#include "gemm/parts_block.h"
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

#if defined(__AMX_BF16__)

// Blocks of depth of nearly the same length, in steps of kTileDepth.
struct Depth {
  long steps, blocks;

  explicit Depth(long depth)
      : steps(divide_up(depth, kTileDepth)), blocks(larger(divide_up(steps, kMostSteps), 1)) {}
  long begin(long block) const { return part_begin(steps, blocks, block) * kTileDepth; }
  long longest() const { return divide_up(steps, blocks); }
};

// Packed B: panels of float32 as [block of depth][panel][depth][kPanel], then for each of them the
// scales of its columns. They are split when rows meet them: from memory, parts would be 1.5 times
// as many bytes.
struct PackedPanels {
  Depth depth;
  long all_depth, panels;

  explicit PackedPanels(const Product& p)
      : depth(p.depth), all_depth(p.depth), panels(divide_up(p.columns, kPanel)) {}
  long length(long block) const {
    return smaller(depth.begin(block + 1), all_depth) - depth.begin(block);
  }
  long panel(long block, long j) const {
    return (depth.begin(block) * panels + j * length(block)) * kPanel;
  }
  long scale(long block, long j) const {
    return (all_depth * panels + block * panels + j) * kPanel;
  }
  long floats() const { return scale(depth.blocks, 0); }
};

long packed_floats(const Product& p) {
  return round_up(PackedPanels(p).floats(), 16);
}

void pack(const Product& p, const void* b, float* packed, int threads) {
  const PackedPanels to(p);
  const View all = {floats(b), p.b.column, p.b.row};
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < to.depth.blocks * to.panels; ++item) {
    const long block = item / to.panels, j = item % to.panels, depth = to.length(block);
    float* panel = packed + to.panel(block, j);
    pack_columns(all.at(j * kPanel, to.depth.begin(block)), depth,
                 smaller(p.columns - j * kPanel, kPanel), panel);
    LargestMagnitudes found;
    for (long k = 0; k < depth; ++k) {
      for (int tile = 0; tile < kPanelVectors; ++tile)
        found.add(tile, load(panel + k * kPanel + tile * kLanes));
    }
    scales_of(found, packed + to.scale(block, j));
  }
}

// How C is cut: into blocks of rows, whose parts take half of L2, and these into parts of columns.
struct Cut {
  long rows, columns;
};

// Rows that are multiplied at once.
long block_units(const Product& p) {
  const long unit_bytes = Depth(p.depth).longest() * kStepElements * sizeof(Bfloat16);
  return larger(level2_bytes() / 2 / larger(unit_bytes, 1), 1);
}

Cut cut_result(const Product& p, int threads) {
  const long units = larger(divide_up(p.rows, kBlockHeight), 1);
  const long blocks = divide_up(units, block_units(p));
  const long sharing = divide_up(static_cast<long>(threads), larger(p.batch, 1));
  if (p.rows > p.columns || blocks >= sharing)
    return {smaller(round_up(blocks, sharing), units), 1};
  return {blocks, smaller(divide_up(p.columns, kPanel), divide_up(sharing, blocks))};
}

// Whether B is packed as a whole before rows meet it: each of several blocks of rows reads it.
bool packs_before(const Cut& cut) {
  return cut.rows > 1;
}

// The scratch of a thread.
struct Scratch {
  long rows, parts, panel, panel_scale, scale, gathered, joined, sums;

  Scratch(const Product& p, const Cut& cut)
      : rows(divide_up(divide_up(p.rows, kBlockHeight), cut.rows) * kBlockHeight),
        parts(rows / kBlockHeight * Depth(p.depth).longest() * kStepElements / 2),
        panel(Depth(p.depth).longest() * kStepElements / 2),
        panel_scale(kPanel),
        scale(rows),
        gathered(kTileHeight * kGatheredStride),
        joined(kDepthBlock * kPanel),
        sums(2 * kBlockHeight * kPanel) {}
  long floats() const {
    return parts + 2 * (panel + panel_scale) + scale + gathered + joined + sums;
  }
};

long scratch_floats(const Product& p, bool packed, int threads) {
  const Cut cut = cut_result(p, threads);
  return (packed || !packs_before(cut) ? 0 : packed_floats(p)) + threads * Scratch(p, cut).floats();
}

// The operands of one matrix of the batch.
struct Operands {
  View a, b;
  const float* packed;  // or null
  Target<float> target;
};

Operands operands_of(const Product& p, const ProductCall& call, const float* packed, long matrix) {
  return {{floats(call.a) + matrix * p.a.batch, p.a.row, p.a.column},
          {floats(call.b) + matrix * p.b.batch, p.b.column, p.b.row},
          packed,
          call_target<float>(p, call, matrix)};
}

// Rows [first, last) by panels [begin, end).
struct Item {
  long first, last, begin, end;
};

// What a thread works with.
struct Workplace {
  PartBuffers rows;
  float* joined;  // [kDepthBlock][kPanel]
  SideWork side;
};

// Panel j of a block of depth.
PanelSource panel_of(const Product& p, const Operands& given, long block, long j) {
  const PackedPanels all(p);
  const long depth = all.length(block);
  if (given.packed) {
    return {{given.packed + all.panel(block, j), 1, kPanel},
            depth,
            kPanel,
            given.packed + all.scale(block, j)};
  }
  return {given.b.at(j * kPanel, all.depth.begin(block)), depth,
          smaller(p.columns - j * kPanel, kPanel), nullptr};
}

// Begins the panel that follows panel j of a block of depth, if there is one.
void begin_next(const Product& p, const Operands& given, const Item& item, long block, long j,
                long calls, ComingPanel& coming) {
  if (j + 1 < item.end) return coming.begin(panel_of(p, given, block, j + 1), calls);
  if (block + 1 < Depth(p.depth).blocks)
    coming.begin(panel_of(p, given, block + 1, item.begin), calls);
}

// Multiplies one block of depth. Its first panel was begun.
void multiply_depth(const Product& p, const Operands& given, const Item& item, long block,
                    Workplace& at) {
  const Depth blocks(p.depth);
  const long k = blocks.begin(block), depth = smaller(blocks.begin(block + 1), p.depth) - k;
  const long count = item.last - item.first;
  Target<float> target = target_at(given.target, item.first, 0);
  if (k > 0) target.added = target.c;
  if (block + 1 < blocks.blocks) {
    target.bias = nullptr;
    target.factor = nullptr;
    target.activation = Activation::kNone;
  }
  const View a = given.a.at(item.first, k);
  const SplitRows rows = split_rows(a, depth, count, at.rows);
  const long calls = divide_up(count, kBlockHeight) * divide_up(depth, kTileDepth) * kCallsOfStep;
  for (long j = item.begin; j < item.end; ++j) {
    const SplitPanel panel = at.side.panel.finish();
    begin_next(p, given, item, block, j, calls, at.side.panel);
    const PanelScale scale = panel_scale(panel.scale);
    WholeOperands whole = {a, nullptr, at.rows.gathered};
    if (rows.incomplete || scale.incomplete) {
      const PanelSource source = panel_of(p, given, block, j);
      pack_columns(source.view, depth, source.columns, at.joined);
      whole.panel = at.joined;
    }
    multiply_parts(rows, count, panel.parts, depth, smaller(p.columns - j * kPanel, kPanel),
                   target_at(target, 0, j * kPanel), scale, whole, at.side);
  }
  at.side.sums.finish_all();
}

// Part `part` of the parts that C is cut into.
Item item_of(const Product& p, const Cut& cut, long part) {
  const long units = divide_up(p.rows, kBlockHeight), panels = divide_up(p.columns, kPanel);
  const long row = part / cut.columns, column = part % cut.columns;
  return {part_begin(units, cut.rows, row) * kBlockHeight,
          smaller(part_begin(units, cut.rows, row + 1) * kBlockHeight, p.rows),
          part_begin(panels, cut.columns, column), part_begin(panels, cut.columns, column + 1)};
}

// Matrices [first, last) of the batch. packed: B, or null.
void run_matrices(const Product& p, const ProductCall& call, const Cut& cut, const float* packed,
                  long first, long last, float* scratch) {
  const Scratch own(p, cut);
  const long parts = cut.rows * cut.columns;
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    float* mine = scratch + omp_get_thread_num() * own.floats();
    float* panels = mine + own.parts;
    float* panel_scale = panels + 2 * own.panel;
    float* scale = panel_scale + 2 * own.panel_scale;
    float* gathered = scale + own.scale;
    float* joined = gathered + own.gathered;
    Workplace at = {{halves(mine), scale, gathered},
                    joined,
                    {WaitingSums<PanelResults>(joined + own.joined),
                     ComingPanel(halves(panels), 2 * own.panel, panel_scale)}};
#pragma omp for schedule(dynamic, 1)
    for (long i = first * parts; i < last * parts; ++i) {
      const Operands given = operands_of(p, call, packed, i / parts);
      const Item item = item_of(p, cut, i % parts);
      at.side.panel.begin(panel_of(p, given, 0, item.begin), 1);
      for (long block = 0; block < Depth(p.depth).blocks; ++block)
        multiply_depth(p, given, item, block, at);
    }
  }
}

void run(const Product& p, const ProductCall& call) {
  const Cut cut = cut_result(p, call.threads);
  const bool before = !call.packed && packs_before(cut);
  float* scratch = call.scratch + (before ? packed_floats(p) : 0);
  const float* packed = before ? call.scratch : call.packed;
  // If B is packed in the call, one matrix of it at a time.
  const long together = before && p.b.batch != 0 ? 1 : p.batch;
  for (long first = 0; first < p.batch; first += together) {
    if (before) pack(p, floats(call.b) + first * p.b.batch, call.scratch, call.threads);
    run_matrices(p, call, cut, packed, first, first + together, scratch);
  }
}

#else

void run(const Product& p, const ProductCall& call) {
  BESTOF_REST::products::blocked.run(p, call);
}

long scratch_floats(const Product& p, bool packed, int threads) {
  return BESTOF_REST::products::blocked.scratch_floats(p, packed, threads);
}

long packed_floats(const Product& p) {
  return BESTOF_REST::products::blocked.packed_floats(p);
}

void pack(const Product& p, const void* b, float* packed, int threads) {
  BESTOF_REST::products::blocked.pack(p, b, packed, threads);
}

#endif

}  // namespace

const ProductPass products::blocked_bf16x3 = {run, scratch_floats, packed_floats, pack};

}  // namespace BESTOF_TARGET
}  // namespace bestof

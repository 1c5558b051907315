// The product of float32 matrices by tile registers of bfloat16, at the accuracy of float32: each
// operand is the sum of three numbers of bfloat16 (gemm/bfloat16_parts.h). Rows are split block by
// block. If B is not packed, one block of rows splits each panel of it when it comes to it; for
// several blocks, B is split before. Instruction sets without tile registers multiply float32.
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

// Packed B: panels of parts as [block of depth][panel], then for each of them the scales of its
// columns.
struct PackedParts {
  Depth depth;
  long panels;

  explicit PackedParts(const Product& p) : depth(p.depth), panels(divide_up(p.columns, kPanel)) {}
  long step_floats() const { return kStepElements / 2; }
  long scales() const { return panels * depth.steps * step_floats(); }
  long floats() const { return scales() + panels * depth.blocks * kPanel; }
  long panel(long block, long j) const {
    const long first = part_begin(depth.steps, depth.blocks, block);
    const long steps = part_begin(depth.steps, depth.blocks, block + 1) - first;
    return (first * panels + j * steps) * step_floats();
  }
  long scale(long block, long j) const { return scales() + (block * panels + j) * kPanel; }
};

long packed_floats(const Product& p) {
  return round_up(PackedParts(p).floats(), 16);
}

void pack(const Product& p, const void* b, float* packed, int threads) {
  const PackedParts parts(p);
  const View all = {floats(b), p.b.column, p.b.row};
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long item = 0; item < parts.depth.blocks * parts.panels; ++item) {
    const long block = item / parts.panels, j = item % parts.panels;
    const long k = parts.depth.begin(block), end = smaller(parts.depth.begin(block + 1), p.depth);
    const long columns = smaller(p.columns - j * kPanel, kPanel);
    pack_parts(all.at(j * kPanel, k), TileDepth::of(end - k), columns,
               halves(packed + parts.panel(block, j)), packed + parts.scale(block, j));
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

// Whether B is split as a whole before rows meet it. If each of several blocks of rows splits it
// again, products of 512 to 2,048 rows take 1.0 to 1.2 times as long (two threads).
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
  long floats() const { return parts + panel + panel_scale + scale + gathered + joined + sums; }
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

// A panel of B in parts.
struct SplitPanel {
  const Bfloat16* parts;
  const ScaleExponent* scale;
};

SplitPanel panel_of(const Product& p, const Operands& given, long block, long j,
                    const PartBuffers& buffers) {
  const PackedParts parts(p);
  if (given.packed)
    return {halves(given.packed + parts.panel(block, j)), given.packed + parts.scale(block, j)};
  const long k = parts.depth.begin(block), end = smaller(parts.depth.begin(block + 1), p.depth);
  pack_parts(given.b.at(j * kPanel, k), TileDepth::of(end - k),
             smaller(p.columns - j * kPanel, kPanel), buffers.panel, buffers.panel_scale);
  return {buffers.panel, buffers.panel_scale};
}

// Multiplies one block of depth.
void multiply_depth(const Product& p, const Operands& given, const Item& item, long block,
                    const PartBuffers& buffers, float* sums) {
  WaitingSums<PanelResults> waiting(sums);
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
  const SplitRows rows = split_rows(a, depth, count, buffers);
  for (long j = item.begin; j < item.end; ++j) {
    const SplitPanel panel = panel_of(p, given, block, j, buffers);
    const PanelScale scale = panel_scale(panel.scale);
    WholeOperands whole = {a, nullptr, buffers.gathered};
    if (rows.incomplete || scale.incomplete) {
      join_panel<Pairing::kNeighbours>(panel.parts, depth, scale, buffers.joined);
      whole.panel = buffers.joined;
    }
    multiply_parts(rows, count, panel.parts, depth, smaller(p.columns - j * kPanel, kPanel),
                   target_at(target, 0, j * kPanel), scale, whole, waiting);
  }
  waiting.finish_all();
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
    float* panel = mine + own.parts;
    float* panel_scale = panel + own.panel;
    float* scale = panel_scale + own.panel_scale;
    float* gathered = scale + own.scale;
    float* joined = gathered + own.gathered;
    const PartBuffers buffers = {halves(mine), halves(panel), panel_scale, scale, gathered, joined};
#pragma omp for schedule(dynamic, 1)
    for (long i = first * parts; i < last * parts; ++i) {
      const Operands given = operands_of(p, call, packed, i / parts);
      const Item item = item_of(p, cut, i % parts);
      for (long block = 0; block < Depth(p.depth).blocks; ++block)
        multiply_depth(p, given, item, block, buffers, joined + own.joined);
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

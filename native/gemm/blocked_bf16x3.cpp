// The product of float32 matrices by tile registers of bfloat16, at the accuracy of float32: each
// operand is the sum of three numbers of bfloat16 (gemm/bfloat16_parts.h). B is split as a whole,
// rows are split block by block. Instruction sets without tile registers multiply float32.
#include <omp.h>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#if defined(__AMX_BF16__)
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

// Packed B: panels of parts as [block of depth][panel], then for each of them a set of columns.
struct PackedParts {
  Depth depth;
  long panels;

  explicit PackedParts(const Product& p) : depth(p.depth), panels(divide_up(p.columns, kPanel)) {}
  long step_floats() const { return kStepElements / 2; }
  long sets() const { return panels * depth.steps * step_floats(); }
  long floats() const { return sets() + panels * depth.blocks; }
  long panel(long block, long j) const {
    const long first = part_begin(depth.steps, depth.blocks, block);
    const long steps = part_begin(depth.steps, depth.blocks, block + 1) - first;
    return (first * panels + j * steps) * step_floats();
  }
  long set(long block, long j) const { return sets() + block * panels + j; }
};
static_assert(sizeof(ColumnSet) == sizeof(float), "a set takes the place of a float");

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
    const ColumnSet whole = pack_parts(all.at(j * kPanel, k), end - k, columns,
                                       halves(packed + parts.panel(block, j)));
    __builtin_memcpy(packed + parts.set(block, j), &whole, sizeof whole);
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
  const long units = divide_up(p.rows, kBlockHeight);
  const long blocks = divide_up(units, block_units(p));
  if (p.rows > p.columns || blocks >= threads)
    return {smaller(round_up(blocks, static_cast<long>(threads)), units), 1};
  return {blocks, smaller(divide_up(p.columns, kPanel), divide_up(threads, blocks))};
}

// The scratch of a thread.
struct Scratch {
  long rows, parts, scale, gathered, joined, sums;

  Scratch(const Product& p, const Cut& cut)
      : rows(divide_up(divide_up(p.rows, kBlockHeight), larger(cut.rows, 1)) * kBlockHeight),
        parts(rows / kBlockHeight * Depth(p.depth).longest() * kStepElements / 2),
        scale(rows),
        gathered(kTileHeight * kGatheredStride),
        joined(kDepthBlock * kPanel),
        sums(kBlockHeight * kPanel) {}
  long floats() const { return parts + scale + gathered + joined + sums; }
};

long scratch_floats(const Product& p, bool packed, int threads) {
  const Scratch own(p, cut_result(p, threads));
  return (packed ? 0 : packed_floats(p)) + threads * own.floats();
}

// One matrix of the batch.
struct Operands {
  View a;
  const float* packed;
  Target<float> target;
};

// Rows [first, last) by panels [begin, end).
struct Item {
  long first, last, begin, end;
};

// Multiplies one block of depth.
void multiply_depth(const Product& p, const Operands& given, const Item& item, long block,
                    const RowBuffers& buffers, float* sums) {
  const PackedParts parts(p);
  const long k = parts.depth.begin(block), end = smaller(parts.depth.begin(block + 1), p.depth);
  const long count = item.last - item.first, steps = divide_up(end - k, kTileDepth);
  Target<float> target = target_at(given.target, item.first, 0);
  if (k > 0) target.added = target.c;
  if (block + 1 < parts.depth.blocks) {
    target.bias = nullptr;
    target.factor = nullptr;
    target.activation = Activation::kNone;
  }
  const View a = given.a.at(item.first, k);
  const SplitRows rows = split_rows(a, end - k, count, buffers);
  for (long j = item.begin; j < item.end; ++j) {
    const float* panel = given.packed + parts.panel(block, j);
    const float* next = j + 1 < item.end ? panel + steps * parts.step_floats() : panel;
    const long columns = smaller(p.columns - j * kPanel, kPanel);
    const Target<float> to = target_at(target, 0, j * kPanel);
    WholeOperands whole = {a, nullptr, 0, buffers.gathered};
    __builtin_memcpy(&whole.columns, given.packed + parts.set(block, j), sizeof whole.columns);
    if (rows.incomplete || whole.columns != 0) {
      join_panel(halves(panel), end - k, whole.columns, buffers.joined);
      whole.panel = buffers.joined;
    }
    multiply_parts(rows, count, halves(panel), end - k, columns, to, whole, halves(next), sums);
  }
}

void run_matrix(const Product& p, const Operands& given, const Cut& cut, float* scratch,
                int threads) {
  const Scratch own(p, cut);
  const long units = divide_up(p.rows, kBlockHeight), panels = divide_up(p.columns, kPanel);
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    float* mine = scratch + omp_get_thread_num() * own.floats();
    float* scale = mine + own.parts;
    float* gathered = scale + own.scale;
    const RowBuffers buffers = {halves(mine), scale, gathered, gathered + own.gathered};
    float* sums = buffers.joined + own.joined;
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < cut.rows * cut.columns; ++i) {
      const long row = i / cut.columns, column = i % cut.columns;
      const Item item = {part_begin(units, cut.rows, row) * kBlockHeight,
                         smaller(part_begin(units, cut.rows, row + 1) * kBlockHeight, p.rows),
                         part_begin(panels, cut.columns, column),
                         part_begin(panels, cut.columns, column + 1)};
      for (long block = 0; block < Depth(p.depth).blocks; ++block)
        multiply_depth(p, given, item, block, buffers, sums);
    }
  }
}

void run(const Product& p, const ProductCall& call) {
  const bool turned = p.c.column != 1;
  const Cut cut = cut_result(p, call.threads);
  float* own = call.scratch + (call.packed ? 0 : packed_floats(p));
  for (long matrix = 0; matrix < p.batch; ++matrix) {
    if (!call.packed && (matrix == 0 || p.b.batch != 0))
      pack(p, floats(call.b) + matrix * p.b.batch, call.scratch, call.threads);
    Target<float> target = {floats(call.c),        turned ? p.c.column : p.c.row,
                            turned,                floats(call.residual),
                            call.bias,             false,
                            floats(call.factor),   call.activation,
                            call.slope};
    target.c += matrix * p.c.batch;
    if (target.added) target.added += matrix * p.c.batch;
    if (target.factor) target.factor += matrix * p.c.batch;
    const View a = {floats(call.a) + matrix * p.a.batch, p.a.row, p.a.column};
    run_matrix(p, {a, call.packed ? call.packed : call.scratch, target}, cut, own, call.threads);
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

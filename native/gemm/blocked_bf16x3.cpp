// The product of float32 matrices by tile registers of bfloat16, at the accuracy of float32: each
// operand is the sum of three numbers of bfloat16 (gemm/bfloat16_parts.h). Rows are split block by
// block. Each of these splits each panel of B, while tiles multiply the panel before. Instruction
// sets without tile registers multiply float32.
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
    ColumnMagnitudes found;
    for (long k = 0; k < depth; ++k) {
      for (int tile = 0; tile < kPanelVectors; ++tile)
        found.add(tile, load(panel + k * kPanel + tile * kLanes));
    }
    scales_of(found, packed + to.scale(block, j));
  }
}

// How C is cut for the threads.
struct Cut {
  long rows, columns;
};

// Units of kBlockHeight rows whose parts take 5/8 of L2; two panels and what streams through it
// take the rest.
long block_units(const Product& p) {
  const long unit_bytes = larger(Depth(p.depth).longest(), 1) * kStepElements * sizeof(Bfloat16);
  return larger(level2_bytes() * 5 / 8 / unit_bytes, 1);
}

// Blocks of rows of `units` units.
long blocks_of(const Product& p, long units) {
  return divide_up(units, block_units(p));
}

// Panels that meet a block of rows before the next block comes, if they are packed in the call. The
// first block leaves them as float32 for the others: up to 4.7 MB for each thread.
constexpr long kPanelsOfRun = 48;

// A cut such that a thread takes the least time: 2 operations for each row, column and step at 500
// a nanosecond; 0.2 ns to split an element of B, which each block of rows does again, and 0.25 ns
// to split one of A.
Cut cut_result(const Product& p, int threads) {
  const long units = divide_up(p.rows, kBlockHeight), panels = divide_up(p.columns, kPanel);
  const long sharing = divide_up(static_cast<long>(threads), larger(p.batch, 1));
  Cut best = {1, 1};
  double least = 0.0;
  for (long rows = 1; rows <= smaller(sharing, units); ++rows) {
    const long columns = larger(smaller(divide_up(sharing, rows), panels), 1);
    const long own_units = divide_up(units, rows);
    const double height = 1.0 * own_units * kBlockHeight;
    const double width = 1.0 * divide_up(panels, columns) * kPanel;
    const double time =
        0.004 * height * width + 0.2 * width * blocks_of(p, own_units) + 0.25 * height;
    if (rows == 1 || time < least) {
      least = time;
      best = {rows, columns};
    }
  }
  return best;
}

// The scratch of a thread.
struct Scratch {
  long block_rows, parts, panel, panel_scale, scale, gathered, joined, sums, kept, kept_scale;

  Scratch(const Product& p, const Cut& cut, bool packed) {
    const long units = divide_up(divide_up(p.rows, kBlockHeight), cut.rows);
    const long blocks = larger(blocks_of(p, units), 1), steps = Depth(p.depth).longest();
    block_rows = divide_up(units, blocks) * kBlockHeight;
    parts = block_rows / kBlockHeight * steps * kStepElements / 2;
    panel = steps * kStepElements / 2;
    panel_scale = kPanel;
    scale = block_rows;
    gathered = kTileHeight * kGatheredStride;
    joined = kDepthBlock * kPanel;
    sums = 2 * kBlockHeight * kPanel;
    const long panels = divide_up(divide_up(p.columns, kPanel), larger(cut.columns, 1));
    const long keeping = packed || blocks == 1 ? 0 : smaller(panels, kPanelsOfRun);
    kept = keeping * steps * kTileDepth * kPanel;
    kept_scale = keeping * kPanel;
  }
  long floats() const {
    return parts + 2 * (panel + panel_scale) + scale + gathered + joined + sums + kept + kept_scale;
  }
};

long scratch_floats(const Product& p, bool packed, int threads) {
  return threads * Scratch(p, cut_result(p, threads), packed).floats();
}

// The operands of one matrix of the batch.
struct Operands {
  View a, b;
  const float* packed;  // or null
  Target<float> target;
};

Operands operands_of(const Product& p, const ProductCall& call, long matrix) {
  return {{floats(call.a) + matrix * p.a.batch, p.a.row, p.a.column},
          {floats(call.b) + matrix * p.b.batch, p.b.column, p.b.row},
          call.packed,
          call_target<float>(p, call, matrix)};
}

// Units [first, last) of rows by panels [begin, end).
struct Item {
  long first, last, begin, end;
};

// Part `part` of the parts that C is cut into.
Item item_of(const Product& p, const Cut& cut, long part) {
  const long units = divide_up(p.rows, kBlockHeight), panels = divide_up(p.columns, kPanel);
  const long row = part / cut.columns, column = part % cut.columns;
  return {part_begin(units, cut.rows, row), part_begin(units, cut.rows, row + 1),
          part_begin(panels, cut.columns, column), part_begin(panels, cut.columns, column + 1)};
}

// What a thread works with.
struct Workplace {
  PartBuffers rows;
  float* joined;  // [kDepthBlock][kPanel]
  SideWork side;
  float* kept;                // [panel of a run][depth of a block][kPanel]
  ScaleExponent* kept_scale;  // [panel of a run][kPanel]

  Workplace(const Scratch& own, float* at)
      : rows{halves(at), at + own.parts, at + own.parts + own.scale},
        joined(rows.gathered + own.gathered),
        side{WaitingSums(joined + own.joined),
             ComingPanel(halves(joined + own.joined + own.sums), 2 * own.panel,
                         joined + own.joined + own.sums + 2 * own.panel)},
        kept(joined + own.joined + own.sums + 2 * (own.panel + own.panel_scale)),
        kept_scale(kept + own.kept) {}
};

// One thread's part of one matrix. It goes through runs of panels, in each through blocks of depth,
// in each through blocks of rows, and these meet all panels of the run.
class PartOfResult {
 public:
  PartOfResult(const Product& p, const Operands& given, const Item& item, Workplace& at)
      : p_(p),
        given_(given),
        item_(item),
        at_(at),
        panels_(p),
        row_blocks_(blocks_of(p, item.last - item.first)),
        runs_(given.packed || row_blocks_ == 1
                  ? 1
                  : larger(divide_up(item.end - item.begin, kPanelsOfRun), 1)) {}

  void multiply() {
    Place next = {0, 0, 0, item_.begin};
    at_.side.panel.begin(source_of(next), 1);
    while (next.run < runs_) next = multiply_run(next);
  }

 private:
  struct Place {
    long run, block, row_block, panel;
  };

  long run_begin(long run) const {
    return item_.begin + part_begin(item_.end - item_.begin, runs_, run);
  }

  // The panel behind this one, or the first one of run runs_.
  Place behind(Place place) const {
    if (++place.panel < run_begin(place.run + 1)) return place;
    if (++place.row_block == row_blocks_) {
      place.row_block = 0;
      if (++place.block == panels_.depth.blocks) {
        place.block = 0;
        ++place.run;
      }
    }
    place.panel = run_begin(place.run);
    return place;
  }

  PanelSource source_of(const Place& place) const {
    const long block = place.block, j = place.panel, depth = panels_.length(block);
    if (given_.packed) {
      return {{given_.packed + panels_.panel(block, j), 1, kPanel},
              depth,
              kPanel,
              given_.packed + panels_.scale(block, j),
              nullptr,
              nullptr};
    }
    const long of_run = j - run_begin(place.run);
    float* kept = at_.kept + of_run * panels_.depth.longest() * kTileDepth * kPanel;
    ScaleExponent* scale = at_.kept_scale + of_run * kPanel;
    if (place.row_block > 0) return {{kept, 1, kPanel}, depth, kPanel, scale, nullptr, nullptr};
    const bool keeps = row_blocks_ > 1;
    return {given_.b.at(j * kPanel, panels_.depth.begin(block)),
            depth,
            smaller(p_.columns - j * kPanel, kPanel),
            nullptr,
            keeps ? kept : nullptr,
            keeps ? scale : nullptr};
  }

  // Multiplies one block of rows by the panels of one run in one block of depth. The first panel
  // was begun. Returns the place behind.
  Place multiply_run(Place place) {
    const long units = item_.last - item_.first;
    const long row = (item_.first + part_begin(units, row_blocks_, place.row_block)) * kBlockHeight;
    const long end =
        smaller((item_.first + part_begin(units, row_blocks_, place.row_block + 1)) * kBlockHeight,
                p_.rows);
    const long k = panels_.depth.begin(place.block), depth = panels_.length(place.block);
    const long count = end - row, run_end = run_begin(place.run + 1);
    Target<float> target = target_at(given_.target, row, 0);
    if (k > 0) target.added = target.c;
    if (place.block + 1 < panels_.depth.blocks) {
      target.bias = nullptr;
      target.factor = nullptr;
      target.activation = Activation::kNone;
    }
    const View a = given_.a.at(row, k);
    const SplitRows rows = split_rows(a, depth, count, at_.rows);
    const long calls = divide_up(count, kBlockHeight) * divide_up(depth, kTileDepth) * kCallsOfStep;
    Place next = place;
    do {
      place = next;
      const SplitPanel panel = at_.side.panel.finish();
      next = behind(place);
      if (next.run < runs_) at_.side.panel.begin(source_of(next), calls);
      const long j = place.panel * kPanel;
      const PanelScale scale = panel_scale(panel.scale);
      WholeOperands whole = {a, nullptr, at_.rows.gathered};
      if (rows.incomplete || scale.incomplete) {
        const PanelSource source = source_of(place);
        pack_columns(source.view, depth, source.columns, at_.joined);
        whole.panel = at_.joined;
      }
      multiply_parts(rows, count, panel.parts, depth, smaller(p_.columns - j, kPanel),
                     target_at(target, 0, j), scale, whole, at_.side);
    } while (place.panel + 1 < run_end);
    at_.side.sums.finish_all();
    return next;
  }

  const Product& p_;
  const Operands& given_;
  const Item item_;
  Workplace& at_;
  const PackedPanels panels_;
  const long row_blocks_, runs_;
};

void run(const Product& p, const ProductCall& call) {
  const Cut cut = cut_result(p, call.threads);
  const Scratch own(p, cut, call.packed != nullptr);
  const long parts = p.rows == 0 || p.columns == 0 ? 0 : cut.rows * cut.columns;
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    Workplace at(own, call.scratch + omp_get_thread_num() * own.floats());
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < p.batch * parts; ++i) {
      const Operands given = operands_of(p, call, i / parts);
      PartOfResult(p, given, item_of(p, cut, i % parts), at).multiply();
    }
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

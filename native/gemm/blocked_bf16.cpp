// The product of matrices of any size, whose products are of bfloat16 and whose sums are float32.
// Operands of float32 are rounded on the way. B is packed as a whole, in pairs of steps of depth;
// rows are copied block by block. A block of rows is multiplied by a panel with what the
// instruction set has: tile registers or vectors.
#include <omp.h>

#include <numeric>

#include "conv/operands.h"
#include "gemm/algorithms.h"
#include "gemm/call_target.h"
#include "gemm/pair_panels.h"
#if defined(__AMX_BF16__)
#include "gemm/amx_block.h"
#else
#include "gemm/pair_block.h"
#endif

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// Steps of depth that are gathered at once.
constexpr long kGathered = 64;

// Rounds `count` elements that lie `stride` apart.
template <class From>
void gather(const From* from, long stride, long count, Bfloat16* to) {
  if (stride == 1) return round_or_copy(from, to, count);
  From line[kGathered];
  for (long k = 0; k < count; k += kGathered) {
    const long n = smaller(count - k, kGathered);
    for (long i = 0; i < n; ++i) line[i] = from[(k + i) * stride];
    round_or_copy(line, to + k, n);
  }
}

long pairs_of(const Product& p) {
  return round_up(p.depth, kDepthStep) / 2;
}

long packed_floats(const Product& p) {
  return round_up(p.columns, kPanel) * pairs_of(p);
}

// Packs `columns` <= kPanel columns of any strides as [pair][kPanel], tails zero.
template <class From>
void pack_panel(const Product& p, const From* b, long columns, Pair* to) {
  for (long first = 0; first < p.depth; first += kGathered) {
    const long count = smaller(p.depth - first, kGathered);
    for (long j = 0; j < kPanel; ++j) {
      Bfloat16 line[kGathered] = {};
      if (j < columns) gather(b + j * p.b.column + first * p.b.row, p.b.row, count, line);
      for (long k = 0; k < count; k += 2) to[(first + k) / 2 * kPanel + j] = load_pair(line + k);
    }
  }
}

void pack_panel(const Product& p, const Bfloat16* b, long columns, Pair* to) {
  if (p.b.row != 1 && p.b.column != 1) return pack_panel<Bfloat16>(p, b, columns, to);
  pack_pair_columns(ViewOf<Bfloat16>{b, p.b.column, p.b.row}, p.depth, columns, to);
}

// Packs B as [panel][pair][kPanel], tails zero. A float is a pair.
template <class From>
void pack_pairs(const Product& p, const From* b, Bfloat16* packed, int threads) {
  const long panels = divide_up(p.columns, kPanel), filled = divide_up(p.depth, 2) * kPanel;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long panel = 0; panel < panels; ++panel) {
    Pair* to = reinterpret_cast<Pair*>(packed) + panel * pairs_of(p) * kPanel;
    const long first = panel * kPanel;
    pack_panel(p, b + first * p.b.column, smaller(p.columns - first, kPanel), to);
    __builtin_memset(to + filled, 0, (pairs_of(p) * kPanel - filled) * sizeof(Pair));
  }
}

void pack(const Product& p, const void* b, float* packed, int threads) {
  if (p.element == Element::kBfloat16) {
    pack_pairs(p, halves(b), halves(packed), threads);
  } else {
    pack_pairs(p, floats(b), halves(packed), threads);
  }
}

long scratch_floats(const Product& p, bool packed, int threads) {
  const long height = block_rows(p, threads);
  const long own = height * row_stride(p.depth) / 2 + sums_floats(height);
  return (packed ? 0 : round_up(packed_floats(p), 16)) + threads * own;
}

// Copies rows of A, padded with zeros as panels are.
template <class Element>
void copy_rows(const Product& p, const Element* a, long count, long stride, Bfloat16* to) {
  const long padding = round_up(p.depth, kDepthStep) - p.depth;
  for (long i = 0; i < count; ++i, a += p.a.row, to += stride) {
    gather(a, p.a.column, p.depth, to);
    __builtin_memset(to + p.depth, 0, padding * sizeof(Bfloat16));
  }
}

// How threads share a product: blocks of rows, each in `parts` parts of its columns.
struct Cut {
  long blocks, parts;
};

// Gives every thread the same number of blocks, or of parts. Before, two threads shared 1,024 rows
// as five blocks, and one waited: 367 GFLOP/s of bfloat16 instead of 420 (depth 768).
Cut cut_of(const Product& p, int threads) {
  const long all = threads;
  const long blocks = larger(divide_up(p.rows, block_rows(p, threads)), 1);
  if (blocks >= all) return {round_up(blocks, all), 1};
  return {blocks, smaller(divide_up(p.columns, kPanel), all / std::gcd(blocks, all))};
}

// One matrix of the batch.
template <class Element>
void run_matrix(const Product& p, const Element* a, const Bfloat16* packed,
                const Target<Element>& target, float* scratch, int threads) {
  const Cut cut = cut_of(p, threads);
  const long height = block_rows(p, threads), stride = row_stride(p.depth);
  const long panels = divide_up(p.columns, kPanel);
#pragma omp parallel num_threads(threads)
  {
    const TileRegisters registers;
    float* sums = scratch + omp_get_thread_num() * (height * stride / 2 + sums_floats(height));
    Bfloat16* rows = halves(sums + sums_floats(height));
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < cut.blocks * cut.parts; ++item) {
      const long first = part_begin(p.rows, cut.blocks, item / cut.parts);
      const long count = part_begin(p.rows, cut.blocks, item / cut.parts + 1) - first;
      copy_rows(p, a + first * p.a.row, count, stride, rows);
      const long last = part_begin(panels, cut.parts, item % cut.parts + 1);
      for (long panel = part_begin(panels, cut.parts, item % cut.parts); panel < last; ++panel) {
        multiply_block(rows, stride, count, packed + panel * pairs_of(p) * 2 * kPanel, p.depth,
                       smaller(p.columns - panel * kPanel, kPanel),
                       target_at(target, first, panel * kPanel), sums);
      }
    }
  }
}

template <class Element>
void run_all(const Product& p, const ProductCall& call) {
  const float* packed = call.packed ? call.packed : call.scratch;
  float* rows = call.scratch + (call.packed ? 0 : round_up(packed_floats(p), 16));
  for (long matrix = 0; matrix < p.batch; ++matrix) {
    if (!call.packed && (matrix == 0 || p.b.batch != 0))
      pack(p, static_cast<const Element*>(call.b) + matrix * p.b.batch, call.scratch, call.threads);
    run_matrix(p, static_cast<const Element*>(call.a) + matrix * p.a.batch, halves(packed),
               call_target<Element>(p, call, matrix), rows, call.threads);
  }
}

void run(const Product& p, const ProductCall& call) {
  if (p.element == Element::kBfloat16) return run_all<Bfloat16>(p, call);
  run_all<float>(p, call);
}

}  // namespace

const ProductPass products::blocked_bf16 = {run, scratch_floats, packed_floats, pack};

}  // namespace BESTOF_TARGET
}  // namespace bestof

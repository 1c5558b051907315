// Attention of float32 where there are tile registers: by these for many queries, and by the kernel
// of another instruction set for others.
#include "attention/forward.h"

#include <omp.h>

#include "attention/split_queries.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

namespace rest = BESTOF_REST;

// From so many queries on, tiles are faster: 1.0 to 1.2 times for 64 queries, 1.1 to 1.4 for 197
// (12 heads of 32 to 256 numbers, one thread). Fewer do not pay for splitting keys and values: 8
// queries by 512 keys took 1.6 times as long.
constexpr long kLeastQueries = 64;

void attend_split(const Attention& p, const AttentionCall& call) {
  const long parts = query_parts(p, call.threads);
  const SplitLayout at = split_layout_of(p, call.threads);
#pragma omp parallel num_threads(call.threads)
  {
    const TileRegisters registers;
    float* scratch = call.scratch + omp_get_thread_num() * at.end;
    auto* sets = reinterpret_cast<ColumnSet*>(scratch + at.sets);
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.batch * p.heads * parts; ++item) {
      const auto [batch, head, shared, begin, end] = query_part(p, parts, item);
      const float* values = floats(call.v) + offset(p.v, batch, shared);
      const SplitQueries part = {p,
                                 call,
                                 batch,
                                 head,
                                 begin,
                                 end,
                                 raised_by(p, values),
                                 floats(call.q) + offset(p.q, batch, head),
                                 floats(call.k) + offset(p.k, batch, shared),
                                 values,
                                 floats(call.out) + offset(p.out, batch, head),
                                 halves(scratch + at.keys),
                                 halves(scratch + at.values),
                                 halves(scratch + at.queries),
                                 halves(scratch + at.weights),
                                 scratch + at.scores,
                                 scratch + at.sums,
                                 reinterpret_cast<RowState*>(scratch + at.states),
                                 sets,
                                 sets + kSplitKeys / kPanel,
                                 scratch + at.row,
                                 scratch + at.panel,
                                 scratch + at.stash};
      if (p.keys == 0) {
        part.write_nothing();
      } else {
        part.attend();
      }
    }
  }
}

void run(const Attention& p, const AttentionCall& call) {
  if (p.queries < kLeastQueries) return rest::attention.run(p, call);
  attend_split(p, call);
}

long scratch_floats(const Attention& p, int threads) {
  if (p.queries < kLeastQueries) return rest::attention.scratch_floats(p, threads);
  return threads * split_layout_of(p, threads).end;
}

}  // namespace

const AttentionPass attention = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof

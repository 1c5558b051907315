// The three layers of an inverted residual, a row of results at a time. The expanded image, which
// is four to six times as large as x, never lies in memory as a whole: only the rows that the next
// row of depthwise results reads do, in L2. So do the depthwise results of one row.
#include "conv/inverted_residual.h"

#include <omp.h>

#include "conv/algorithms.h"
#include "conv/depthwise_rows.h"
#include "conv/lowered.h"

namespace bestof {
namespace BESTOF_TARGET {
namespace {

// The memory of one thread, in floats. lines: the expanded rows, [panel of channels][line][pixel]
// [kPanel]. row: depthwise results, [pixel][row_stride]. pointers: to the results of one row.
struct Layout {
  Lines<kPanel> lines;
  long panels, row_stride, row, pointers;

  explicit Layout(const InvertedResidual& p)
      : lines(p.depthwise),
        panels(divide_up(p.depthwise.in_channels, kPanel)),
        row_stride(copied_stride<float>(p.depthwise.in_channels)),
        row(p.projects() ? p.depthwise.out_width * row_stride : 0),
        pointers(row_block_floats(larger(p.depthwise.in_width, p.depthwise.out_width), 1)) {
    // An expanded row is written whole, also where no result reads its end.
    lines.pixels = larger(lines.pixels, p.depthwise.pad_left + p.depthwise.in_width);
  }

  long panel_floats() const { return lines.floats(); }
  long floats() const { return round_up(panels * panel_floats() + row, 16) + pointers; }
};

// One thread's memory, and what it computes in it.
struct Worker {
  const InvertedResidual& p;
  const InvertedResidualCall& call;
  const Layout& layout;
  float *lines, *row;
  RowBlock<float, float> block;  // of one row of pixels; only its `row[0]` and `out` are used

  Worker(const InvertedResidual& problem, const InvertedResidualCall& given, const Layout& places,
         float* memory)
      : p(problem),
        call(given),
        layout(places),
        lines(memory),
        row(memory + places.panels * places.panel_floats()) {
    for (long i = 0; i < places.panels * places.panel_floats(); ++i)
      lines[i] = 0.0f;  // the padding stays zero
    block =
        place_row_block<float, float>(memory + places.floats() - places.pointers,
                                      larger(p.depthwise.in_width, p.depthwise.out_width), 1, 0, 0);
  }

  // Multiplies a row of `pixels` pixels, `stride` apart and `depth` deep, by `outputs` columns.
  // place(panel): where channel 0 of the first result lies, and how far apart results lie.
  template <class Place>
  void multiply(const float* from, long pixels, long stride, long depth, const LayerCall& layer,
                long outputs, const float* result, const Place& place) {
    block.depth = depth;
    block.stride = stride;
    const TileCut cut = cut_rows(pixels);
    for (long panel = 0; panel * kPanel < outputs; ++panel) {
      place(panel);
      const Columns<float> columns = {layer.weights, panel, panel + 1, outputs, 0};
      for (long t = 0; t < cut.tiles; ++t) {
        const long first = cut.begin(t), rows = cut.begin(t + 1) - first;
        const float* tile = from + first * stride;
        const TileRows<float> at = {&tile, 1, 0, stride};
        multiply_panel<Walk::kRegular>(rows, block, first, at, columns, panel, layer.epilogue,
                                       result, tile);
      }
    }
  }

  // Expands row y of an image into the lines.
  void expand(const float* image, long y) {
    const Problem& d = p.depthwise;
    float* line = lines + layout.lines.at(y) + d.pad_left * kPanel;
    const auto place = [&](long panel) {
      // Tiles write channel `panel` * kPanel, which is channel 0 of the panel's own lines.
      float* to = line + panel * (layout.panel_floats() - kPanel);
      for (long i = 0; i < d.in_width; ++i) block.out[i] = to + i * kPanel;
    };
    multiply(image + y * d.in_width * p.in_channels, d.in_width, p.in_channels, p.in_channels,
             call.expansion, d.in_channels, nullptr, place);
  }

  // Copies row y of an image that is not expanded into the lines.
  void copy(const float* image, long y) {
    const Problem& d = p.depthwise;
    const float* from = image + y * d.in_width * d.in_channels;
    for (long c = 0; c < d.in_channels; c += kLanes) {
      copy_row(d, from + c, smaller(d.in_channels - c, kLanes), layout.lines,
               channel(c) + layout.lines.at(y));
    }
  }

  // The first line of channel c, a multiple of kLanes.
  float* channel(long c) const { return lines + c / kPanel * layout.panel_floats() + c % kPanel; }

  // Writes the depthwise results of row oy, `apart` elements apart from pixel to pixel.
  void filter(long oy, float* to, long apart) const {
    const Problem& d = p.depthwise;
    for (long c = 0; c < d.in_channels; c += kLanes) {
      const Strip<kPanel, float> strip = {d,
                                          call.depthwise.epilogue,
                                          weights_at(d, call.depthwise.weights, 0, c),
                                          channel(c),
                                          nullptr,
                                          c,
                                          smaller(d.in_channels - c, kLanes)};
      strip.row(layout.lines, oy, to + c, apart);
    }
  }

  // Projects the depthwise results of one row to `to`.
  void project(float* to) {
    const long width = p.depthwise.out_width;
    for (long i = 0; i < width; ++i) block.out[i] = to + i * p.out_channels;
    multiply(row, width, layout.row_stride, p.depthwise.in_channels, call.projection,
             p.out_channels, call.result, [](long) {});
  }

  // Computes rows [begin, end) of the results of image n.
  void compute(long n, long begin, long end) {
    const Problem& d = p.depthwise;
    const float* image =
        call.x + n * d.in_height * d.in_width * (p.expands() ? p.in_channels : d.in_channels);
    const long channels = p.projects() ? p.out_channels : d.in_channels;
    float* result = call.result + n * d.out_height * d.out_width * channels;
    long ready = 0;  // rows of the image before this one are in the lines, or not read any more
    for (long oy = begin; oy < end; ++oy) {
      const long top = oy * d.stride_y - d.pad_top;
      const long behind = smaller(top + (d.kernel_height - 1) * d.dilation_y + 1, d.in_height);
      for (ready = larger(ready, top); ready < behind; ++ready) {
        if (p.expands()) {
          expand(image, ready);
        } else {
          copy(image, ready);
        }
      }
      float* to = result + oy * d.out_width * channels;
      if (p.projects()) {
        filter(oy, row, layout.row_stride);
        project(to);
      } else {
        filter(oy, to, channels);
      }
    }
  }
};

long scratch_floats(const InvertedResidual& p, int threads) {
  return threads * Layout(p).floats();
}

// Returns the parts into which the rows of an image are cut. Each expands some rows of its
// neighbour once more, so there are no more than the threads need.
long parts_of(const InvertedResidual& p, int threads) {
  return smaller(divide_up(threads, p.depthwise.batch), p.depthwise.out_height);
}

void run(const InvertedResidual& p, const InvertedResidualCall& call) {
  const Layout layout(p);
  const long parts = parts_of(p, call.threads), rows = p.depthwise.out_height;
#pragma omp parallel num_threads(call.threads)
  {
    Worker worker(p, call, layout, call.scratch + omp_get_thread_num() * layout.floats());
#pragma omp for schedule(dynamic, 1)
    for (long item = 0; item < p.depthwise.batch * parts; ++item) {
      worker.compute(item / parts, part_begin(rows, parts, item % parts),
                     part_begin(rows, parts, item % parts + 1));
    }
  }
}

}  // namespace

const InvertedResidualPass inverted_residual = {run, scratch_floats};

}  // namespace BESTOF_TARGET
}  // namespace bestof

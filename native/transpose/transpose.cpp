#include "transpose/transpose.h"

namespace bestof {
namespace {

struct Walk {
  std::size_t extent[4];  // of the four loops, outermost first
  std::size_t read[4];    // stride of x along each loop, in elements
  std::size_t write[4];   // stride of y along each loop, in elements
};

void strides_of(const std::size_t shape[4], std::size_t stride[4]) {
  stride[3] = 1;
  for (int i = 2; i >= 0; --i) stride[i] = stride[i + 1] * shape[i + 1];
}

}  // namespace

void transpose4d(const float* x, const std::size_t shape[4], const int axes[4], LoopOrder order,
                 float* y) {
  std::size_t x_stride[4], y_shape[4], y_stride[4];
  strides_of(shape, x_stride);
  for (int i = 0; i < 4; ++i) y_shape[i] = shape[axes[i]];
  strides_of(y_shape, y_stride);

  Walk walk;
  for (int i = 0; i < 4; ++i) {
    if (order == LoopOrder::kWriteContiguous) {
      walk.extent[i] = y_shape[i];
      walk.read[i] = x_stride[axes[i]];
      walk.write[i] = y_stride[i];
    } else {
      walk.extent[axes[i]] = y_shape[i];
      walk.read[axes[i]] = x_stride[axes[i]];
      walk.write[axes[i]] = y_stride[i];
    }
  }
  // Two loops are collapsed, so that a batch of one still occupies every thread.
#pragma omp parallel for collapse(2) schedule(static)
  for (std::size_t a = 0; a < walk.extent[0]; ++a) {
    for (std::size_t b = 0; b < walk.extent[1]; ++b) {
      for (std::size_t c = 0; c < walk.extent[2]; ++c) {
        const float* from = x + a * walk.read[0] + b * walk.read[1] + c * walk.read[2];
        float* to = y + a * walk.write[0] + b * walk.write[1] + c * walk.write[2];
        for (std::size_t d = 0; d < walk.extent[3]; ++d)
          to[d * walk.write[3]] = from[d * walk.read[3]];
      }
    }
  }
}

}  // namespace bestof

#pragma once
#include "conv/problem.h"
#include "simd/each_isa.h"

namespace bestof {

// How the elements of an operand stand out, as flags.
constexpr int kInImage = 1, kInBatch = 2;

// Returns whether an element of x [images, height, width, channels], of float32 or bfloat16, stands
// out so far that an algorithm with transformed operands would carry its rounding into results that
// do not read it: among the blocks of all images (kInBatch), and among those of its own image
// (kInImage). It does if
//
// - an element is NaN or infinite, or its square overflows;
// - the sum of squares of a block is more than 2^8 times the geometric mean over all blocks that
//   are not zero. Natural images, and what layers make of them, stay below 2^3.5, objects on a
//   black ground below 2^7.5. With 2^12 in place of 2^8, an element just below it added 3.4 times
//   the promised error to results of the same tile that do not read it. Within an image the limit
//   is 2^6, and the mean is over the other blocks. With 2^8, errors in a batch of images that
//   differ were up to 1.4 times the promised one. Gradients of a VGG16 in training stay below 2^5;
// - fewer than one block in eight is not zero, or a single one. A result there is the bias. An
//   image of one block has no usual block either.
//
// A block is 4 x 4 pixels, in images of at most 4 x 4 it is 2 x 2, and in those of 2 x 2 a pixel.
//
// An algorithm keeps its promise if one flag is unset in all operands that are looked at. Without
// kInBatch, errors are those that results of a usual block of the batch may have. Without kInImage,
// this holds for each image as if it were alone. Images may then differ by any factor:
//
// - A tile of the forward pass and of the input gradient lies within one image.
// - The weight gradient is the sum of those of the images, and so is its error. A result
//   (k, c, r, s) pairs the same pixels in every image, so an image adds about as much to it as to
//   the other results (k, c), if nothing cancels. An image's error in it is at most the promised
//   part of that. The transforms mix no channels, so the error of (k, c) shrinks with the image's
//   gradient k and channel c.
//
// The answer does not depend on the number of threads.
BESTOF_EACH_ISA(int outliers(const void* x, Element element, long images, long height, long width,
                             long channels, int threads);)

}  // namespace bestof

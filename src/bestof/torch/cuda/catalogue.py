"""The alternatives of the three passes on a CUDA device, in order: the first is PyTorch as it is.

One more alternative is one more file and one more row. None has an estimate: those of the processor say nothing here,
and a race drops what is far behind at its second call.
"""

from __future__ import annotations

from bestof.torch.convolution import (
    as_is,
    channels_last,
    fft,
    forward_by_input_gradient,
    forward_by_weight_gradient,
    im2col,
    input_gradient_by_forward,
    weight_gradient_by_forward,
)
from bestof.torch.convolution.alternative import DIRECT, SPECTRAL, Alternative
from bestof.torch.convolution.catalogue import Catalogue
from bestof.torch.cuda import cudnn_benchmark

FORWARD = Catalogue(
    "forward",
    (
        Alternative("as is", as_is.forward, as_is.supports, None, accuracy="exact"),
        Alternative("channels last", channels_last.forward, channels_last.supports, None),
        Alternative("cudnn benchmark", cudnn_benchmark.forward, cudnn_benchmark.supports, None),
        Alternative("im2col", im2col.forward, im2col.supports, DIRECT),
        Alternative("fft", fft.forward, fft.supports, SPECTRAL),
        Alternative(
            "swap: weight gradient",
            forward_by_weight_gradient.forward,
            forward_by_weight_gradient.supports,
            None,
        ),
        Alternative(
            "swap: input gradient",
            forward_by_input_gradient.forward,
            forward_by_input_gradient.supports,
            None,
        ),
    ),
)

INPUT_GRADIENT = Catalogue(
    "input gradient",
    (
        Alternative("as is", as_is.input_gradient, as_is.supports, None, accuracy="exact"),
        Alternative("channels last", channels_last.input_gradient, channels_last.supports, None),
        Alternative(
            "cudnn benchmark", cudnn_benchmark.input_gradient, cudnn_benchmark.supports, None
        ),
        Alternative("im2col", im2col.input_gradient, im2col.supports, DIRECT),
        Alternative("fft", fft.input_gradient, fft.supports, SPECTRAL),
        Alternative(
            "swap: forward",
            input_gradient_by_forward.input_gradient,
            input_gradient_by_forward.supports,
            None,
        ),
    ),
)

WEIGHT_GRADIENT = Catalogue(
    "weight gradient",
    (
        Alternative("as is", as_is.weight_gradient, as_is.supports, None, accuracy="exact"),
        Alternative("channels last", channels_last.weight_gradient, channels_last.supports, None),
        Alternative(
            "cudnn benchmark", cudnn_benchmark.weight_gradient, cudnn_benchmark.supports, None
        ),
        Alternative("im2col", im2col.weight_gradient, im2col.supports, DIRECT),
        Alternative("fft", fft.weight_gradient, fft.supports, SPECTRAL),
        Alternative(
            "swap: forward",
            weight_gradient_by_forward.weight_gradient,
            weight_gradient_by_forward.supports,
            None,
        ),
    ),
)

CATALOGUES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)

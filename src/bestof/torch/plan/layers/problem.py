"""The problem of a fused layer: everything that the choice of an algorithm depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from bestof.accuracy import Accuracy
from bestof.kernels import Promise, conv2d_algorithms
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.plan.layers.layer import Layer

# More than most caches beyond the second level hold for one core.
_LARGE_BYTES = 16 * 2**20


class FusedProblem(NamedTuple):
    """The problem of a fused layer: a convolution with its epilogue.

    A linear layer is a convolution of one image, whose pixels are the rows. `pooled`: the result is
    the largest of each 2x2 results. `gated`: the result is multiplied by a gate. `planes`: the
    input lies in channels first. `pitch`: the channels of the pixels that the result is a part of,
    0 if it is whole.
    """

    convolution: ConvProblem
    residual: bool
    activation: str
    accuracy: Accuracy
    linear: bool
    pooled: bool = False
    gated: bool = False
    planes: bool = False
    pitch: int = 0

    def canonical(self) -> str:
        """Return the text that identifies the problem in the store."""
        return f"{self} {self.accuracy} threads={self.convolution.threads}"

    def __str__(self) -> str:
        words = [self.convolution.notation]
        words += ["linear"] if self.linear else []
        words += [self.convolution.dtype] if self.convolution.dtype != "float32" else []
        words += ["bias"] if self.convolution.bias else []
        words += ["residual"] if self.residual else []
        words += [self.activation] if self.activation else []
        words += ["max 2x2"] if self.pooled else []
        words += ["gate"] if self.gated else []
        words += ["input in channels first"] if self.planes else []
        words += [f"part of {self.pitch}"] if self.pitch else []
        return " ".join(words)

    @property
    def native(self) -> Mapping[str, Promise]:
        """What the native kernels promise for the convolution, by the names of the algorithms.

        Those that do not read planes get a copy of the input in channels last.
        """
        if self.convolution.dtype != "float32" and self.linear:
            return {}  # the product is the same kernel, without the rest of a convolution
        return self._promises("channels_last")

    @property
    def of_planes(self) -> Mapping[str, Promise]:
        """What the kernels promise that read the input in channels first; none for other inputs."""
        return self._promises("channels_first") if self.planes else {}

    def _promises(self, layout: str) -> Mapping[str, Promise]:
        one = self.convolution
        (n, c, h, w), (k, i, r, s) = one.input_shape, one.weight_shape
        return conv2d_algorithms(
            (n, c, h, w) if layout == "channels_first" else (n, h, w, c),
            (k, r, s, i),
            stride=one.stride,
            padding=one.padding,
            dilation=one.dilation,
            groups=one.groups,
            dtype=one.dtype,
            x_layout=layout,
        )

    @property
    def batched(self) -> ConvProblem:
        """The convolution; the rows of a linear layer are its images."""
        one = self.convolution
        _, features, _, rows = one.input_shape
        return one._replace(input_shape=(rows, features, 1, 1)) if self.linear else one

    @property
    def terms(self) -> int:
        """The number of products in each sum."""
        _, channels, height, width = self.convolution.weight_shape
        return channels * height * width

    @property
    def is_product(self) -> bool:
        """Whether the layer is one matrix product: linear, or a convolution of single pixels.

        In channels last the pixels of all images are the rows, for both kinds.
        """
        one = self.convolution
        whole = one.stride == (1, 1) and one.padding == (0, 0) and one.groups == 1
        return whole and one.weight_shape[2:] == (1, 1)

    @property
    def only_streams(self) -> bool:
        """Whether a linear layer has large weights, and so few rows that memory sets the pace.

        Then kernels for many rows save no time, and keep packed weights, as large as the model's.
        Measured on 25088 to 4096 features, in ms (PyTorch: 18.5, 38.1 and 38.8 for 1, 2, 8 rows):

        | rows | matvec | convgemm | matvec_bf16 | convgemm_bf16 |
        |---|---|---|---|---|
        | 1 | 11.8 | 12.0 | 5.8 | 5.9 |
        | 2 | 12.0 | 11.9 | 6.1 | 5.9 |
        | 8 | 16.5 | 12.1 | 9.8 | 5.9 |
        """
        images, _, _, width = self.convolution.input_shape
        filters, channels = self.convolution.weight_shape[:2]
        return images * width <= 2 and 4 * filters * channels > _LARGE_BYTES


def problem_of(
    layer: Layer,
    accuracy: Accuracy,
    x: tuple[int, ...],
    residual: bool,
    planes: bool = False,
    pitch: int = 0,
) -> FusedProblem:
    """Return the problem of a layer on an input of shape x: (rows, features) of a linear layer.

    planes: whether the input lies in channels first. pitch: of `FusedProblem`.
    """
    weight = tuple(layer.weights.weight.shape)
    convolution = ConvProblem(
        (1, x[1], 1, x[0]) if layer.linear else x,  # type: ignore[arg-type]  # four numbers
        (*weight, 1, 1) if layer.linear else weight,  # type: ignore[arg-type]  # four numbers
        layer.weights.bias is not None,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.groups,
        str(layer.weights.weight.dtype).removeprefix("torch."),
        input_layout="channels_last",
        weight_layout="channels_last",
        threads=torch.get_num_threads(),
    )
    return FusedProblem(
        *(convolution, residual, layer.activation, accuracy),
        *(layer.linear, layer.pooled, layer.gated, planes),
        pitch=pitch,
    )

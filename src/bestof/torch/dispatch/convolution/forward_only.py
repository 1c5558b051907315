"""Layers whose forward passes no backward pass follows."""

from __future__ import annotations

from bestof.torch.ops.convolution.problem import LayerProblem

_FORWARD_CALLS = 64
"""Forward passes in a row after which no backward pass is expected.

A network with more equal layers loses the times of some passes in each step, and settles later.
"""
_REMEMBERED = 4096


class ForwardOnly:
    """Tells which layers are inferred although gradients are on: a program left out `no_grad`.

    A layer's choice is timed by passes, each of which ends with its backward pass. Without one it
    is never made, and two small convolutions took 1.4 times as long as by PyTorch alone.
    """

    def __init__(self) -> None:
        self._waiting: dict[LayerProblem, int] = {}

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, LayerProblem) and self._waiting.get(layer, 0) >= _FORWARD_CALLS

    def note_forward(self, layer: LayerProblem) -> bool:
        """Note a forward pass. Return whether the layer is inferred from now on."""
        if len(self._waiting) >= _REMEMBERED:  # a program with ever new shapes must not grow
            self.clear()
        count = self._waiting.get(layer, 0) + 1
        self._waiting[layer] = count
        return count == _FORWARD_CALLS

    def note_backward(self, layer: LayerProblem) -> bool:
        """Note a backward pass. Return whether the layer was inferred until now."""
        return self._waiting.pop(layer, 0) >= _FORWARD_CALLS

    def clear(self) -> None:
        """Expect a backward pass of each layer again."""
        self._waiting.clear()

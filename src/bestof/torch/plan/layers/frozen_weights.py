"""The weights of a fused layer: folded with a norm, and packed once for each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.kernels import PackedMatrix, PackedWeights, isa, pack_weights
from bestof.torch.process.fork_lock import ForkLock


class Norm(NamedTuple):
    """An evaluated batch norm: (x - mean) / sqrt(variance + eps) * scale + shift, by channel.

    Without a mean and a variance: x * scale, as the layer scale of vision models.
    """

    mean: Tensor | None
    variance: Tensor | None
    scale: Tensor | None
    shift: Tensor | None
    eps: float

    def affine(self) -> tuple[Tensor, Tensor]:
        """(a, b) of a x + b, in float64."""
        if self.mean is None or self.variance is None:
            assert self.scale is not None
            a = self.scale.double()
            return a, torch.zeros_like(a)
        a = 1.0 / torch.sqrt(self.variance.double() + self.eps)
        if self.scale is not None:
            a = a * self.scale.double()
        b = -self.mean.double() * a
        return a, b if self.shift is None else b + self.shift.double()


class Packed:
    """Weights in one algorithm's layout; `shared` if that is the model's own memory."""

    __slots__ = ("__weakref__", "layout", "shared")

    def __init__(self, layout: PackedWeights | PackedMatrix | Tensor, shared: bool = False) -> None:
        self.layout: Any = layout
        self.shared = shared

    @property
    def nbytes(self) -> int:
        """The bytes of the layouts; 0 if the model's own memory serves."""
        if self.shared:
            return 0
        return int(self.layout.nbytes)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """Return how often each tensor was changed in place; 0 for those made in inference mode."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


class FrozenWeights:
    """The weights, bias and norm of one layer, as `optimize` found them.

    The weight is (O, I / groups, H, W), or (O, I) of a linear layer: `transposed` if the model
    holds (I, O). The tensors are the model's
    own, except the bias: no weight is copied before an algorithm wants a layout of its own. Such
    layouts are made once, shared by all steps with the same weights, and freed with the last of
    these steps. If a tensor has changed since, the next use raises `TorchError`.

    bias: in the type of the weight, for PyTorch's operators; native kernels add `float_bias`.
    limited_to: the only algorithm that a limit of memory allows (see `Choice`), or None.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        norm: Norm | None,
        groups: int,
        transposed: bool = False,
    ) -> None:
        own = weight.detach()
        self.weight, self.norm, self.groups = own.t() if transposed else own, norm, groups
        self.own_bias = None if bias is None else bias.detach()
        self._sources = [
            tensor for tensor in (weight, bias, *(norm or ())) if isinstance(tensor, Tensor)
        ]
        self._versions = versions(self._sources)
        self._lock = ForkLock()
        self._packed: WeakValueDictionary[tuple[str, ...], Packed] = WeakValueDictionary()
        self._held: tuple[Packed, ...] = ()
        self.limited_to: str | None = None
        folded = self._folded_bias(bias)
        self.bias = None if folded is None else folded.to(self.weight.dtype)
        self.float_bias = None if folded is None else folded.float()

    def check(self) -> None:
        """Raise TorchError if a tensor was changed in place since, or released."""
        if self.is_released:
            raise TorchError(
                f"optimize: a weight of shape {tuple(self.weight.shape)} was freed by "
                "plan.release(); save a plan "
                f"before releasing it, and optimise the model again for anything new"
            )
        if versions(self._sources) != self._versions:
            raise TorchError(
                f"optimize: a parameter of shape {tuple(self.weight.shape)} was changed after the "
                "plan was made, which is frozen; call optimize again"
            )

    @property
    def is_released(self) -> bool:
        """Whether the weight itself is gone, and only packed ones are left."""
        return self.weight.is_meta

    @property
    def watched(self) -> list[Tensor]:
        """The model's weights that a call of the plan watches for changes."""
        return [self.weight]

    def release(self, packed: Iterable[Packed]) -> None:
        """Keep these layouts, and drop the weight and the norm unless a layout is the weight."""
        self._held = tuple(packed)
        if any(one.shared for one in self._held):
            return
        self.weight, self.norm, self.own_bias = self.weight.to("meta"), None, None
        self._sources, self._versions = [], []

    def folded(self) -> Tensor:
        """Return the weight in its own layout, scaled by the norm."""
        self.check()
        if self.norm is None:
            return self.weight
        scale, _ = self.norm.affine()
        return (
            (self.weight.double() * scale.reshape(-1, *[1] * (self.weight.dim() - 1)))
            .to(self.weight.dtype)
            .detach()
        )

    def affine(self) -> tuple[Tensor, Tensor]:
        """Return (a, b) of the norm a x + b, in float32: one number a channel."""
        self.check()
        assert self.norm is not None
        scale, shift = self.norm.affine()
        return scale.float(), shift.float()

    def rows(self) -> Tensor:
        """Return the weight as native kernels read it: (O, H, W, I / groups), contiguous.

        The result is the model's own memory if the model has this layout.
        """
        folded = self.folded()
        folded = folded[:, :, None, None] if folded.dim() == 2 else folded
        return folded.permute(0, 2, 3, 1).contiguous()

    def rows_kept(self) -> Packed:
        """Return `rows` for kernels that read or transform the weight at each call."""

        def make() -> Packed:
            rows = self.rows()
            return Packed(rows, shared=_address(rows) == _address(self.weight))

        return self.kept(("rows",), make)

    def folded_kept(self) -> Packed:
        """Return `folded` for operators of PyTorch that read the weight at each call."""

        def make() -> Packed:
            folded = self.folded()
            return Packed(folded, shared=_address(folded) == _address(self.weight))

        return self.kept(("folded",), make)

    def packed_kept(self, kernel: str) -> Packed:
        """Return the weight as a native kernel packs it, for the instruction set in use."""
        return self.kept(
            (kernel, isa()),
            lambda: Packed(pack_weights(self.rows(), kernel, groups=self.groups)),
        )

    def kept(self, key: tuple[str, ...], make: Callable[[], Packed]) -> Packed:
        """Return the layout of a key, made once and kept while a step holds the layout."""
        with self._lock:
            packed = self._packed.get(key)
            if packed is None:
                packed = self._packed[key] = make()
            return packed

    def _folded_bias(self, bias: Tensor | None) -> Tensor | None:
        if self.norm is None:
            # A copy: kernels are given its address, and the model's own memory may move.
            return (
                None if bias is None else bias.detach().clone(memory_format=torch.contiguous_format)
            )
        scale, shift = self.norm.affine()
        if bias is None and self.norm.mean is None:
            return None
        folded = shift if bias is None else bias.double() * scale + shift
        return folded.contiguous()

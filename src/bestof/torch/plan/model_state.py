"""The parameters and buffers of a model as a plan met them, and whether they are still the same."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, nn

from bestof.errors import TorchError
from bestof.torch.shim import Watch, watch

_version = operator.attrgetter("_version")


def is_unchanged(tensor: Tensor, version: int, frozen: Tensor) -> bool:
    """Whether a tensor was neither changed in place since `version`, nor given other memory than `frozen`, its detached
    twin, has. What is written in place through `tensor.data` leaves no trace, and is not noticed."""
    if not tensor.is_inference() and tensor._version != version:
        return False
    return (
        tensor.data_ptr() == frozen.data_ptr()
    )  # both move where memory becomes shared between processes


class ModelState:
    """Every parameter and buffer of a model: where it is kept, which it is, and how often it was changed.

    It is asked at each call, by which time its objects have left the caches: for the 218 tensors of ResNet34 that takes
    0.37 ms by Python, of a call of 17, and 0.06 to 0.1 by what is compiled, which answers where it can tell that all is
    as it was.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        kept = (
            []
            if model is None
            else [
                (own, name, one)
                for module in model.modules()
                for own in (module._parameters, module._buffers)
                for name, one in own.items()
                if one is not None
            ]
        )
        self._owns: list[dict[str, Any]] = [own for own, _, _ in kept]
        self._names = [name for _, name, _ in kept]
        self._tensors = [one for _, _, one in kept]
        self._frozen = [one.detach() for one in self._tensors]
        self._counted = [one for one in self._tensors if not one.is_inference()]
        self._versions = list(map(_version, self._counted))
        self._count = self._count_now()
        self._watch = self._watched()

    def forget(self) -> None:
        """Let go of the model and all its tensors."""
        self.__init__(None)  # type: ignore[misc]

    def is_unchanged(self) -> bool:
        """Whether each is still in its place, and unchanged; what is new to the model is not looked for."""
        if self._watch is not None and self._watch.is_unchanged():
            return True
        # Compared by identity: two lists of tensors would compare their elements.
        unchanged = (
            all(map(operator.is_, map(dict.get, self._owns, self._names), self._tensors))
            and list(map(_version, self._counted)) == self._versions
            and list(map(Tensor.data_ptr, self._tensors))
            == list(map(Tensor.data_ptr, self._frozen))
        )
        if unchanged and self._watch is not None:
            self._watch = (
                self._watched()
            )  # all memory has moved, as where it becomes shared between processes
        return unchanged

    def has_grown(self) -> bool:
        """Whether the model has parameters or buffers that it did not have."""
        return self._count_now() != self._count

    def check(self) -> None:
        """Raise TorchError where one was changed or replaced."""
        if not self.is_unchanged():
            raise TorchError(
                "optimize: a parameter or buffer of the model was changed after the plan was made, in place or for "
                "another, and the plan is frozen; call optimize again"
            )

    def _watched(self) -> Watch | None:
        return watch(self._tensors, list(zip(self._owns, self._names, strict=True)))

    def _count_now(self) -> int:
        modules = [] if self._model is None else list(self._model.modules())
        return sum(
            one is not None
            for own in modules
            for one in (*own._parameters.values(), *own._buffers.values())
        )

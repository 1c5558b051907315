"""The parameters and buffers of a model as a plan met them, and whether they are still the same."""

from __future__ import annotations

from torch import Tensor, nn

from bestof.errors import TorchError


def is_unchanged(tensor: Tensor, version: int, frozen: Tensor) -> bool:
    """Whether a tensor was neither changed in place since `version`, nor given other memory than `frozen`, its detached
    twin, has. What is written in place through `tensor.data` leaves no trace, and is not noticed."""
    if not tensor.is_inference() and tensor._version != version:
        return False
    return tensor.data_ptr() == frozen.data_ptr()  # both move where memory becomes shared between processes


class ModelState:
    """Every parameter and buffer of a model: where it is kept, which it is, and how often it was changed."""

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._kept = (
            []
            if model is None
            else [
                (own, name, one, 0 if one.is_inference() else one._version, one.detach())
                for module in model.modules()
                for own in (module._parameters, module._buffers)
                for name, one in own.items()
                if one is not None
            ]
        )
        self._names = self._count()

    def is_unchanged(self) -> bool:
        """Whether each is still in its place, and unchanged; what is new to the model is not looked for."""
        return all(
            own.get(name) is one and is_unchanged(one, version, frozen)
            for own, name, one, version, frozen in self._kept
        )

    def has_grown(self) -> bool:
        """Whether the model has parameters or buffers that it did not have."""
        return self._count() != self._names

    def check(self) -> None:
        """Raise TorchError where one was changed or replaced."""
        if not self.is_unchanged():
            raise TorchError(
                "optimize: a parameter or buffer of the model was changed after the plan was made, in place or for "
                "another, and the plan is frozen; call optimize again"
            )

    def _count(self) -> int:
        modules = [] if self._model is None else list(self._model.modules())
        return sum(one is not None for own in modules for one in (*own._parameters.values(), *own._buffers.values()))

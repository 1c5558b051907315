"""How far the results of a plan may be from the right ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from bestof.torch.ops.distance import distance, rms, size_of
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.verify.injected_errors import (
    Moved,
    magnification,
    promised_errors,
    results_of,
    rounding_errors,
    run_shaken,
)

# Runs with injected errors, for results that only change as a whole: the largest of two numbers
# that are nearly equal. Each run moves one of them up with a chance of a half.
_SEEDS = 4
_TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers have fewer digits, or none
# Of one element, over the rms that is allowed; for numbers that stand out by more, more.
_SINGLE, _STANDS_OUT = 4.0, 4.0


# The axes along which errors vary that are alike along others: each channel of an image, each row
# of a matrix, each column.
_VARYING: tuple[Callable[[int], Collection[int]], ...] = (
    range,
    lambda axes: range(min(2, axes)),
    lambda axes: range(axes - 1),
    lambda axes: range(max(axes - 1, 0), axes),
)


class _Factors:
    """What a type allows.

    alike: injected errors are independent, so their squares add up; real ones may be alike, and
    their sum is larger. units: of rounding, beside errors that grow. loose: the error, over the
    rms of the result, beyond which a comparison tells little. again: a rounding error over the
    largest of some others.
    """

    alike, units, loose, again = 8.0, 16.0, 0.01, 2.0


class _Halves(_Factors):
    """Of bfloat16, whose injected errors are the largest that a rounding can be: six times its rms.

    Right plans came to a tenth of these bounds. With the factors of float32, a result that is wrong
    by a fifth would pass behind one layer.
    """

    alike, units, loose, again = 3.0, 4.0, 0.5, 2.0


class Bounds:
    """How far results may be from others: measured once, by runs with injected errors.

    got: the results of the plan.
    wide: returns the results of the model in float64; None if it does not run so.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[Tensor],
        scales: dict[str, float],
        wide: Callable[[], Sequence[Any] | None] = lambda: None,
    ) -> None:
        self._program, self._inputs, self._run_wide = program, inputs, wide
        # Before the run, which may settle a layer after an algorithm with a larger error ran it.
        errors = promised_errors(program)
        self.got = results_of(program, inputs)
        self._magnified = magnification([*errors.values(), *rounding_errors(program)])
        self._injected = {name: (error, scales[name]) for name, error in errors.items()}
        self._shaken = run_shaken(program, inputs, self._injected, self._magnified, self.got)

    def complaint(self, got: Sequence[Any], rights: Sequence[Any]) -> str | None:
        """Return how results differ from the right ones, in words; None if rounding explains it."""
        outputs = len(rights) - len(self._program.changed.places)
        names = [f"output {place}" for place in range(outputs)]
        names += [f"changed input {place}" for place in self._program.changed.places]
        for place, (name, one, right) in enumerate(zip(names, got, rights, strict=True)):
            if isinstance(right, Tensor):
                wrong = self._complaint(place, one, right)
                if wrong is not None:
                    return f"{name}{wrong}"
        return None

    def tell(self, rights: Sequence[Any]) -> bool:
        """Return whether results within the bounds tell that a plan is right."""
        return all(
            self._tells(place, right)
            for place, right in enumerate(rights)
            if isinstance(right, Tensor) and right.is_floating_point() and right.numel()
        )

    def _tells(self, place: int, right: Tensor) -> bool:
        size = rms(right)
        allowed, _ = self._allowed(place, right)
        return isfinite(size) and size > 0 and allowed <= _factors(right).loose * size

    def _complaint(self, place: int, got: Any, right: Tensor) -> str | None:
        if not isinstance(got, Tensor) or got.shape != right.shape or got.dtype is not right.dtype:
            return f": expected {_described(right)}; the plan returns {_described(got)}"
        if right.is_floating_point():
            return self._difference(place, got, right)
        if torch.equal(got, right):
            return None
        return exact_difference(right, (rough[place] for rough in self._seeded))

    def _difference(self, place: int, got: Tensor, right: Tensor) -> str | None:
        same, off = distance(got, right)
        if not same:
            same, off = distance(got, self._right_or_wide(place, got, right))
        if not same:
            return " has NaN or infinity where the model's has not, or the other way round"
        allowed, single = self._allowed(place, right)
        if not (off.rms <= allowed and off.peak <= single):
            allowed, single = self._allowed_unmagnified(place, right, allowed, single)
        if not off.rms <= allowed:
            return (
                f" differs from the model's by {off.rms:.3g} rms where rounding explains "
                f"{allowed:.3g}"
            )
        if not off.peak <= single:
            return (
                f" differs from the model's by {off.peak:.3g} in an element where rounding "
                f"explains {single:.3g}"
            )
        return None

    def _right_or_wide(self, place: int, got: Tensor, right: Tensor) -> Tensor:
        """Return the right result, with numbers of float64 where another result is NaN or infinite.

        NaN of the model that float64 has not are errors of a kernel: GELU by oneDNN makes NaN of
        infinity. PyTorch has other kernels for other layouts, which do not. Numbers of float64 that
        are infinite in the type of the result stay out, such as a mask of the smallest number.
        """
        wide = None if self._wide is None else self._wide[place]
        if not isinstance(wide, Tensor) or wide.shape != right.shape:
            return right
        numbers = torch.isfinite(got) & torch.isfinite(right)
        alike = numbers | (got == right) | (torch.isnan(got) & torch.isnan(right))
        narrow = wide.to(right.dtype)
        fits = torch.isfinite(narrow) | ~torch.isfinite(wide)
        return torch.where(alike | ~fits, right, narrow)

    @cached_property
    def _wide(self) -> Sequence[Any] | None:
        return self._run_wide()

    def _allowed(self, place: int, right: Tensor) -> tuple[float, float]:
        """Return how far a result may be from the right one: the rms, and in one element."""
        factors, numbers = _factors(right), size_of(right)
        moved, size = self._shaken[place].size, numbers.rms
        allowed = factors.units * float(torch.finfo(right.dtype).eps) * size + _TINY
        allowed += factors.alike * moved.rms / self._magnified
        stands_out = max(1.0, numbers.peak / size / _STANDS_OUT) if size > 0 else 1.0
        # A step function may move an element by as much as the injected errors do.
        return allowed, _SINGLE * allowed * stands_out + 2 * moved.peak

    def _allowed_unmagnified(
        self, place: int, right: Tensor, allowed: float, single: float
    ) -> tuple[float, float]:
        """Return how far a result may be from the right one, if little of it is left of sums.

        A norm of each group before a mean over the group yields 0 in exact numbers. Nothing of a
        magnified error is left behind them. PyTorch's result is the rounding error of its norm,
        which any other rounding before the norm exchanges for another. Errors as large as promised
        show how large: independent ones, and such as are alike along some axes.
        """
        factors = _factors(right)
        largest = max(one[place].size.rms for one in self._unmagnified)
        allowed = max(allowed, factors.again * largest)
        return allowed, max(single, _SINGLE * allowed)

    @cached_property
    def _unmagnified(self) -> list[list[Moved]]:
        """What errors as large as promised do to the results."""
        given = self._program, self._inputs, self._injected, 1.0, self.got
        return [run_shaken(*given, seed, varies) for varies in _VARYING for seed in range(_SEEDS)]

    @cached_property
    def _seeded(self) -> list[list[Moved]]:
        """What other errors do, which are at least as large as real ones that are alike."""
        larger = max(self._magnified, _Factors.alike)
        return [
            run_shaken(self._program, self._inputs, self._injected, larger, self.got, seed)
            for seed in range(_SEEDS)
        ]


def exact_difference(right: Tensor, shaken: Iterable[Moved]) -> str | None:
    """Return how a result that is no floating-point number differs, in words.

    None if injected errors change it: then rounding alone may.
    """
    if all(one.same for one in shaken):
        return f": {_described(right)} differs from the model's"
    return None


def _factors(right: Tensor) -> type[_Factors]:
    return _Halves if torch.finfo(right.dtype).eps > 1e-3 else _Factors


def _described(value: Any) -> str:
    return (
        f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    )

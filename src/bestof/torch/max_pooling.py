"""Maximum pooling: chooses among alternatives with the same values and indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.errors import NoAlternative
from bestof.kernels import transpose
from bestof.selection import Alternative, BestOf, unless_shared
from bestof.torch.comparison import Finding
from bestof.torch.convolution.memory_format import in_format
from bestof.torch.convolution.selectors import RACE, SEARCHES
from bestof.torch.depends import DEPENDS
from bestof.torch.modes import are_modes_on, without_modes
from bestof.torch.python_kernel import PythonKernel
from bestof.torch.row_verifier import RowVerifier

Pooled = tuple[Tensor, Tensor]
"""The maxima, and the index of each maximum in its plane."""

_NAME = "aten::max_pool2d_with_indices"
_TRANSPOSED = "native transposition"

# The least size that is chosen for. PyTorch pools smaller images in less than 100 to 250
# microseconds, and a settled call costs 7.
_LEAST_BYTES = 512 * 2**10
_REMEMBERED = 4096
# Above this, products of arguments could exceed PyTorch's integers. PyTorch answers or refuses.
_ABSURD = 2**24
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_DTYPES = frozenset({torch.float32, torch.float64})


class MaxPoolProblem(NamedTuple):
    """One maximum pooling of dense images in channels first, with PyTorch's arguments."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    dtype: str
    threads: int

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        sizes = (
            ("i", self.shape),
            ("k", self.kernel),
            ("s", self.stride),
            ("p", self.padding),
            ("d", self.dilation),
        )
        words = [",".join(name + "x".join(map(str, values)) for name, values in sizes)]
        words += [
            word
            for word, here in ((self.dtype, self.dtype != "float32"), ("ceil", self.ceil_mode))
            if here
        ]
        return " ".join(words)


class MaxPoolOverride:
    """Answers `aten::max_pool2d_with_indices` on the CPU, which all maximum pooling calls.

    PyTorch compares single elements in channels first, and vectors of channels in channels last.
    For 8 images of 64 x 112 x 112 this takes 24.8 ms and 1.6 ms, with 2 threads of a Zen 4. So
    bestof also tries pooling in channels last with transpositions. All alternatives give the same
    bits, including indices and NaN.

    PyTorch's own kernel answers calls for images that are small, not dense, or in channels last. It
    also answers invalid calls, with its own error.
    """

    def __init__(self) -> None:
        call = torch.library.get_kernel(_NAME, "CPU").call_boxed
        self._original = partial(call, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))
        self._kernel = PythonKernel(_NAME, self._pool)
        self._valid: dict[MaxPoolProblem, bool] = {}
        rows = {
            "as is": self._as_is,
            "channels last": self._channels_last,
            _TRANSPOSED: self._transposed,
        }
        self.selector = BestOf(
            "max pooling",
            [
                Alternative("as is", rows["as is"], DEPENDS),
                Alternative("channels last", rows["channels last"], DEPENDS),
                Alternative(_TRANSPOSED, rows[_TRANSPOSED], DEPENDS, supports=_is_float32),
            ],
            lambda problem, _: problem,
            check=PoolingVerifier(rows),
            policy=unless_shared(RACE),
            max_searches=SEARCHES,
        )

    def register(self) -> None:
        """Put the override in. Does nothing if it is in."""
        self._kernel.register()

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        self._kernel.remove()

    def _pool(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        ceil_mode: bool = False,
    ) -> Pooled:
        if are_modes_on():
            return without_modes(
                self._pool, input, kernel_size, stride, padding, dilation, ceil_mode
            )
        if (
            type(input) not in _PLAIN
            or input.layout is not torch.strided
            or input.dim() != 4
            or input.dtype not in _DTYPES
            or input.nbytes < _LEAST_BYTES
            or not input.is_contiguous()
            or input.is_contiguous(memory_format=torch.channels_last)
            or torch._C._get_tracing_state() is not None
        ):
            return self._original(  # type: ignore[no-any-return]
                input, kernel_size, stride, padding, dilation, ceil_mode
            )
        problem = MaxPoolProblem(
            tuple(input.shape),
            tuple(kernel_size),
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            ceil_mode,
            "float32" if input.dtype is torch.float32 else "float64",
            torch.get_num_threads(),
        )
        if not self._is_valid(problem):
            return self._as_is(problem, input)
        try:
            return self.selector(problem, input)  # type: ignore[no-any-return]
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return self._as_is(problem, input)

    def _is_valid(self, problem: MaxPoolProblem) -> bool:
        """Return whether PyTorch accepts the arguments."""
        valid = self._valid.get(problem)
        if valid is None:
            valid = is_valid(problem)
            if len(self._valid) >= _REMEMBERED:
                self._valid.clear()
            self._valid[problem] = valid
        return valid

    def _as_is(self, problem: MaxPoolProblem, input: Tensor) -> Pooled:
        return self._original(input, *problem[1:6])  # type: ignore[no-any-return]

    def _channels_last(self, problem: MaxPoolProblem, input: Tensor) -> Pooled:
        maxima, indices = self._original(
            input.contiguous(memory_format=torch.channels_last), *problem[1:6]
        )
        return in_format(maxima, False), in_format(indices, False)

    def _transposed(self, problem: MaxPoolProblem, input: Tensor) -> Pooled:
        """Pool in channels last, with native transpositions before and after.

        For 8 x 64 x 112 x 112, the transposition of the results takes 2 ms; PyTorch's takes 5.8 ms.
        """
        n, c, h, w = input.shape
        rows = torch.empty((n, h, w, c), dtype=input.dtype, device="cpu")
        transpose(input.detach(), (0, 2, 3, 1), out=rows)
        maxima, indices = self._original(rows.permute(0, 3, 1, 2), *problem[1:6])
        planes = torch.empty(maxima.shape, dtype=maxima.dtype, device="cpu")
        transpose(maxima.permute(0, 2, 3, 1).contiguous(), (0, 3, 1, 2), out=planes)
        return planes, in_format(indices, False)


class PoolingVerifier(RowVerifier):
    """Compares maxima and indices, which have the same bits by all rows; NaN is equal to NaN."""

    def __init__(self, rows: Mapping[str, Callable[[MaxPoolProblem, Tensor], Pooled]]) -> None:
        super().__init__(next(iter(rows)))
        self._rows = rows

    def run(self, alternative: str, _stage: int, args: tuple[Any, ...]) -> Pooled:
        """Return what a row computes."""
        return self._rows[alternative](*args)

    def compare(
        self, _alternative: str, _stage: int, _args: tuple[Any, ...], expected: Pooled, got: Pooled
    ) -> Finding:
        """Return whether the maxima or their indices differ. One value everywhere tells nothing."""
        (maxima, indices), (right, places) = got, expected
        if not bool(((maxima == right) | (maxima.isnan() & right.isnan())).all()):
            return Finding("a maximum differs")
        if not torch.equal(indices, places):
            return Finding("the index of a maximum differs")
        return Finding(tells=bool((right != right.flatten()[0]).any()))


def is_valid(problem: MaxPoolProblem) -> bool:
    """Return whether PyTorch accepts the arguments, and the result is not empty.

    These are the checks of PyTorch's pooling. A meta tensor would tell the same, but the first one
    of a process imports 480 modules, which takes half a second.
    """
    kernel, stride, padding, dilation = (_pair(one) for one in problem[1:5])
    if problem.stride == ():  # the default
        stride = kernel
    if not (kernel and stride and padding and dilation) or 0 in problem.shape[1:]:
        return False
    return all(
        _is_valid_axis(*axis, problem.ceil_mode)
        for axis in zip(problem.shape[2:], kernel, stride, padding, dilation, strict=True)
    )


def _pair(given: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of both axes; () if there are neither one nor two."""
    return given * 2 if len(given) == 1 else given if len(given) == 2 else ()


def _is_valid_axis(
    extent: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> bool:
    if min(kernel, stride, dilation) < 1 or max(kernel, stride, padding, dilation) > _ABSURD:
        return False
    if not 0 <= padding <= kernel // 2:
        return False
    window = dilation * (kernel - 1) + 1
    places = (extent + 2 * padding - window + (stride - 1 if ceil_mode else 0)) // stride + 1
    # A window of `ceil_mode` that begins behind the image and its padding is left out.
    if ceil_mode and (places - 1) * stride >= extent + padding:
        places -= 1
    return places >= 1


def _is_float32(problem: Any) -> bool:
    return bool(problem.dtype == "float32")

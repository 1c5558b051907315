"""Compares the first result of each row of a table with that of PyTorch's own kernel."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.errors import InvalidArgument
from bestof.selection import Verdict, Verifier
from bestof.selection.interrupts import reraise_from_outside
from bestof.torch.backends.cuda.events import is_capturing
from bestof.torch.ops.combination import Combination
from bestof.torch.ops.comparison import Finding, made_up
from bestof.torch.process.freed_memory import LARGE_BYTES, mapping_large
from bestof.torch.rows.operand_guard import OperandGuard


class Combined(NamedTuple):
    """A smaller call that tells whether a result is right, and PyTorch's own result of it."""

    combination: Combination
    result: Tensor

    def is_alike(self, got: Any) -> bool:
        """Return whether a result of the call has the right shape and type."""
        if not isinstance(got, Tensor) or got.layout is not torch.strided or not got.dim():
            return False
        shape = (len(self.combination.numbers), *self.result.shape[1:])
        return tuple(got.shape) == shape and kind_of(self.result, got[:1]) is None


class Expected:
    """What a result is compared with, and the operands before the alternative runs.

    With `combined`, PyTorch's own result of the call is computed only if it is needed.
    """

    def __init__(
        self, run: Callable[[], Any], guard: OperandGuard, combined: Combined | None = None
    ) -> None:
        self._run, self.guard, self.combined = run, guard, combined
        self._results = [] if combined is not None else [run()]

    @property
    def result(self) -> Any:
        """PyTorch's own result of the call."""
        if not self._results:
            self.guard.put_back()
            self._results.append(self._run())
        return self._results[0]


class RowVerifier(Verifier):
    """A verifier over the rows of one operation, of which the first is PyTorch's own kernel.

    A subclass runs rows and compares their results. If the operands of a call show nothing, for
    example because a weight is zero, a row also runs on normal numbers. So it does if a result
    differs and an operand has NaN or infinities.
    """

    def __init__(self, first: str) -> None:
        self._first = first

    @abstractmethod
    def run(self, alternative: str, stage: int, args: tuple[Any, ...]) -> Any:
        """Return what a row computes for the arguments of a call."""

    def operands(self, _stage: int, args: tuple[Any, ...]) -> Sequence[Tensor | None]:
        """Return the tensors of a call; here, all that stands behind the problem."""
        return args[1:]

    def replaced(
        self, _stage: int, args: tuple[Any, ...], operands: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        """Return the call with other tensors."""
        return (args[0], *operands)

    def combination(self, _stage: int, _args: tuple[Any, ...]) -> Combination | None:
        """Return a smaller call that tells whether a result is right; None without one."""
        return None

    @abstractmethod
    def compare(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which of the results of PyTorch's own kernel and of a row is wrong."""

    def trusts(self, alternative: str) -> bool:
        """Return whether this is PyTorch's own kernel."""
        return alternative == self._first

    def wait(self, stage: int, args: tuple[Any, ...]) -> None:
        """Wait for the stream. A step of a U-Net of 36 ms is queued before a call, and counted as
        the price of each comparison: of 57 passes, 4 were decided in 1,900 steps.
        """
        device = _cuda_of(self.operands(stage, args))
        if device is not None and not is_capturing():
            torch.cuda.current_stream(device).synchronize()

    def expect(self, stage: int, args: tuple[Any, ...]) -> Expected | Verdict:
        """Return PyTorch's own result, or that of a smaller call, with copies of the operands.

        While a CUDA stream is captured into a graph, nothing can be compared. If the operands are
        too large for copies, the result is computed now: the alternative may change them.
        """
        operands = self.operands(stage, args)
        if _cuda_of(operands) is not None and is_capturing():
            return Verdict(self.run(self._first, stage, args), tells=False)
        guard = OperandGuard(operands)
        with _mapping_if_large(operands):
            combined = self._combined(stage, args) if guard.has_copies else None
            return Expected(partial(self.run, self._first, stage, args), guard, combined)

    def expect_of_trusted(self, stage: int, args: tuple[Any, ...]) -> Expected | None:
        """Return PyTorch's own result of a smaller call, for its own kernel; None without one."""
        combined = self._combined(stage, args)
        if combined is None:
            return None
        return Expected(partial(self.run, self._first, stage, args), OperandGuard(()), combined)

    def _combined(self, stage: int, args: tuple[Any, ...]) -> Combined | None:
        found = self.combination(stage, args)
        return None if found is None else Combined(found, self.run(self._first, stage, found.args))

    def judge(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Expected, got: Any
    ) -> Verdict:
        """Return the verdict on the first result of a row."""
        with _mapping_if_large(self.operands(stage, args)):
            return self._judge(alternative, stage, args, expected, got)

    def _judge(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Expected, got: Any
    ) -> Verdict:
        verdict = self._judged_by_combination(alternative, stage, args, expected, got)
        if verdict is not None:
            return verdict
        right = expected.result
        wrong = self.fault(expected, got) or expected.guard.complaint(_tensors(got))
        if wrong is not None:
            return Verdict(self.answer(expected), wrong)
        try:
            found = self.compare(alternative, stage, args, right, got)
            operands = self.operands(stage, args)
            # Transforms spread a NaN or an infinity over all elements of a tile.
            if not (found.tells if found.wrong is None else _are_finite(operands)):
                numbers = self.replaced(stage, args, made_up(operands))
                by_pytorch = self.run(self._first, stage, numbers)
                by_row = self.run(alternative, stage, numbers)
                found = self.compare(alternative, stage, numbers, by_pytorch, by_row)
        except InvalidArgument as error:  # of the bound that a program gave
            return Verdict(self.answer(expected), str(error))
        except (RuntimeError, MemoryError):  # memory is short: the next result is compared
            reraise_from_outside()
            return Verdict(right, tells=False)
        answer = got if found.wrong is None else right
        return Verdict(answer, found.wrong, found.reference_wrong)

    def _is_right(self, stage: int, args: tuple[Any, ...], got: Any) -> bool:
        """Return whether another combination finds PyTorch's own result right.

        Parts may cancel in one of them.
        """
        again = self._combined(stage, args)
        assert again is not None  # there was one
        mine = again.combination.of(got)
        found = self.compare(self._first, stage, again.combination.args, mine, again.result)
        return found.reference_wrong is None

    def _judged_by_combination(
        self,
        alternative: str,
        stage: int,
        args: tuple[Any, ...],
        expected: Expected,
        got: Any,
    ) -> Verdict | None:
        """Return the verdict of the smaller call; None if PyTorch's whole result must tell."""
        if expected.combined is None or not expected.combined.is_alike(got):
            return None
        (combination, right), trusted = expected.combined, self.trusts(alternative)
        wrong = expected.guard.complaint((got,))
        if wrong is not None:
            return Verdict(self.answer(expected), wrong)
        if not right.isfinite().all():  # one number of the operands hides all parts
            return Verdict(got, tells=False) if trusted else None
        mine = combination.of(got)
        try:
            if trusted:  # its result is in question
                found = self.compare(alternative, stage, combination.args, mine, right)
                if found.reference_wrong is not None and self._is_right(stage, args, got):
                    return Verdict(got, tells=False)
                return Verdict(got, found.reference_wrong, tells=found.tells)
            found = self.compare(alternative, stage, combination.args, right, mine)
        except (InvalidArgument, RuntimeError, MemoryError):
            reraise_from_outside()
            return None
        return Verdict(got) if found == Finding() else None

    def fault(self, expected: Expected, got: Any) -> str | None:
        """Return how a result is no tensors of the expected shapes and types, in words."""
        if expected.combined is not None and expected.combined.is_alike(got):
            return None
        return kind_of(expected.result, got)

    def put_back(self, expected: Expected) -> None:
        """Put changed operands back."""
        expected.guard.put_back()

    def answer(self, expected: Expected) -> Any:
        """Put changed operands back and return PyTorch's own result."""
        expected.guard.put_back()
        return expected.result


def _cuda_of(operands: Sequence[Tensor | None]) -> torch.device | None:
    """Return the CUDA device of the operands, or None."""
    return next((one.device for one in operands if one is not None and one.is_cuda), None)


def _mapping_if_large(operands: Sequence[Tensor | None]) -> AbstractContextManager[None]:
    """Return a context in which large results, which are compared once, lie outside of the heap.

    In training on 32 channels of 900 x 900 numbers, the peak is 876 MiB in place of 1,436 to 1,538
    (plain PyTorch 839).
    """
    size = sum(one.nbytes for one in operands if one is not None and one.device.type == "cpu")
    return mapping_large() if size >= LARGE_BYTES else nullcontext()


def _are_finite(operands: Sequence[Tensor | None]) -> bool:
    return all(one is None or bool(one.isfinite().all()) for one in operands)


def _tensors(result: Any) -> Sequence[Tensor | None]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def kind_of(expected: Any, got: Any) -> str | None:
    """Return how a result is no tensors of the expected shapes and types, in words."""
    if isinstance(expected, Tensor):
        if not isinstance(got, Tensor):
            return f"expected a tensor; got {type(got).__name__}"
        mine = (got.dtype, got.device, got.layout, tuple(got.shape))
        theirs = (expected.dtype, expected.device, expected.layout, tuple(expected.shape))
        if mine != theirs:
            return f"expected {_words(expected)}; got {_words(got)}"
        if type(got) is not type(expected):
            return f"expected a {type(expected).__name__}; got a {type(got).__name__}"
        if got.requires_grad and not expected.requires_grad:
            return "the result wants a gradient; detach it"
        if got.is_inference() and not expected.is_inference():
            return "the result was made in inference mode"
        return None
    if not isinstance(got, tuple | list) or len(got) != len(expected):
        return f"expected {len(expected)} results; got {type(got).__name__}"
    for one, other in zip(expected, got, strict=True):
        if (one is None) != (other is None):
            return f"expected {_words(one)}; got {_words(other)}"
        wrong = None if one is None else kind_of(one, other)
        if wrong is not None:
            return wrong
    return None


def memory_of(result: Any) -> set[int]:
    """Return the addresses of the memory that results lie in."""
    found = [one for one in _tensors(result) if one is not None and one.numel()]
    return {one.untyped_storage().data_ptr() for one in found}


def wrong_strides(expected: Any, got: Any) -> list[str]:
    """Return where results lie otherwise than PyTorch's; strides along one element are free."""
    wrong = []
    for right, mine in zip(_tensors(expected), _tensors(got), strict=True):
        if right is None or mine is None:
            continue
        axes = [axis for axis, size in enumerate(right.shape) if size > 1 and right.numel()]
        if any(right.stride(axis) != mine.stride(axis) for axis in axes):
            wrong.append(f"expected strides {right.stride()}; got {mine.stride()}")
    return wrong


def _words(one: Tensor | None) -> str:
    if one is None:
        return "nothing"
    layout = "" if one.layout is torch.strided else f" {str(one.layout).removeprefix('torch.')}"
    return f"{one.dtype}{layout} {tuple(one.shape)} on {one.device}"

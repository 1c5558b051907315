"""Bernoulli numbers, such as those of dropout: chooses between PyTorch's kernel and a native one.

On processors that are not Intel's, PyTorch draws one number after the other, in 4.4 ns each on a
Zen 5. Dropout of BERT-base took 43 ms of a step of 318. The native kernel draws the same numbers
from the same Mersenne twister, in vectors, in 0.36 ns each. So the bits are PyTorch's, and so is
the state that the generator is left in.

`aten::bernoulli_` overwrites its argument and changes a generator. The rows do neither: they read a
state, and return numbers and the state afterwards. `finish` puts both in place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from ctypes import memmove
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, default_generator

from bestof.accuracy import Accuracy
from bestof.kernels import BernoulliPlan
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, name_of
from bestof.torch.ops.examples import random
from bestof.torch.ops.guards import PLAIN, passes_through
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row

LEAST = 2**15
"""Numbers. PyTorch takes 0.14 milliseconds on a Zen 5."""

STATE_BYTES = 5056
"""What `torch.Generator.get_state` returns, of which the native kernel reads the first 5,016."""

_PROBED = 700  # numbers: more than one state of the twister has

# Between the question whether the generator is as it was, and the change of its state.
_lock = threading.Lock()


class BernoulliProblem(NamedTuple):
    """So many Bernoulli numbers of a dtype. Their probability does not change the time."""

    size: int
    dtype: str

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return str(self)

    def __str__(self) -> str:
        return f"{self.size} {self.dtype}"


Drawn = tuple[Tensor, Tensor]
"""The numbers, and the state of the generator afterwards."""


def as_is(original: Kernel, problem: BernoulliProblem, state: Tensor, probability: float) -> Drawn:
    """Draw by PyTorch's own kernel."""
    generator = torch.Generator("cpu")
    generator.set_state(state)
    numbers = torch.empty(problem.size, dtype=getattr(torch, problem.dtype), device="cpu")
    original(numbers, probability, generator)
    return numbers, generator.get_state()


def native(
    _original: Kernel, problem: BernoulliProblem, state: Tensor, probability: float
) -> Drawn:
    """Draw by a native kernel."""
    numbers = torch.empty(problem.size, dtype=getattr(torch, problem.dtype), device="cpu")
    after = state.clone()
    plan = BernoulliPlan(problem.size, probability, dtype=problem.dtype)
    plan.run(state.data_ptr(), numbers.data_ptr(), after.data_ptr())
    return numbers, after


@cache
def is_serial() -> bool:
    """Return whether PyTorch draws as the native kernel does, by numbers of another generator.

    On Intel's processors, MKL draws others in its place.
    """
    generator = torch.Generator("cpu").manual_seed(1)
    state = generator.get_state()
    if state.numel() != STATE_BYTES:
        return False
    numbers = torch.empty(_PROBED, device="cpu").bernoulli_(0.5, generator=generator)
    problem = BernoulliProblem(_PROBED, name_of(numbers.dtype))
    mine, after = native(print, problem, state, 0.5)
    return torch.equal(mine, numbers) and torch.equal(after, generator.get_state())


def _draws_alike(_problem: BernoulliProblem) -> bool:
    return is_serial()


class Bernoulli(Operation[BernoulliProblem]):
    """`aten::bernoulli_` by PyTorch's default generator. The operands: its state, and `p`."""

    name = "bernoulli"
    operator = "aten::bernoulli_.float"
    least = LEAST
    others = 1
    rows = (
        Row("as is", as_is),
        Row("native", native, _draws_alike, dtypes=(FLOAT32, FLOAT64, BFLOAT16, FLOAT16)),
    )

    def call(
        self, _level: Accuracy, x: Tensor, p: float = 0.5, generator: object = None
    ) -> Call | None:
        """Return the problem and the operands of a call; None if PyTorch answers it."""
        if x.dtype not in self.dtypes or x.numel() < LEAST or type(x) not in PLAIN:
            return None
        if generator is not None or not 0.0 <= p <= 1.0 or passes_through():
            return None
        if not _is_dense(x):
            return None
        state = default_generator.get_state()
        return Call(BernoulliProblem(x.numel(), name_of(x.dtype)), (state, p))

    def arguments(self, _operator: str, _given: tuple[Any, ...]) -> None:
        """Return None: plans leave it to PyTorch."""

    def finish(self, call: Call, arguments: tuple[Any, ...], results: Drawn) -> Tensor | None:
        """Write the numbers, and let the generator go on; None if another thread has drawn."""
        numbers, after = results
        with _lock:
            if not torch.equal(default_generator.get_state(), call.operands[0]):
                return None
            default_generator.set_state(after)
        x: Tensor = arguments[0]
        # By one thread: to wake another takes as long, and far longer on a busy machine.
        memmove(x.data_ptr(), numbers.data_ptr(), numbers.nbytes)
        return x

    def replaced(self, args: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Return the call with another state."""
        return args[0], tensors[0], args[2]

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return the masks of dropout in a layer of BERT."""
        return {
            "256 x 768": (random(256, 768).bfloat16(), 0.9, None),
            "24 x 128 x 128": (random(24, 128, 128), 0.9, None),
        }

    def compare(
        self, _row: Any, _original: Any, _args: Any, expected: Drawn, got: Drawn
    ) -> Finding:
        """Return whether a number or the state differs."""
        (numbers, after), (right, state) = got, expected
        if not torch.equal(numbers, right):
            return Finding("a number differs")
        return Finding() if torch.equal(after, state) else Finding("the generator's state differs")


def _is_dense(x: Tensor) -> bool:
    """Return whether numbers lie side by side. PyTorch's kernel draws them in this order."""
    if x.layout is not torch.strided:
        return False
    axes = sorted(range(x.dim()), key=x.stride, reverse=True)
    return x.is_contiguous() or x.permute(axes).is_contiguous()

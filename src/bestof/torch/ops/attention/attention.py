"""PyTorch's fused attention on the CPU: what its two passes have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.kernels import AttentionPlan, isa
from bestof.kernels.addresses import c_calls, plan_address
from bestof.kernels.attention_backward import AttentionBackwardPlan
from bestof.torch.backends.shim import Form, Native, native_plan
from bestof.torch.ops.attention.problem import AttentionProblem
from bestof.torch.ops.attention.recognition import Look, look_of
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, name_of
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row
from bestof.torch.ops.search_settings import BY_PYTHON, RACE

Tensors: TypeAlias = tuple[Tensor, ...]
Plan = TypeVar("Plan", AttentionPlan, AttentionBackwardPlan)

# As for products: the native kernel must be clearly faster in trials, which find the code and the
# operands out of the caches.
_HANDICAPS = ("native", 20e-6), ("float32", BY_PYTHON), ("float32 native", BY_PYTHON)
_REMEMBERED = 4096


class Operands(NamedTuple):
    """What one call reads; `scale` is None for the reciprocal root of the size of a head.

    The tensors of the forward pass are q, k and v. Those of the backward pass are the gradient of
    the results, q, k, v, the results, and their logsumexp.
    """

    tensors: Tensors
    mask: Tensor | None
    scale: float | None

    @classmethod
    def of(cls, operands: Sequence[Any]) -> Operands:
        """Return the operands of a call: the tensors, the mask and the scale."""
        return cls(tuple(operands[:-2]), *operands[-2:])


class NativePlan(NamedTuple):
    """A plan of bestof.kernels, and how it runs on operands and results."""

    plan: AttentionPlan | AttentionBackwardPlan
    run: Callable[[Operands, Tensors], None]


class _Made(NamedTuple):
    """A plan, and the kernel of it for calls without Python."""

    by_python: NativePlan
    compiled: Native


class Attention(Operation[AttentionProblem]):
    """One pass of PyTorch's fused attention on the CPU.

    `F.scaled_dot_product_attention` calls it, unless it drops out, a mask requires a gradient, or
    sizes are odd. The two passes are chosen independently: the backward pass takes what either
    alternative of the forward pass returns. The operands are those of `Operands`.
    """

    switch = "attention"
    others = 1
    least = 2**23
    """The least number of multiply-adds of one of the products that is chosen for. PyTorch computes
    smaller attention in less than half a millisecond on one core of a Cascade Lake Xeon. A call
    that is not settled takes some 20 microseconds of Python."""
    race = replace(RACE, tie=0.08, max_trials=12, handicaps=_HANDICAPS)

    def __init__(self) -> None:
        self._problems: dict[Look, AttentionProblem | None] = {}
        self._made: dict[tuple[Look, float | None, str], _Made] = {}
        self.rows = (
            Row("as is", self._as_is, formerly=("bestof:AttentionOverride._as_is",)),
            Row(
                "native",
                self._native,
                dtypes=(FLOAT32, BFLOAT16),
                accuracy="float32",
                compiled=self._compiled,
                formerly=("bestof:AttentionOverride._native",),
            ),
            self._in_float32("float32", self._as_is),
            self._in_float32("float32 native", self._native),
        )

    @abstractmethod
    def keys(self, operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v."""

    @abstractmethod
    def fits(self, operands: Operands) -> bool:
        """Return whether the native kernel computes this, and PyTorch accepts it."""

    @abstractmethod
    def results(self, operands: Operands) -> Tensors:
        """Return new tensors of the layouts that PyTorch returns."""

    @abstractmethod
    def narrowed(self, results: Tensors, operands: Operands) -> Tensors:
        """Return results of float32 in the types that PyTorch returns for these operands."""

    @abstractmethod
    def plan(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> NativePlan:
        """Return a plan for all operands and results that look like these."""

    @abstractmethod
    def apart(self, operands: Operands) -> Tensor:
        """Return how far results by the same kernel may be apart: some roundings."""

    def arguments(self, _operator: str, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the arguments if the rule "attention" holds: if the products are large."""
        *tensors, _dropout, _causal, mask, scale = given
        q, k, _ = self.keys(Operands(tuple(tensors), mask, scale))
        return given if q.dim() == k.dim() == 4 and q.numel() * k.shape[2] >= self.least else None

    def call(self, level: Accuracy, *arguments: Any) -> Call | None:
        """Return the problem and the operands of a call that the rule has chosen.

        The arguments are the tensors, the dropout, whether it is causal, the mask and the scale.
        """
        *tensors, dropout, causal, mask, scale = arguments
        if level == "exact" or dropout != 0.0:
            return None
        look = look_of(tensors, mask, causal, self.dtypes)
        problem = None
        if look is not None:
            problem = self._problem_of(look, Operands(tuple(tensors), mask, scale))
        return None if problem is None else Call(problem, (*tensors, mask, scale))

    def tolerance(
        self, _row: Row[AttentionProblem], _problem: AttentionProblem, *operands: Any
    ) -> Tensor:
        """Return how far results by the same kernel may be apart."""
        return self.apart(Operands.of(operands))

    def in_float64(
        self, original: Kernel, problem: AttentionProblem, operands: Operands
    ) -> Tensors:
        """Return what PyTorch's own kernel computes in float64."""
        mask = None if operands.mask is None else operands.mask.double()
        wide = (one.double() for one in operands.tensors)
        return self._as_is(original, problem, *wide, mask, operands.scale)

    def _problem_of(self, look: Look, operands: Operands) -> AttentionProblem | None:
        """Return the problem of calls that look so; None if they are passed through."""
        try:
            return self._problems[look]
        except KeyError:
            pass
        problem = None
        if self.fits(operands):
            q, k, v = self.keys(operands)
            problem = AttentionProblem.of(q, k, v, look.causal, operands.mask)
        if len(self._problems) >= _REMEMBERED:
            self._problems.clear()
        self._problems[look] = problem
        return problem

    def _in_float32(self, name: str, inner: Callable[..., Tensors]) -> Row[AttentionProblem]:
        """Return the row that computes shorter types by a function of float32.

        Processors without instructions for a type emulate it.
        """

        def attention(original: Kernel, problem: AttentionProblem, *operands: Any) -> Tensors:
            given = Operands.of(operands)
            wide = [one.float() for one in given.tensors]
            mask = None if given.mask is None else given.mask.float()
            widened = problem._replace(dtype=FLOAT32.operands)
            results = inner(original, widened, *wide, mask, given.scale)
            return self.narrowed(results, given)

        return Row(name, attention, dtypes=(BFLOAT16, FLOAT16), accuracy="float32")

    def _as_is(self, original: Kernel, problem: AttentionProblem, *operands: Any) -> Tensors:
        *tensors, mask, scale = operands
        return original(*tensors, 0.0, problem.causal, mask, scale)  # type: ignore[no-any-return]

    def _native(self, _original: Kernel, problem: AttentionProblem, *operands: Any) -> Tensors:
        given = Operands.of(operands)
        results = self.results(given)
        self._plan_of(problem, given, results).by_python.run(given, results)
        return results

    def _compiled(self, problem: AttentionProblem, *operands: Any) -> Native | None:
        """Return the kernel of the plan; None before the first call from Python has made it."""
        given = Operands.of(operands)
        made = self._made.get(self._key(problem, given))
        return None if made is None else made.compiled

    def _plan_of(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> _Made:
        key = self._key(problem, operands)
        made = self._made.get(key)
        if made is None:
            native = self.plan(problem, operands, results)
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            forms = [Form.of(one) for one in results]
            count = len(operands.tensors) + 1
            compiled = native_plan(native.plan, c_calls(), plan_address(native.plan), count, forms)
            made = self._made[key] = _Made(native, compiled)
        return made

    @staticmethod
    def _key(problem: AttentionProblem, operands: Operands) -> tuple[Look, float | None, str]:
        return Look.of(operands.tensors, operands.mask, problem.causal), operands.scale, isa()


def example(batch: int, heads: int, tokens: int, size: int, seed: int) -> Tensor:
    """Return normal numbers [batch, heads, tokens, size], token after token."""
    return random(batch, tokens, heads, size, seed=seed).transpose(1, 2)


def scale_of(problem: AttentionProblem, operands: Operands) -> float:
    """Return the factor of the scores."""
    return problem.size**-0.5 if operands.scale is None else operands.scale


def made_plan(
    kind: Callable[..., Plan],
    problem: AttentionProblem,
    operands: Operands,
    arrays: Sequence[Tensor | None],
) -> Plan:
    """Return a plan of the native kernel of a pass, for arrays that look like these."""
    mask = operands.mask
    return kind(
        [None if x is None else x.shape for x in arrays],
        [None if x is None else x.stride() for x in arrays],
        causal=problem.causal,
        scale=scale_of(problem, operands),
        dtype=problem.dtype,
        mask_dtype=FLOAT32.operands if mask is None else name_of(mask.dtype),
        threads=problem.threads,
    )

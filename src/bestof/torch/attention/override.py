"""Puts the choice of attention into PyTorch's dispatcher, below autograd."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.kernels import AttentionPlan
from bestof.kernels.addresses import c_calls, plan_address
from bestof.selection import Alternative, BestOf, shared_policy
from bestof.torch.attention.problem import AttentionProblem
from bestof.torch.attention.recognition import Look, fits, look_of
from bestof.torch.convolution.selectors import RACE
from bestof.torch.decisions import CurrentDecisions
from bestof.torch.depends import DEPENDS
from bestof.torch.modes import are_modes_on, without_modes
from bestof.torch.python_kernel import PythonKernel
from bestof.torch.rehearsal import Rehearsals, agree
from bestof.torch.shim import NativeAttention, attention_by, make_attention

Attended = tuple[Tensor, Tensor]
"""The results, and the logsumexp of each query, which the backward pass needs."""

_SELECTOR = "attention"
_NAME = "aten::_scaled_dot_product_flash_attention_for_cpu"
# The least number of multiply-adds of one of both products that is chosen for. PyTorch computes
# smaller attention in less than half a millisecond on one core of a Cascade Lake Xeon. A call that
# is not settled takes some 20 microseconds of Python.
_LEAST = 2**23
_REMEMBERED = 4096
# As for products: the native kernel must be clearly faster in trials, which find the code and the
# operands out of the caches.
_RACE = replace(RACE, tie=0.08, max_trials=12, handicaps=(("native", 20e-6),))


class Operands(NamedTuple):
    """What one call attends to; `scale` is None for the reciprocal root of the size of a head."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float | None


class AttentionOverride:
    """Answers `aten::_scaled_dot_product_flash_attention_for_cpu` while registered.

    `F.scaled_dot_product_attention` calls it on the CPU, unless it drops out, a mask requires a
    gradient, or sizes are odd. PyTorch's own backward pass takes what either alternative returns.

    C++ answers settled calls, and hands calls on to PyTorch that bestof does not choose for: those
    that are small or invalid, that have another dtype than float32, and all calls while results
    are to be exact or deterministic. It asks `_answer` for the others.
    """

    def __init__(self) -> None:
        kernel = torch.library.get_kernel(_NAME, "CPU")
        self._original = partial(
            kernel.call_boxed, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        )
        self.shim = make_attention(self._answer, kernel, _LEAST)
        self._is_in = False
        self._problems: dict[Look, AttentionProblem | None] = {}
        self._plans: dict[tuple[Look, float | None], AttentionPlan] = {}
        self._natives: dict[tuple[Look, float | None], NativeAttention] = {}
        self._decisions: CurrentDecisions[AttentionProblem] = CurrentDecisions(self._forget)
        self._rehearsals = Rehearsals("attention")
        self.selector = BestOf(
            _SELECTOR,
            [
                Alternative("as is", self._as_is, DEPENDS),
                Alternative("native", self._native, DEPENDS),
            ],
            lambda problem, *_: problem,
            on_event=self._decisions.listener(_SELECTOR),
            policy=None if shared_policy() else _RACE,
        )

    def configure(self, configuration: Configuration) -> None:
        """Put the override in, or take it out, as a configuration says."""
        wanted = configuration.attention and configuration.accuracy != "exact"
        (self.register if wanted else self.remove)()

    def register(self) -> None:
        """Put the override in, if this PyTorch takes it. Does nothing if it is in."""
        if self.shim is None or self._is_in:
            return
        PythonKernel(_NAME, self._original).warn_early()
        self._is_in = self.shim.put_in()

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        if self.shim is not None and self._is_in:
            self.shim.take_out()
            self._is_in = False

    def _answer(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        mask: Tensor | None,
        scale: float | None,
    ) -> Attended:
        if are_modes_on():
            return without_modes(self._answer, q, k, v, causal, mask, scale)
        assert self.shim is not None
        generation = self.shim.generation  # read before the decisions, as for products
        look = look_of(q, k, v, mask, causal)
        problem = None if look is None else self._problem_of(look, q, k, v, mask)
        if look is None or problem is None:
            return self._original(  # type: ignore[no-any-return]
                q, k, v, 0.0, causal, attn_mask=mask, scale=scale
            )
        given = (problem, look, Operands(q, k, v, mask, scale))
        chosen = self._decisions.get(_SELECTOR, problem)
        if chosen == "as is":
            self.shim.note(generation, [], None)
        elif chosen == "native":
            native = self._compiled(*given)
            if native is not None:
                self.shim.note(generation, [], native)
        try:
            return self.selector(*given)  # type: ignore[no-any-return]
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return self._as_is(*given)

    def _forget(self) -> None:
        if self.shim is not None:
            self.shim.forget()

    def _compiled(
        self,
        problem: AttentionProblem,
        look: Look,
        operands: Operands,
    ) -> NativeAttention | None:
        """Return the kernel for calls that look like this one; None if Python runs it."""
        q, k, v, mask, scale = operands
        native = self._natives.get((look, scale))
        if native is None:
            return None  # the first native call from Python makes it

        def by_python(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            return _joined(self._native(problem, look, Operands(q, k, v, mask, scale)))

        def by_cpp(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor | None:
            found = attention_by(native, q, k, v, mask)
            return None if found is None else _joined(found)

        may_answer = self._rehearsals.passes(
            (look, scale),
            "native",
            problem,
            lambda: agree(by_cpp, by_python, (q, k, v, mask), _tolerance),
        )
        return native if may_answer else None

    def _problem_of(
        self, look: Look, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> AttentionProblem | None:
        """Return the problem of calls that look so; None if they are passed through."""
        try:
            return self._problems[look]
        except KeyError:
            pass
        problem = None
        if fits(q, k, v, mask):
            problem = AttentionProblem.of(q, k, v, look.causal, mask)
        if len(self._problems) >= _REMEMBERED:
            self._problems.clear()
        self._problems[look] = problem
        return problem

    def _as_is(self, problem: AttentionProblem, _look: Look, operands: Operands) -> Attended:
        q, k, v, mask, scale = operands
        return self._original(  # type: ignore[no-any-return]
            q, k, v, 0.0, problem.causal, attn_mask=mask, scale=scale
        )

    def _native(self, problem: AttentionProblem, look: Look, operands: Operands) -> Attended:
        """Attend by the native kernel, into tensors of the layouts that PyTorch returns."""
        q, k, v, mask, scale = operands
        out = torch.empty_like(q, device="cpu")
        batch, heads, queries, _ = q.shape
        sums = torch.empty_strided(
            (batch, heads, queries),
            (queries * heads, 1, heads),
            dtype=torch.float32,
            device="cpu",
        )
        plan = self._plans.get((look, scale))
        if plan is None:
            plan = _plan_of(problem, (q, k, v, out, mask, sums), scale)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
                self._natives.clear()
            self._plans[look, scale] = plan
            self._natives[look, scale] = NativeAttention(
                plan, c_calls(), plan_address(plan), tuple(q.shape), out.stride()
            )
        plan.run(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            0 if mask is None else mask.data_ptr(),
            sums.data_ptr(),
        )
        return out, sums


def _joined(attended: Attended) -> Tensor:
    return torch.cat([one.flatten() for one in attended])


def _tolerance(q: Tensor, k: Tensor, v: Tensor, _mask: Tensor | None) -> Tensor:
    """Return how far results and logsumexp by the same kernel may be apart: some roundings."""
    scores = q.shape[-1] * q.abs().max() * k.abs().max()
    return 1e-6 * (1.0 + v.abs().max() + scores)


def _plan_of(
    problem: AttentionProblem, operands: tuple[Tensor | None, ...], scale: float | None
) -> AttentionPlan:
    return AttentionPlan(
        [None if x is None else x.shape for x in operands],
        [None if x is None else x.stride() for x in operands],
        causal=problem.causal,
        scale=problem.size**-0.5 if scale is None else scale,
        threads=problem.threads,
    )

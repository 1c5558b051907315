"""Puts the choice of attention into PyTorch's dispatcher, below autograd."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.kernels import AttentionPlan
from bestof.selection import Alternative, BestOf, shared_policy
from bestof.torch.attention.problem import AttentionProblem
from bestof.torch.attention.recognition import Look, fits, look_of
from bestof.torch.convolution.selectors import RACE
from bestof.torch.depends import DEPENDS
from bestof.torch.modes import are_modes_on, without_modes
from bestof.torch.python_kernel import PythonKernel

Attended = tuple[Tensor, Tensor]
"""The results, and the logsumexp of each query, which the backward pass needs."""

_NAME = "aten::_scaled_dot_product_flash_attention_for_cpu"
# The least number of multiply-adds of one of both products that is chosen for. PyTorch computes
# smaller attention in less than half a millisecond on one core of a Cascade Lake Xeon, and a
# settled call takes some 20 microseconds of Python.
_LEAST = 2**23
_REMEMBERED = 4096


class AttentionOverride:
    """Answers `aten::_scaled_dot_product_flash_attention_for_cpu` while registered.

    `F.scaled_dot_product_attention` calls it on the CPU, unless it drops out, a mask requires a
    gradient, or sizes are odd. PyTorch's own backward pass takes what either alternative returns.

    PyTorch's own kernel answers calls that are small or invalid, that have another dtype than
    float32, or subclasses of Tensor, and all calls while results are to be exact or deterministic.
    """

    def __init__(self) -> None:
        call = torch.library.get_kernel(_NAME, "CPU").call_boxed
        self._original = partial(call, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))
        self._kernel = PythonKernel(_NAME, self._attend)
        self._problems: dict[Look, AttentionProblem | None] = {}
        self._plans: dict[tuple[Look, float | None], AttentionPlan] = {}
        self.selector = BestOf(
            "attention",
            [
                Alternative("as is", self._as_is, DEPENDS),
                Alternative("native", self._native, DEPENDS),
            ],
            lambda problem, *_: problem,
            policy=None if shared_policy() else RACE,
        )

    def configure(self, configuration: Configuration) -> None:
        """Put the override in, or take it out, as a configuration says."""
        wanted = configuration.attention and configuration.accuracy != "exact"
        (self.register if wanted else self.remove)()

    def register(self) -> None:
        """Put the override in. Does nothing if it is in."""
        self._kernel.register()

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        self._kernel.remove()

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Attended:
        if are_modes_on():
            again = partial(self._attend, attn_mask=attn_mask, scale=scale)
            return without_modes(again, query, key, value, dropout_p, is_causal)
        look = None
        if dropout_p == 0.0 and (scale is None or math.isfinite(scale)):
            look = look_of(query, key, value, attn_mask, is_causal, _LEAST)
        problem = None if look is None else self._problem_of(look, query, key, value, attn_mask)
        if problem is None:
            return self._original(  # type: ignore[no-any-return]
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )
        try:
            return self.selector(  # type: ignore[no-any-return]
                problem, look, query, key, value, attn_mask, scale
            )
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return self._as_is(problem, look, query, key, value, attn_mask, scale)

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

    def _as_is(
        self,
        problem: AttentionProblem,
        _look: Look | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Attended:
        return self._original(  # type: ignore[no-any-return]
            q, k, v, 0.0, problem.causal, attn_mask=mask, scale=scale
        )

    def _native(
        self,
        problem: AttentionProblem,
        look: Look,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Attended:
        """Attend by the native kernel, into tensors of the layouts that PyTorch returns."""
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
            self._plans[look, scale] = plan
        plan.run(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            out.data_ptr(),
            0 if mask is None else mask.data_ptr(),
            sums.data_ptr(),
        )
        return out, sums


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

"""Puts the choice of attention into PyTorch's dispatcher, below autograd."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.kernels.addresses import c_calls, plan_address
from bestof.selection import Alternative, BestOf, unless_shared
from bestof.selection.state.journal import Entry, TrialEntry
from bestof.torch.attention.attention_pass import AttentionPass, NativePlan, Operands, Tensors
from bestof.torch.attention.problem import AttentionProblem
from bestof.torch.attention.recognition import Look, look_of
from bestof.torch.attention.verifier import AttentionVerifier
from bestof.torch.depends import DEPENDS
from bestof.torch.dispatch.search import RACE, SEARCHES
from bestof.torch.modes import are_modes_on, without_modes
from bestof.torch.python_kernel import PythonKernel
from bestof.torch.rehearsal import Rehearsals, agree
from bestof.torch.shim import NativeAttention, attention_by, make_attention

# The least number of multiply-adds of one of the products that is chosen for. PyTorch computes
# smaller attention in less than half a millisecond on one core of a Cascade Lake Xeon. A call that
# is not settled takes some 20 microseconds of Python.
_LEAST = 2**23
_REMEMBERED = 4096
# As for products: the native kernel must be clearly faster in trials, which find the code and the
# operands out of the caches.
_RACE = replace(RACE, tie=0.08, max_trials=12, handicaps=(("native", 20e-6),))


class AttentionOverride:
    """Answers one pass of `aten::_scaled_dot_product_flash_attention_for_cpu` while registered.

    `F.scaled_dot_product_attention` calls it on the CPU, unless it drops out, a mask requires a
    gradient, or sizes are odd. The two passes are chosen independently: the backward pass takes
    what either alternative of the forward pass returns.

    C++ answers settled calls, and hands calls on to PyTorch that bestof does not choose for: those
    that are small or invalid, that have another dtype than float32 and bfloat16, and all
    calls while results are to be exact or deterministic. It asks `_answer` for the others.
    """

    def __init__(self, attention: AttentionPass) -> None:
        self._pass = attention
        kernel = torch.library.get_kernel(attention.operator, "CPU")
        self._original = partial(
            kernel.call_boxed, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        )
        self.shim = make_attention(attention.is_backward, self._answer, kernel, _LEAST)
        self._is_in = False
        self._problems: dict[Look, AttentionProblem | None] = {}
        self._plans: dict[tuple[Look, float | None], NativePlan] = {}
        self._natives: dict[tuple[Look, float | None], NativeAttention] = {}
        self._rehearsals = Rehearsals(attention.selector.replace("_", " "))
        rows = {"as is": self._as_is, "native": self._native}
        self.selector = BestOf(
            attention.selector,
            [Alternative(name, function, DEPENDS) for name, function in rows.items()],
            lambda problem, *_: problem,
            check=AttentionVerifier(attention, rows),
            on_event=self._listen,
            policy=unless_shared(_RACE),
            max_searches=SEARCHES,
        )

    def configure(self, configuration: Configuration) -> None:
        """Put the override in, or take it out, as a configuration says."""
        wanted = configuration.attention and configuration.accuracy != "exact"
        (self.register if wanted else self.remove)()

    def register(self) -> None:
        """Put the override in, if this PyTorch takes it. Does nothing if it is in."""
        if self.shim is None or self._is_in:
            return
        PythonKernel(self._pass.operator, self._original).warn_early()
        self.shim.take_out()  # an interrupt may have come after `put_in`
        self._is_in = self.shim.put_in()

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        self._is_in = False  # first: whatever an interrupt leaves in, the next call takes out
        if self.shim is not None:
            self.shim.take_out()

    def _answer(
        self, tensors: list[Tensor], has_mask: bool, causal: bool, scale: float | None
    ) -> Tensors:
        """Compute a call from C++; a mask is the last tensor."""
        if are_modes_on():
            return without_modes(self._answer, tensors, has_mask, causal, scale)
        assert self.shim is not None
        generation = self.shim.generation  # read before the decisions, as for products
        mask = tensors.pop() if has_mask else None
        operands = Operands(tuple(tensors), mask, scale)
        look = look_of(operands.tensors, mask, causal)
        problem = None if look is None else self._problem_of(look, operands)
        if look is None or problem is None:
            return self._pass.by_pytorch(self._original, operands, causal)
        given = (problem, look, operands)
        chosen = self.selector.chosen(problem)
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
        except BaseException:
            self.selector.journal.deliver()  # an interrupt may have come before it
            raise

    def _listen(self, entry: Entry) -> None:
        if self.shim is not None and not isinstance(entry, TrialEntry):
            self.shim.forget()

    def _compiled(
        self,
        problem: AttentionProblem,
        look: Look,
        operands: Operands,
    ) -> NativeAttention | None:
        """Return the kernel for calls that look like this one; None if Python runs it."""
        scale = operands.scale
        native = self._natives.get((look, scale))
        if native is None:
            return None  # the first native call from Python makes it

        def by_python(*given: Tensor | None) -> Tensor:
            return _joined(self._native(problem, look, _operands(given, scale)))

        def by_cpp(*given: Tensor | None) -> Tensor | None:
            found = attention_by(native, given)
            return None if found is None else _joined(found)

        may_answer = self._rehearsals.passes(
            (look, scale),
            "native",
            problem,
            lambda: agree(
                by_cpp,
                by_python,
                (*operands.tensors, operands.mask),
                lambda *given: self._pass.tolerance(_operands(given, scale)),
            ),
        )
        return native if may_answer else None

    def _problem_of(self, look: Look, operands: Operands) -> AttentionProblem | None:
        """Return the problem of calls that look so; None if they are passed through."""
        try:
            return self._problems[look]
        except KeyError:
            pass
        problem = None
        if self._pass.fits(operands):
            q, k, v = self._pass.keys(operands)
            problem = AttentionProblem.of(q, k, v, look.causal, operands.mask)
        if len(self._problems) >= _REMEMBERED:
            self._problems.clear()
        self._problems[look] = problem
        return problem

    def _as_is(self, problem: AttentionProblem, _look: Look, operands: Operands) -> Tensors:
        return self._pass.by_pytorch(self._original, operands, problem.causal)

    def _native(self, problem: AttentionProblem, look: Look, operands: Operands) -> Tensors:
        results = self._pass.results(operands)
        key = look, operands.scale
        native = self._plans.get(key)
        if native is None:
            native = self._pass.plan(problem, operands, results)
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
                self._natives.clear()
            forms = [(tuple(x.shape), x.stride(), x.dtype is torch.bfloat16) for x in results]
            self._natives[key] = NativeAttention(
                native.plan, c_calls(), plan_address(native.plan), forms
            )
            self._plans[key] = native  # last: an interrupt in between makes both anew
        native.run(operands, results)
        return results


def _operands(given: tuple[Tensor | None, ...], scale: float | None) -> Operands:
    """Return the operands of tensors and the mask after them, which may be None."""
    return Operands(tuple(x for x in given[:-1] if x is not None), given[-1], scale)


def _joined(results: Tensors) -> Tensor:
    return torch.cat([one.flatten() for one in results])

"""Layer norm and RMS norm of the last axis, with the addition before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.kernels import NormPlan
from bestof.torch.ops.dtypes import words_of
from bestof.torch.plan.operations.checks import expect, is_alike, is_dense, val
from bestof.torch.plan.operations.operands import as_planned
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.raced_step import RacedProblem, RacedStep
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import MULTIPLIED, argument, is_plain, shape_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class RowNorm(Operation):
    """(s - mean) / sqrt(variance + eps) * scale + shift, for s = x + residual.

    The node's arguments: x, then scale, shift and residual as far as there are any. centred: layer
    norm; else RMS norm, whose mean is 0.
    """

    name: ClassVar[str] = "row_norm"
    overwrites_last: ClassVar[bool] = True

    centred: bool
    eps: float
    scaled: bool
    shifted: bool
    added: bool = False

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operators that may be norms of rows."""
        return {aten.layer_norm.default: _recognise, aten.rms_norm.default: _recognise}

    def absorb(self, rewriter: Rewriter, node: Node) -> None:
        """Take an addition before the norm that nothing else reads."""
        sum_ = node.args[0]
        if not isinstance(sum_, Node) or sum_.target is not aten.add.Tensor or len(sum_.users) > 1:
            return
        x, residual = sum_.args[:2]
        dtypes = {val(node).dtype}
        if sum_.kwargs or not is_plain(x, None, dtypes) or not is_plain(residual, None, dtypes):
            return
        if not is_dense(residual):
            return
        if is_alike(node, x) and is_alike(node, residual):
            rewriter.replace(node, replace(self, added=True), x, *node.args[1:], residual)
            rewriter.module.graph.erase_node(node)

    def choice(self, node: Node, accuracy: Accuracy) -> Choice:  # noqa: ARG002  # of any
        """Return the choice between PyTorch's operator and the kernel."""
        words = ["scale"] * self.scaled + ["shift"] * self.shifted + ["residual"] * self.added
        words += words_of(val(node).dtype)
        shape = "x".join(map(str, shape_of(node)))
        return Choice(
            RacedProblem.of("layer norm" if self.centred else "rms norm", " ".join([shape, *words]))
        )

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step; an x outside of the arena is looked up at each call."""
        out, find = placed.out, placed.finder(node.args[0])
        shape, size = out.shape, out.shape[-1]
        rest = [placed.tensor(one) for one in node.args[1:]]
        residual = rest.pop() if self.added else None
        dtype = out.dtype
        if residual is not None and not _is_whole(residual, out):
            raise TorchError(
                f"optimize: the residual of a norm of {tuple(shape)} must be contiguous "
                f"{_named(dtype)} of that shape; the file of the plan was changed: optimise the "
                "model again"
            )
        if any(not _is_row(one, size, dtype) for one in rest):
            raise TorchError(
                f"optimize: the scale and shift of a norm of {tuple(shape)} must be contiguous "
                f"{_named(dtype)} ({size},); the file of the plan was changed: optimise the model "
                "again"
            )
        scale, shift = ([*rest, None] if self.scaled else [None, *rest, None])[:2]
        plan = NormPlan(
            *(out.numel() // size, size), eps=self.eps, centred=self.centred, dtype=_named(dtype)
        )
        at, added = out.data_ptr(), 0 if residual is None else residual.data_ptr()

        def native() -> None:
            x = as_planned(find(), out, "a norm").contiguous()
            # The model's memory may move (model.share_memory()).
            factor, term = (0 if one is None else one.data_ptr() for one in (scale, shift))
            plan.run(x.data_ptr(), at, factor, term, added)

        def computed(dtype: torch.dtype) -> Tensor:
            x, more, factor, term = (
                None if one is None else one.to(dtype) for one in (find(), residual, scale, shift)
            )
            assert x is not None
            if more is not None:
                # The kernel sums in float32 too: near 1e6, rounding the sum errs by 0.03.
                x = (x.float() + more.float()).to(dtype) if dtype is torch.float64 else x + more
            if self.centred:
                return F.layer_norm(x, (size,), factor, term, self.eps)
            normed = F.rms_norm(x, (size,), factor, self.eps)
            return normed if term is None else normed + term

        def pytorch() -> None:
            out.copy_(computed(dtype))

        step = RacedStep(
            placed.own_choice, pytorch, native, lambda: computed(torch.float64), out, residual
        )
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree, or the options cannot be used."""
        flags = self.centred, self.scaled, self.shifted, self.added
        expect(all(isinstance(one, bool) for one in flags), node.name)
        expect(isinstance(self.eps, float) and self.eps >= 0, node.name)
        expect(len(node.args) == 1 + self.scaled + self.shifted + self.added, node.name)
        expect(is_plain_value(node) and is_alike(node, node.args[0]), node.name)
        *rows, residual = [*node.args[1:], None] if not self.added else node.args[1:]
        for one in rows:
            right = isinstance(one, Node) and one.op == "get_attr"
            expect(right and val(one).shape == val(node).shape[-1:], node.name)
            expect(val(one).dtype is val(node).dtype, node.name)
        if self.added:
            expect(is_dense(residual) and is_alike(node, residual), node.name)


def is_plain_value(node: Node) -> bool:
    """Return whether a value of a type of kernels has an axis and is not empty."""
    value = val(node)
    return value.dtype in MULTIPLIED and value.dim() > 0 and value.numel() > 0


def _is_row(value: Tensor, size: int, dtype: torch.dtype) -> bool:
    return value.shape == (size,) and value.dtype is dtype and value.is_contiguous()


def _is_whole(value: Tensor, out: Tensor) -> bool:
    return value.shape == out.shape and value.dtype is out.dtype and value.is_contiguous()


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _recognise(rewriter: Rewriter, node: Node) -> None:
    x, (*_, size) = node.args[0], argument(node, "normalized_shape")
    centred = node.target is aten.layer_norm.default
    dtypes = {val(node).dtype} & MULTIPLIED
    if len(argument(node, "normalized_shape")) != 1:
        return
    if not is_plain(x, None, dtypes) or not is_plain(node, None, dtypes):
        return
    rows = [argument(node, "weight"), argument(node, "bias") if centred else None]
    for one in rows:
        value = rewriter.constant(one)
        if one is not None and (value is None or not _is_row(value, size, val(node).dtype)):
            return
    eps = argument(node, "eps")
    if eps is None and dtypes != {torch.float32}:
        return  # which epsilon PyTorch takes depends on its kernel
    eps = float(torch.finfo(torch.float32).eps) if eps is None else float(eps)
    scaled, shifted = (one is not None for one in rows)
    operation = RowNorm(centred, eps, scaled, shifted)
    rewriter.replace(node, operation, x, *(one for one in rows if one is not None))

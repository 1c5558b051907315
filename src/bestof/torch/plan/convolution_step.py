"""A fused convolution of a plan that is bound to memory: whichever algorithm was chosen, run on fixed addresses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.kernels import Conv2dPlan
from bestof.torch.accuracy import Accuracy
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.plan.frozen_weights import Packed
from bestof.torch.plan.operation import MAX_2X2, Convolution, activate
from bestof.torch.plan.runner import Runner, pooling_runner
from bestof.torch.plan.selection import (
    ONEDNN,
    PYTORCH,
    FusedProblem,
    algorithms,
    native_name,
    packs,
    pools,
    selector,
)

# What oneDNN calls the activations.
_ONEDNN: dict[str, tuple[str, list[float]]] = {
    "": ("none", []),
    "relu": ("relu", []),
    "relu6": ("hardtanh", [0.0, 6.0]),
    "silu": ("swish", []),
    "hard_swish": ("hardswish", []),
}


def is_activation(name: str) -> bool:
    """Whether every algorithm can compute an activation."""
    return name in _ONEDNN or name == "leaky_relu"


class ConvolutionStep:
    """Computes `out` from `x` and `residual`, views of memory that stay where they are.

    x, out, residual: (N, C, H, W) in channels last; (rows, features) where linear, where x may be a function that
    finds it at each call. `between`: where the problem is pooled, the results that are, for algorithms that do not pool
    themselves. Until an algorithm is settled each call is a selector's; after that `run` is the algorithm.
    """

    def __init__(
        self,
        operation: Convolution,
        problem: FusedProblem,
        x: Tensor | Callable[[], Tensor],
        out: Tensor,
        residual: Tensor | None,
        between: Tensor | None = None,
    ) -> None:
        self.operation, self.problem, self.x, self.out, self.residual = (
            operation,
            problem,
            x,
            out,
            residual,
        )
        self._between = out if between is None else between
        self.algorithm: str | None = None
        self._runners: dict[str, Runner] = {}
        self._packed: dict[str, Packed] = {}
        self._run: Runner = self._select

    @property
    def run(self) -> Runner:
        """What to call, the algorithm itself once it is settled."""
        return self._run

    @property
    def packed(self) -> tuple[Packed, ...]:
        """The weights in layouts of their own that it holds."""
        return tuple(self._packed.values())

    def runner(self, algorithm: str) -> Runner:
        """Runs it by one algorithm; its weights are packed at the first request."""
        runner = self._runners.get(algorithm)
        if runner is None:
            if algorithm == PYTORCH or (
                algorithm == ONEDNN and self.operation.linear
            ):  # ordered to take the first
                runner = self._pytorch()
            else:
                runner = self._onednn() if algorithm == ONEDNN else self._native(algorithm)
            if self.problem.pooled and not pools(self.problem, algorithm):
                runner = _one_after_the_other(
                    runner, pooling_runner(MAX_2X2, self._between, self.out)
                )
            self._runners[algorithm] = runner
        return runner

    def settle(self, algorithm: str) -> None:
        """Run by that algorithm from now on; what the others had packed is freed."""
        self._run = self.runner(algorithm)
        self.algorithm = algorithm
        self._runners = {algorithm: self._run}
        self._packed = {name: packed for name, packed in self._packed.items() if name == algorithm}

    def learn(self) -> bool:
        """Take the selector's decision where there is one; whether there is."""
        if self.algorithm is None:
            decision = self._only() or selector().explain(self).decision
            if decision is not None:
                self.settle(decision)
        return self.algorithm is not None

    def _only(self) -> str | None:
        """The algorithm that a limit of memory leaves; PyTorch's where that one has no such shape."""
        only = self.operation.weights.only
        if only is None or only in (ONEDNN, PYTORCH):
            return only
        return only if native_name(only) in algorithms(self.problem.convolution) else PYTORCH

    def _select(self) -> None:
        selector()(self)

    def _native(self, algorithm: str) -> Runner:
        operation, problem = self.operation, self.problem.convolution
        (n, c, h, w), (k, i, r, s) = problem.input_shape, problem.weight_shape
        plan = Conv2dPlan(
            (n, h, w, c),
            (k, r, s, i),
            stride=operation.stride,
            padding=operation.padding,
            dilation=operation.dilation,
            groups=operation.groups,
            algorithm=native_name(algorithm),
            activation=(operation.activation, operation.slope) if operation.activation else None,
            pool=(pooled := pools(self.problem, algorithm)),
        )
        weights = operation.weights
        packed = weights.packed(algorithm) if packs(problem, algorithm) else weights.unpacked()
        self._packed[algorithm] = packed
        layout = packed.layout
        bias, residual, x = operation.weights.bias, self.residual, self.x
        addresses = (
            (self.out if pooled else self._between).data_ptr(),
            0 if bias is None else bias.data_ptr(),
            0 if residual is None else residual.data_ptr(),
        )
        find_layout = layout.data_ptr if isinstance(layout, Tensor) else None
        if isinstance(x, Tensor):
            at = x.data_ptr()
            if find_layout is None:
                return partial(plan.run, at, layout, *addresses)
            return lambda: plan.run(
                at, find_layout(), *addresses
            )  # the model's memory may move: model.share_memory()

        def run() -> None:
            given = _checked(x(), c, w)  # held until the kernel is done
            plan.run(given.data_ptr(), layout if find_layout is None else find_layout(), *addresses)

        return run

    def _onednn(self) -> Runner:
        operation, x, out, residual = self.operation, self.x, self._between, self.residual
        geometry = (operation.padding, operation.stride, operation.dilation, operation.groups)
        assert isinstance(x, Tensor)
        packed = self._packed[ONEDNN] = operation.weights.onednn(*geometry, list(x.shape))
        weight, bias = packed.layout, operation.weights.bias
        name, scalars = _ONEDNN.get(operation.activation, ("leaky_relu", [operation.slope]))

        def run() -> None:
            out.copy_(
                torch.ops.mkldnn._convolution_pointwise(
                    x, weight, bias, *geometry, name, scalars, ""
                )
            )

        def run_with_residual() -> None:
            y = torch.ops.mkldnn._convolution_pointwise(x, weight, bias, *geometry, "none", [], "")
            torch.add(y, residual, out=out)  # type: ignore[arg-type]  # there is one here
            activate(out, operation.activation, operation.slope)

        return run if residual is None else run_with_residual

    def _pytorch(self) -> Runner:
        operation, x, out, residual = self.operation, self.x, self._between, self.residual
        weight, bias = operation.weights.folded(), operation.weights.bias
        if not operation.linear:
            assert isinstance(x, Tensor)
            return lambda: out.copy_(operation.apply(x, residual, weight))
        transposed, activation, slope = weight.t(), operation.activation, operation.slope
        find = x if not isinstance(x, Tensor) else lambda: x
        if bias is None:
            return lambda: activate(torch.mm(find(), transposed, out=out), activation, slope)
        return lambda: activate(torch.addmm(bias, find(), transposed, out=out), activation, slope)


def _one_after_the_other(first: Runner, second: Runner) -> Runner:
    def run() -> None:
        first()
        second()

    return run


def _checked(given: Tensor, features: int, rows: int) -> Tensor:
    """A value whose address a kernel is given, as it was planned."""
    if given.dtype is not torch.float32 or given.shape != (rows, features):
        raise TorchError(
            f"optimize: a linear layer was planned for float32 ({rows}, {features}); it got {given.dtype} "
            f"{tuple(given.shape)}: an operator before it returned another type than when it was traced"
        )
    return given


def problem_of(
    operation: Convolution,
    accuracy: Accuracy,
    x: tuple[int, ...],
    residual: bool,
    pooled: bool = False,
) -> FusedProblem:
    """The problem of an operation on an input of shape x."""
    weight = tuple(operation.weights.weight.shape)
    convolution = ConvProblem(
        (1, x[1], 1, x[0]) if operation.linear else x,  # type: ignore[arg-type]
        (*weight, 1, 1) if operation.linear else weight,  # type: ignore[arg-type]
        operation.weights.bias is not None,
        operation.stride,
        operation.padding,
        operation.dilation,
        operation.groups,
        input_layout="channels_last",
        weight_layout="channels_last",
        threads=torch.get_num_threads(),
    )
    return FusedProblem(
        convolution, residual, operation.activation, accuracy, operation.linear, pooled
    )

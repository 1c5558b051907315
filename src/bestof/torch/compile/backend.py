"""The backend "bestof" of torch.compile: plans for inference, tuned kernels for training."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from bestof.errors import BestofWarning, InvalidArgument, TorchError
from bestof.torch.enable import enabled
from bestof.torch.plan.model_state import Bits
from bestof.torch.plan.optimize import optimize
from bestof.torch.plan.optimized import OptimizedModel

Compiled = Callable[..., Any]

# The most new plans for changed parameters. A program that changes them at every call is training.
_REMADE = 3


def bestof_backend(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Compiled:
    """Return the function that runs one graph of a compiled program. PyTorch calls this.

    A graph without gradients runs as a plan, which its first call makes. Other graphs go through
    PyTorch's autograd tracer. The convolutions of their forward and backward passes are then chosen
    as under `enable`.

    options: with `{"check_weights": True}`, writes that PyTorch does not count also lead to a new
    plan.
    """
    given = dict(options or {})
    check_weights = given.pop("check_weights", False)
    if given or not isinstance(check_weights, bool):
        raise InvalidArgument(
            f"torch.compile: options: backend 'bestof' expects {{'check_weights': True or False}}; "
            f"got {dict(options or {})}"
        )
    wants = any(isinstance(one, Tensor) and one.requires_grad for one in example_inputs)
    if torch.is_grad_enabled() and wants:
        return _training(graph, example_inputs)
    return InferenceGraph(graph, check_weights)


class InferenceGraph:
    """A graph without gradients, run as a plan.

    Parameters and buffers are inputs of the graph. The plan freezes those of the first call. If a
    later call has other or changed ones, the graph makes a new plan. A write that PyTorch does not
    count (through `parameter.data` or NumPy) is noticed for certain only with `check_weights`. If
    no plan can be made, the graph warns once and runs in PyTorch.
    """

    def __init__(self, graph: GraphModule, check_weights: bool = False) -> None:
        self._graph, self._check_weights = graph, check_weights
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._static = [
            position
            for position, node in enumerate(placeholders)
            if node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type") is not None
        ]
        self._dynamic = [
            position for position in range(len(placeholders)) if position not in self._static
        ]
        self._lock = threading.Lock()
        self._plan: OptimizedModel | None = None
        self._frozen: list[Tensor] = []
        self._bits: Bits | None = None
        self._made = 0

    def __call__(self, *args: Any) -> Any:
        plan = self._plan_for(args)
        if plan is None:
            return self._graph(*args)
        return plan(*(args[position] for position in self._dynamic))

    def _plan_for(self, args: Sequence[Any]) -> OptimizedModel | None:
        given = [args[position] for position in self._static]
        with self._lock:
            if self._made and self._is_frozen(given):
                return self._plan
            if self._made > _REMADE:
                return None
            self._made += 1
            self._frozen = given
            self._bits = Bits(given) if self._check_weights else None
            self._plan = self._make(args, given)
            return self._plan

    def _is_frozen(self, given: Sequence[Tensor]) -> bool:
        if self._bits is not None and not self._bits.are_unchanged():
            return False
        if not all(map(operator.is_, given, self._frozen)):
            return False
        return self._plan is None or self._plan.is_current()

    def _make(self, args: Sequence[Any], given: Sequence[Tensor]) -> OptimizedModel | None:
        model = _Frozen(self._graph, len(args), dict(zip(self._static, given, strict=True))).eval()
        try:
            return optimize(model, tuple(args[position] for position in self._dynamic), pure=True)
        except TorchError as error:
            warnings.warn(
                f"a graph of torch.compile runs in PyTorch, without a plan: {error}",
                BestofWarning,
                stacklevel=3,
            )
            return None


class _Frozen(nn.Module):
    """A graph whose static inputs are parameters and buffers."""

    def __init__(self, graph: GraphModule, count: int, static: dict[int, Tensor]) -> None:
        super().__init__()
        self._run, self._count = graph.forward, count
        self._names = {position: f"static_{position}" for position in static}
        for position, tensor in static.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(self._names[position], tensor)
            else:
                self.register_buffer(self._names[position], tensor)

    def forward(self, *dynamic: Any) -> Any:
        remaining = iter(dynamic)
        return self._run(
            *(
                getattr(self, self._names[position]) if position in self._names else next(remaining)
                for position in range(self._count)
            )
        )


def _training(graph: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415  # takes 2 s

    compiled: Compiled = aot_autograd(fw_compiler=_tuned, bw_compiler=_tuned)(graph, example_inputs)
    return compiled


def _tuned(graph: GraphModule, _: Sequence[Any]) -> Compiled:
    def run(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()  # the caller gives up its references, so that values are freed early
        with enabled():
            return graph(*given)

    run._boxed_call = True  # type: ignore[attr-defined]  # PyTorch asks for it
    return run

"""Finds the layout of one model on its own steps.

The life of a `ModelLayout`: it first watches a few steps as they are. Then it probes whether the
model computes in channels last at all. Turns of some steps follow, as is and in channels last
alternately, until the faster one is confirmed. Only a confirmed channels last stays.
"""

from __future__ import annotations

import copy
import random
import sys
import weakref
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_map_only

from bestof.selection.policies.paired import judge, speedup
from bestof.selection.state.registry import search_count
from bestof.torch.process.layout.known_operators import KnownOperators
from bestof.torch.process.layout.weights import Weights

TURN = 4  # steps; the first one after a change of layout is not counted

SETTLING = 100
"""The most steps that a layout may take to choose its kernels, before turns begin."""

SHAPES = 8
"""A model that is called with more shapes than this is left alone, as each one costs a probe."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class ModelLayout:
    """The layout of one outermost module. Its methods are called by the hooks of PyTorch."""

    def __init__(self, model: nn.Module, fixed: bool = False) -> None:
        self.name = type(model).__name__
        self._model = weakref.ref(model)
        self._weights = Weights(model)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.ratios: list[float] = []  # seconds as is / seconds in channels last, a pair each
        self.reason = ""
        self._training: bool | None = None
        self._shapes: set[object] = set()
        self._began: float | None = None
        self._fixed = fixed
        self._in_graph = False
        self.decided: bool | None = None  # True: channels last; None: still compared
        self._restart()
        if isinstance(model, nn.parallel.DistributedDataParallel):
            self._leave("DistributedDataParallel keeps views of its gradients")

    @property
    def concerned(self) -> bool:
        """Whether the model has convolutions at all."""
        return len(self._weights) > 0

    @property
    def channels_last(self) -> bool:
        """Whether the weights are in channels last at present."""
        return self._weights.channels_last

    def before(self, arguments: tuple[Any, ...]) -> None:
        """Take the start of a call of the model."""
        if self.decided is False:
            return
        if self._captured():
            # A graph keeps the addresses of the weights, and runs no hook when it is replayed.
            self.decided, self.reason = self._weights.channels_last, "a CUDA graph has its calls"
            self._in_graph = True
            return
        if self._weights.channels_last or not self._shapes:
            self._check(arguments)
        if self._fixed and self.decided is None:
            self._to(True)
            self.decided = self._weights.channels_last
        if self._began is None:
            self._began = self._now()

    def after(self, result: Any) -> Any:
        """Take the end of a call. Return the result in the layout that it has as is."""
        if self._weights.channels_last:
            result = tree_map_only(torch.Tensor, _first, result)
        if not torch.is_grad_enabled():
            if self._training:
                self._began = None  # a validation between training steps
            else:
                self._training = False
                self._stepped()
        return result

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the end of an optimizer's step."""
        if self.decided is False or self._began is None:
            return
        if optimizer not in self._optimizers:
            if not any(one in self._weights for g in optimizer.param_groups for one in g["params"]):
                return
            self._optimizers.add(optimizer)
        if not self._training and not self._fixed:
            self._training = True
            self._to(False)
            self._restart()
            self._began = None
            return
        self._stepped()

    def align(self, optimizer: torch.optim.Optimizer) -> None:
        """Give gradients and state the strides of their weights, as before a step."""
        self._weights.align([optimizer])

    def end(self) -> None:
        """Put the original layout back, for good."""
        self._leave(self.reason)

    def line(self) -> str:
        """Return the report in one line."""
        found = speedup(self.ratios)
        measured = "" if found is None else f"channels last is {found} times as fast"
        if self.decided:
            return f"{self.name}: channels last; {measured}"
        if self.decided is None:
            return f"{self.name}: as is; not decided yet after {len(self.ratios)} pairs"
        return f"{self.name}: as is; {self.reason or measured}"

    def _restart(self) -> None:
        self.decided = None
        self.ratios.clear()
        self._turn: list[float] = []
        self._standing: float | None = None  # seconds of the pair's first turn
        self._settling = {False: SETTLING, True: SETTLING}
        self._count = -1

    def _stepped(self) -> None:
        began, self._began = self._began, None
        if began is None or self.decided is not None:
            return
        self._turn.append(self._now() - began)
        if len(self._turn) >= TURN:
            turn, self._turn = self._turn, []
            self._finish(sum(turn[1:]))

    def _now(self) -> float:
        """Return the time. While layouts are compared, a GPU first does what it was given."""
        if self.decided is None:
            for device in _gpus(self._weights):
                torch.cuda.synchronize(device)
        return perf_counter()

    def _captured(self) -> bool:
        """Return whether this call becomes part of a CUDA graph."""
        return bool(_gpus(self._weights)) and torch.cuda.is_current_stream_capturing()

    def _finish(self, seconds: float) -> None:
        """Take the time of a turn. Choose the layout of the next one."""
        present = self._weights.channels_last
        if self._settling[present] > 0:
            count = search_count()
            self._settling[present] -= TURN
            if count == self._count:
                self._settling[present] = 0
                self._to(not present)
            self._count = count
            return
        if self._standing is None:
            self._standing = seconds
            self._to(not present)
            return
        before, self._standing = self._standing, None
        # The next pair begins with this layout, so that a drift favours neither.
        self.ratios.append(before / seconds if present else seconds / before)
        faster = judge(self.ratios)
        if faster is not None:
            self._to(faster)
            self.decided = faster
            if not faster:
                self._shapes.clear()

    def _to(self, channels_last: bool) -> None:
        if channels_last and (told := self._weights.objection()) is not None:
            self._leave(told)
            return
        self._weights.convert(channels_last, self._optimizers)

    def _leave(self, reason: str) -> None:
        if self._in_graph:
            return
        self._weights.convert(False, self._optimizers)
        self.decided, self.reason = False, reason
        self._shapes.clear()

    def _check(self, arguments: tuple[Any, ...]) -> None:
        """Probe the model in channels last for arguments of a new shape."""
        model = self._model()
        tensors = [one for one in tree_flatten(arguments)[0] if isinstance(one, torch.Tensor)]
        signature = (
            *((one.shape, one.dtype) for one in tensors),
            None if model is None else model.training,
            torch.is_grad_enabled(),
        )
        if signature in self._shapes or model is None:
            return
        self._shapes.add(signature)
        if len(self._shapes) > SHAPES:
            self._leave("it is called with too many shapes")
            return
        if not tensors:
            # The hooks of PyTorch for all modules do not see keyword arguments.
            self._leave("it is called without positional tensors")
            return
        if any(one.dim() == 4 and not one.is_contiguous() for one in tensors):
            self._leave("its input is not in channels first")
            return
        told = "it has hooks, which would see a probe" if _has_hooks(model) else None
        told = told or self._weights.objection()
        before = self._weights.channels_last
        if told is None:
            self._weights.convert(True, self._optimizers)
            told = _probe(model, arguments, _gpus(self._weights))
            self._weights.convert(before, self._optimizers)
        if told is not None:
            self._leave(told)


def _gpus(weights: Weights) -> list[torch.device]:
    return [one for one in weights.devices() if one.type == "cuda"]


def _probe(
    model: nn.Module, arguments: tuple[Any, ...], gpus: Sequence[torch.device]
) -> str | None:
    """Call a copy of the model and its gradients once. Return why that failed, or None.

    It fails if oneDNN is not known to compute a convolution of the model in channels last, and if
    the model has a group norm of images on the CPU.

    Some programs use `view` where the layout of a tensor decides whether it can be viewed. The copy
    shares the memory of the parameters and nothing else, so buffers, attributes and gradients are
    afterwards as before. So are the random numbers of PyTorch, Python and NumPy.
    """
    numbers = random.getstate()
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    numpy_state = None if numpy_random is None else numpy_random.get_state()
    doing = "cannot be copied"
    try:
        with torch.random.fork_rng(gpus, device_type="cuda"):
            copied = copy.deepcopy(model, {id(one): _alias(one) for one in model.parameters()})
            doing = "fails in channels last"
            given = tree_map_only(torch.Tensor, lambda x: x.detach().clone(), arguments)
            with KnownOperators(torch.is_grad_enabled()):
                result = copied(*given)
            wanted = [one for one in copied.parameters() if one.requires_grad]
            sums = [
                one.sum()
                for one in tree_flatten(result)[0]
                if isinstance(one, torch.Tensor) and one.requires_grad
            ]
            if sums and wanted:
                torch.autograd.grad(sums, wanted, allow_unused=True)
    except Exception as error:  # the model is the program's: it may raise anything
        first = str(error).strip().partition("\n")[0]
        return f"it {doing}: {type(error).__name__}: {first}"
    finally:
        random.setstate(numbers)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)
    return None


def _alias(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter with the same memory, without the gradient and the hooks."""
    if is_lazy(parameter):
        return copy.deepcopy(parameter)
    with torch.inference_mode(parameter.is_inference()):
        return nn.Parameter(parameter.detach(), parameter.requires_grad)


def _has_hooks(model: nn.Module) -> bool:
    """Return whether the program watches the model by hooks. They would see a probe."""
    for module in model.modules():
        for name in _HOOKS:
            for hook in getattr(module, name, {}).values():
                owner = getattr(hook, "__module__", None) or ""
                if owner.partition(".")[0] not in ("torch", "bestof"):
                    return True
    return False


def _first(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.contiguous()
    return tensor

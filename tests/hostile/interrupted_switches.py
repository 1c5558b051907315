"""`enable`, `disable` and `set_config` for `interrupted.py`, interrupted at every line.

Afterwards PyTorch computes the right results. A new `enable` tunes again, and a new `disable` gives
PyTorch's own kernels back.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from interrupted import Interrupt, Interruption, TimeLimit, print_sweeps, sweep
from interrupted_torch import in_bestof
from torch import Tensor
from torch.nn.modules import module
from torch.utils.data import DataLoader

import bestof.torch as bt
from bestof import processors
from bestof.selection.state.registry import use_store
from bestof.selection.store.memory import MemoryStore
from bestof.torch.process.neighbours import NEIGHBOURS

_EPS = torch.finfo(torch.float32).eps
_CONFIG: dict[str, Any] = {
    "kernel": {"enable": True},
    "layout": {"enable": True},
    "dataloader": {"enable": True},
    "memory": {"keep_freed": False},
}
_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_hooks")
_ITERATE = DataLoader.__iter__
# What is on before the switch, and the switch.
SCENARIOS: dict[str, tuple[bool, Callable[[], object]]] = {
    "enable": (False, bt.enable),
    "disable": (True, bt.disable),
    "set_config": (True, lambda: bt.set_config(_CONFIG)),
}


def _results(dtype: torch.dtype) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made).to(dtype)

    x, weight = drawn(1, 4, 6, 7).requires_grad_(), drawn(4, 4, 3, 3).requires_grad_()
    output = F.conv2d(x, weight, padding=1)
    output.sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    tokens = drawn(1, 2, 256, 64)
    product = F.linear(drawn(64, 256), drawn(256, 256))
    attended = F.scaled_dot_product_attention(tokens, tokens, tokens)
    return [output.detach(), x.grad, weight.grad, product, attended, F.max_pool2d(output, 2)]


def _hold(right: list[Tensor]) -> None:
    """Hold what PyTorch computes right, whoever answers."""
    for got, wanted in zip(_results(torch.float32), right, strict=True):
        # Sums of up to 256 products of up to 25.
        near = (got.double() - wanted).abs() <= 256 * 25 * _EPS
        assert bool(near.all()), "a result is wrong"


def _calls() -> Counter[str]:
    found: Counter[str] = Counter()
    for one in bt.summary().passes:
        found[one.name] += one.calls
    return found


def _in_switches(filename: str) -> bool:
    """Return whether a file belongs to bestof, and does more than read limits of the machine."""
    return in_bestof(filename) and filename != processors.__file__


def faults(name: str, **options: Any) -> tuple[int, list[str]]:
    """Interrupt a switch at every line, or every so many. Return their number, and faults."""
    is_on, switch = SCENARIOS[name]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    use_store(MemoryStore())
    bt.enable()  # what the first one imports is no part of it
    bt.disable()
    right = _results(torch.float64)

    def run(interruption: Interruption) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if is_on:
                    bt.enable()
                try:
                    with interruption.armed():
                        switch()
                except (Interrupt, TimeLimit):
                    assert interruption.happened
                _hold(right)
                bt.enable()
                before = _calls()
                for _ in range(4):  # reports begin after trials
                    _hold(right)
                seen = set(_calls() - before)
                assert {"forward", "product"} <= seen, f"the next enable sees {seen} only"
            finally:
                bt.disable()
            before = _calls()
            _hold(right)
            assert not _calls() - before, "disable leaves something in PyTorch"
            threads = [one for one in threading.enumerate() if one.name == "bestof-neighbours"]
            assert NEIGHBOURS._watchers or not threads, "disable leaves a thread"
            left = [name for name in _HOOKS if getattr(module, name)]
            assert not left, f"disable leaves hooks of all modules: {left}"
            assert DataLoader.__iter__ is _ITERATE, "disable leaves something in DataLoader"

    try:
        return sweep(name, run, _in_switches, **options)
    finally:
        use_store(None)
        torch.set_num_threads(threads)


if __name__ == "__main__":
    print_sweeps(faults, SCENARIOS, sys.argv[1:])

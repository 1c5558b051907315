"""Plans notice writes to weights that PyTorch does not count, as far as their pages promise."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.backends import shim
from bestof.torch.plan import fused_steps

OPTIMIZERS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad]


class Words(nn.Module):
    """An embedding of which a step changes one row in the middle, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 32)

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words)  # type: ignore[no-any-return]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).eval()


def step(one: nn.Module, optimizer: torch.optim.Optimizer, *inputs: Tensor) -> None:
    optimizer.zero_grad()
    one(*inputs).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_of_a_fused_optimizer(optimizer: type[torch.optim.Optimizer]) -> None:
    one, x = model(), torch.randn(4, 64)
    fused = optimizer(one.parameters(), lr=0.1, fused=True)  # type: ignore[call-arg]
    plan = bt.optimize(one, x, tune=False)
    copied = copy.deepcopy(plan)
    plan(x)
    step(one, fused, x)
    for _ in range(2):
        for stale in (plan, copied):
            with pytest.raises(TorchError, match="call optimize again"):
                stale(x)
        assert not plan.is_current()
    with pytest.raises(TorchError, match="call optimize again"):
        plan(torch.randn(5, 64))  # a new shape
    assert bt.optimize(one, x, tune=False).is_current()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "by Python"])
def test_a_fused_step_of_elements_that_are_not_sampled(
    optimizer: type[torch.optim.Optimizer], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(shim, "handle_conversions", lambda: None)
    one, words = Words().eval(), torch.tensor([30])
    fused = optimizer(one.parameters(), lr=0.1, fused=True)  # type: ignore[call-arg]
    plan = bt.optimize(one, words, tune=False)
    plan(words)
    step(one, fused, words)
    with pytest.raises(TorchError, match="call optimize again"):
        plan(words)


def _steps_and_ends(one: nn.Module, words: Tensor) -> None:
    step(one, torch.optim.SGD(one.parameters(), lr=0.1, fused=True), words)


def _steps_in_a_thread(one: nn.Module, words: Tensor) -> None:
    thread = threading.Thread(target=_steps_and_ends, args=(one, words))
    thread.start()
    thread.join()


@pytest.mark.parametrize("train", [_steps_and_ends, _steps_in_a_thread])
def test_a_fused_step_of_an_optimizer_that_was_freed(
    train: Callable[[nn.Module, Tensor], None],
) -> None:
    one, words = Words().eval(), torch.tensor([30])
    plan = bt.optimize(one, words, tune=False)
    train(one, words)
    gc.collect()
    with pytest.raises(TorchError, match="call optimize again"):
        plan(words)


def test_plans_of_many_threads_notice_a_fused_step() -> None:
    one, words = Words().eval(), torch.tensor([30])
    plan = bt.optimize(one, words, tune=False)
    plan(words)
    noticed: list[bool] = []
    barrier = threading.Barrier(8)

    def call() -> None:
        barrier.wait()
        try:
            plan(words)
        except TorchError:
            noticed.append(True)

    step(one, torch.optim.SGD(one.parameters(), lr=0.1, fused=True), words)
    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert noticed == [True] * 8


def test_a_fused_step_of_another_model_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, x = model(), model(), torch.randn(4, 64)
    plan = bt.optimize(one, x, tune=False)
    expected = plan(x)
    fused = torch.optim.SGD(other.parameters(), lr=0.1, fused=True)
    monkeypatch.setattr(plan._state._bits, "are_unchanged", lambda: pytest.fail("memory was read"))
    for _ in range(3):
        step(other, fused, x)
        torch.testing.assert_close(plan(x), expected)


def test_a_fused_step_that_changes_nothing() -> None:
    one, x = model(), torch.randn(4, 64)
    plan = bt.optimize(one, x, tune=False)
    expected = plan(x)
    fused = torch.optim.SGD(one.parameters(), lr=0.0, fused=True)
    for _ in range(3):
        step(one, fused, x)
        torch.testing.assert_close(plan(x), expected)


def test_optimizers_are_not_kept() -> None:
    one, x = model(), torch.randn(4, 64)
    plan = bt.optimize(one, x, tune=False)
    gc.collect()
    before = len(fused_steps._State.steps)
    for _ in range(3):
        step(model(), torch.optim.SGD(one.parameters(), lr=0.0, fused=True), x)
        plan(x)
    gc.collect()
    assert len(fused_steps._State.steps) == before
    assert len(plan._state._fused_steps._steps) <= before


def test_a_compiled_graph_plans_anew_after_a_fused_step() -> None:
    one, x = model(), torch.randn(4, 64)
    fused = torch.optim.Adam(one.parameters(), lr=0.1, fused=True)
    with torch.no_grad():
        compiled = torch.compile(one, backend="bestof")
        torch.testing.assert_close(compiled(x), one(x), rtol=1e-4, atol=1e-5)
    step(one, fused, x)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), one(x), rtol=1e-4, atol=1e-5)


def _by_dlpack(weight: nn.Parameter) -> None:
    torch.utils.dlpack.from_dlpack(weight.detach()).mul_(2)


def _double(memory: Tensor) -> None:
    memory.mul_(2)


def _by_another_process(weight: nn.Parameter) -> None:
    weight.data.share_memory_()
    child = multiprocessing.get_context("fork").Process(target=_double, args=(weight.data,))
    child.start()
    child.join()
    assert child.exitcode == 0


def _by_vector(weight: nn.Parameter) -> None:
    vector_to_parameters(2 * parameters_to_vector([weight]), [weight])


def _by_set(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.set_(weight.detach() * 2)  # type: ignore[call-overload]


def _by_foreach(weight: nn.Parameter) -> None:
    with torch.no_grad():
        torch._foreach_mul_([weight], 2.0)


def _by_a_fused_operator(weight: nn.Parameter) -> None:
    with torch.no_grad():
        torch._fused_sgd_(
            [weight], [torch.ones_like(weight)], [],
            weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip


def _by_freeing(weight: nn.Parameter) -> None:
    weight.untyped_storage().resize_(0)


WAYS: dict[str, Callable[[nn.Parameter], object]] = {
    "through data": lambda weight: weight.data.mul_(2),
    "one row through data": lambda weight: weight.data[0].zero_(),
    "a detached tensor": lambda weight: weight.detach().mul_(2),
    "other data": lambda weight: setattr(weight, "data", weight.detach() * 2),
    "NumPy": lambda weight: np.multiply(weight.detach().numpy(), 2, out=weight.detach().numpy()),
    "DLPack": _by_dlpack,
    "the storage": lambda weight: weight.untyped_storage().copy_(
        (weight.detach() * 2).untyped_storage()
    ),
    "another process": _by_another_process,
    "a vector": _by_vector,
    "set_": _by_set,
    "swap_tensors": lambda weight: torch.utils.swap_tensors(
        weight, nn.Parameter(weight.detach() * 2)
    ),
    "foreach": _by_foreach,
    "a fused operator": _by_a_fused_operator,
    "an initialisation": nn.init.zeros_,
    "its memory freed": _by_freeing,
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "by Python"])
@pytest.mark.parametrize("way", WAYS)
def test_a_write_to_a_whole_tensor_is_noticed(
    way: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(shim, "handle_conversions", lambda: None)
    one, x = model(), torch.randn(4, 64)
    plan = bt.optimize(one, x, tune=False)
    plan(x)
    WAYS[way](one[2].weight)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(TorchError, match="call optimize again"):
            plan(x)


def test_gaps_between_the_elements_of_a_weight_may_change() -> None:
    memory = torch.randn(32, 128)
    one, x = nn.Linear(64, 32).eval(), torch.randn(4, 64)
    one.weight = nn.Parameter(memory[:, :64])
    plan = bt.optimize(one, x, tune=False)
    expected = plan(x)
    memory[:, 64:] += 1
    assert one.weight._version > 0  # PyTorch counts for all views, and the plan must be strict
    with pytest.raises(TorchError, match="call optimize again"):
        plan(x)
    one.weight = nn.Parameter(memory[:, :64].data)
    plan = bt.optimize(one, x, tune=False)
    memory.data[:, 64:] += 1
    torch.testing.assert_close(plan(x), expected)

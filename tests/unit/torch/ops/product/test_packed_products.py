"""Weights of products are packed once, and never used after they have changed."""

from __future__ import annotations

import copy
import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch
from choices import Choices
from product_case import enable, packed_of, random, shim_of
from torch import Tensor, nn
from torch.nn import functional
from weight_changes import WEIGHT_CHANGES

import bestof.torch as integration
from bestof import kernels
from bestof.selection.state.journal import DecisionEntry
from bestof.torch.dispatch.override import Override
from bestof.torch.ops import source_cache
from bestof.torch.ops.product import packed
from bestof.torch.ops.product.packed import PackedMatrices
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.product import bound_of

NAME = "native blocked packed"


@pytest.fixture
def override(own_process: None) -> Iterator[Override]:
    with torch.no_grad():
        yield enable(NAME)


def layer() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(96, 72)


def right(one: nn.Linear, x: Tensor) -> Tensor:
    bias = None if one.bias is None else one.bias.double()
    return functional.linear(x.double(), one.weight.double(), bias)


def hold(one: nn.Linear, x: Tensor) -> None:
    """96 terms of a magnitude of 16 at most, each rounded twice."""
    bound = 96 * 2**-22 * max(1.0, float(x.abs().max() * one.weight.abs().max()))
    assert (one(x) - right(one, x)).abs().max() <= bound


def settle(one: nn.Linear, x: Tensor) -> None:
    for _ in range(6):
        hold(one, x)


def test_a_settled_call_reads_packed_weights_without_python(override: Override) -> None:
    one, x = layer(), random(96, 96)
    settle(one, x)
    assert len(packed_of(override)) == 1
    asked = shim_of(override).asked
    for _ in range(8):
        hold(one, x)
    assert shim_of(override).asked == asked
    assert len(packed_of(override)) == 1


@pytest.mark.parametrize("change", WEIGHT_CHANGES)
def test_changed_weights_are_seen_at_once(override: Override, change: str) -> None:
    one, x = layer(), random(96, 96)
    settle(one, x)
    for _ in range(3):
        before = one(x)
        WEIGHT_CHANGES[change](one.weight)
        hold(one, x)
        assert not torch.equal(one(x), before)
        settle(one, x)
    assert shim_of(override).asked >= 4


def test_weights_that_change_at_each_call_are_never_packed(override: Override) -> None:
    one, x = layer(), random(96, 96)
    settle(one, x)
    packed = [entry.value for entry in packed_of(override)._kept.values()]
    for _ in range(10):
        one.weight.data.mul_(-1)
        one.weight.data[0, 0] += 1
        hold(one, x)
    assert [entry.value for entry in packed_of(override)._kept.values()] == packed


def test_packed_weights_leave_with_their_weights(override: Override) -> None:
    one, x = layer(), random(96, 96)
    settle(one, x)
    assert packed_of(override).size > 0
    del one
    gc.collect()
    assert (len(packed_of(override)), packed_of(override).size) == (0, 0)


def test_an_address_that_was_somebody_elses(override: Override) -> None:
    x = random(96, 96)
    addresses = set()
    for _ in range(20):
        one = nn.Linear(96, 72)
        addresses.add(one.weight.data_ptr())
        settle(one, x)
        del one
    assert len(addresses) < 20
    assert len(packed_of(override)) == 0


@pytest.mark.parametrize("way", ["parts", "gaps", "the same numbers as rows and as columns"])
def test_parts_and_layouts_of_one_weight(override: Override, way: str) -> None:
    whole = nn.Parameter(random(3 * 96, 96))
    parts = {
        "parts": whole.chunk(3),
        "gaps": tuple(whole.view(96, 288)[:, 96 * i : 96 * (i + 1)] for i in range(3)),
        "the same numbers as rows and as columns": (whole[:96], whole[:96].t()),
    }[way]
    x = random(96, 96)
    for _ in range(8):
        for one in parts:
            expected = x.double() @ one.double().t()
            assert (functional.linear(x, one) - expected).abs().max() <= 1e-3
    assert len(packed_of(override)) == (0 if way == "gaps" else len(parts))


def test_training_packs_nothing(override: Override) -> None:
    one, x = layer(), random(96, 96).requires_grad_()
    with torch.enable_grad():
        for _ in range(6):
            one(x).square().sum().backward()
    assert len(packed_of(override)) == 0
    assert not any(problem.frozen for problem in override.calls.totals())
    settle(one, x.detach())
    assert len(packed_of(override)) == 1
    integration.disable()
    assert len(packed_of(override)) == 0


def test_inference_mode_keeps_them_too(override: Override) -> None:
    one, x = layer(), random(96, 96)
    with torch.inference_mode():
        settle(one, x)
    assert len(packed_of(override)) == 1
    one.weight.data.mul_(2)
    with torch.inference_mode():
        settle(one, x)
        other = nn.Linear(96, 72)  # of inference tensors, which have no version
        settle(other, x)
    assert len(packed_of(override)) == 1


def test_no_memory_for_them() -> None:
    one, x = layer(), random(96, 96)
    override = enable(NAME, packed_mib=0)
    with torch.no_grad():
        settle(one, x)
    assert len(packed_of(override)) == 0


def test_the_oldest_leave_where_memory_is_short(own_process: None) -> None:
    cache, weights = PackedMatrices(1 << 30), [random(96, 72, seed=i) for i in range(4)]
    first = cache.get(weights[0], "blocked")
    assert first is not None
    assert cache.get(weights[0], "blocked") is first
    cache.limit = 2 * first.nbytes
    kept = [cache.get(one, "blocked") for one in weights[1:]]
    assert cache.size <= cache.limit
    assert cache.get(weights[3], "blocked") is kept[2]
    assert cache.get(weights[0], "blocked") is not first


def test_another_instruction_set_packs_anew(override: Override) -> None:
    one, x, usual = layer(), random(96, 96), kernels.isa()
    settle(one, x)
    kernels.use_isa("baseline")
    try:
        settle(one, x)
    finally:
        kernels.use_isa(usual)
    settle(one, x)
    assert len(packed_of(override)) == 1


def test_a_decision_for_another_kernel_frees_them(override: Override) -> None:
    one, x = layer(), random(96, 96)
    settle(one, x)
    ((problem, _),) = override.calls.totals().items()
    override.operation.decided(problem, override.selector.best_name)
    assert len(packed_of(override)) == 1
    assert problem.frozen
    override._selection.selector = Choices({problem: "as is"})  # type: ignore[assignment]
    override._selection._listen(DecisionEntry(problem, "as is", "measured"))
    assert len(packed_of(override)) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_its_own(override: Override) -> None:
    del override
    one, x = layer(), random(96, 96)
    settle(one, x)
    expected = one(x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            same = torch.equal(one(x), expected)
            one.weight.mul_(2)
            settle(one, x)
            status = 0 if same else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(one(x), expected)


def test_threads_share_them(override: Override) -> None:
    one, x = layer(), random(96, 96)
    failed: list[BaseException] = []

    def work(own: nn.Linear) -> None:
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                for turn in range(60):
                    hold(one, x)
                    if turn % 7 == 0:
                        own.weight.data.add_(1e-3)
                    hold(own, x)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(copy.deepcopy(one),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    gc.collect()
    assert len(packed_of(override)) <= 1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [17, 64, 130])
def test_results_in_every_layout(override: Override, rows: int, bias: bool) -> None:
    one, added = random(300, 130, seed=1), random(130) if bias else None
    for b in (one, one.t().contiguous().t()):
        a = random(rows, 300)
        with torch.no_grad():
            problem = ProductProblem.of("addmm" if bias else "mm", a, b, "float32")
        assert problem.frozen
        assert override._selection.rows[NAME].supports(problem)
        got = override._selection.rows[NAME].function(override.original, problem, added, a, b)
        expected = a.double() @ b.double() + (0 if added is None else added.double())
        bound = bound_of(override._selection.rows[NAME], problem)
        assert (got - expected).abs().max() <= bound.maximum * expected.square().mean().sqrt()


def test_only_packing_a_parameter_is_no_part_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other matrices may be new in each call, and would be packed in each one."""
    apart: list[float] = []
    monkeypatch.setattr(source_cache, "set_apart", apart.append)
    cache = PackedMatrices(1 << 24)
    with torch.no_grad():
        cache.get(torch.randn(96, 72), "blocked")
        assert apart == []
        one = layer()
        cache.get(one.weight.t(), "blocked")
        cache.get(one.weight.t(), "blocked")
    assert len(apart) == 1


def test_a_matrix_above_the_limit_is_not_packed_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    b = random(96, 72)
    kept = PackedMatrices(b.nbytes - 1)
    monkeypatch.setattr(packed, "pack_matrix", None)
    assert kept.get(b, "blocked") is None

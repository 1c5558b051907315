"""One bound holds for scratch, packed weights and kept matrices together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof
import bestof.torch as bt
from bestof.errors import BestofWarning, InvalidArgument
from bestof.kernels import pack_weights
from bestof.torch.ops import memory_bound, table
from bestof.torch.ops.convolution.kept_matrices import KeptMatrices
from bestof.torch.ops.convolution.packed_weights import PackedWeightsCache
from bestof.torch.ops.convolution.problem import LayerProblem
from bestof.torch.ops.convolution.whole_layer import too_large
from bestof.torch.rows.row_selector import row_selector

X = torch.randn((2, 32, 56, 56), generator=torch.Generator().manual_seed(1))
W = torch.randn((32, 32, 3, 3), generator=torch.Generator().manual_seed(2))
MIB = 2**20


@pytest.fixture(autouse=True)
def no_scratch_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memory_bound._Process, "scratch", 0)
    yield
    memory_bound.bound_memory(None)


def run(calls: int = 40) -> None:
    expected = F.conv2d(X, W, padding=1)
    for _ in range(calls):
        torch.testing.assert_close(F.conv2d(X, W, padding=1), expected, rtol=1e-4, atol=1e-3)


def explained() -> str:
    selector = row_selector(table.named("convolution forward", "")).selector
    problems = {*selector._knowledge.tunings, *selector._knowledge.decisions}
    (problem,) = problems
    return str(selector.explain(problem))


def test_a_row_that_needs_more_is_no_candidate_and_the_report_says_so() -> None:
    bt.enable({"kernel": {"memory_mib": 1, "budget": None}})
    run()
    assert re.search(r"im2row +left out.*needs 7 MiB of 1 allowed", explained())
    held = bt.summary().held
    assert held.limit == MIB
    assert held.scratch + held.weights + held.matrices <= MIB


def test_without_a_bound_nothing_is_left_out_for_its_memory() -> None:
    bt.enable({"kernel": {"budget": None}})
    run()
    assert "allowed" not in explained()
    held = bt.summary().held
    assert held.limit is None
    assert held.scratch > 0


def test_a_bound_of_nothing_leaves_what_needs_nothing() -> None:
    bt.enable({"kernel": {"memory_mib": 0, "budget": None}})
    run()
    assert bt.summary().held[:3] == (0, 0, 0)


def test_a_smaller_bound_frees_what_is_kept_and_chooses_again() -> None:
    bestof.use_policy("fixed:native winograd4")
    bt.enable({"kernel": {"budget": None}})
    with torch.no_grad():
        run()
    assert bt.summary().held.weights > 0
    bestof.use_policy(None)
    bt.enable({"kernel": {"memory_mib": 0, "budget": None}})
    assert bt.summary().held.weights == 0
    run()
    assert "winograd4" not in str(bt.summary().passes)


def test_an_order_stands_above_the_bound() -> None:
    bestof.use_policy("fixed:native winograd4")
    bt.enable({"kernel": {"memory_mib": 0}})
    run(3)
    (found,) = bt.summary().passes
    assert found.chosen == "native winograd4"


def test_only_does_not() -> None:
    with pytest.warns(BestofWarning, match="leaves nothing but PyTorch's own"):
        bt.enable({"kernel": {"memory_mib": 0, "only": ["native winograd4"]}})
    run()
    (found,) = bt.summary().passes
    assert found.chosen == "as is"


def test_a_lowered_matrix_above_the_bound_is_not_kept() -> None:
    call = table.named("convolution forward", "").call(
        "float32", X, W, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1
    )
    assert call is not None
    layer = LayerProblem(call.problem, True, True)
    assert too_large(layer) is None
    memory_bound.bound_memory(1)
    assert too_large(layer) == "needs 7 MiB of 1 allowed"  # 2 * 56 * 56 * 32 * 9 * 4 bytes


def test_training_stays_right_where_nothing_can_be_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3))
    expected = torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
    bt.enable({"kernel": {"memory_mib": 2, "budget": None}})
    for _ in range(8):
        got = torch.autograd.grad(model(X).square().mean(), list(model.parameters()))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    held = bt.summary().held
    assert held.scratch + held.weights + held.matrices <= 2 * MIB


def weights(seed: int) -> Tensor:
    return torch.randn((64, 64, 3, 3), generator=torch.Generator().manual_seed(seed))


def test_caches_share_the_bound_and_scratch_goes_first() -> None:
    packed, kept = PackedWeightsCache(64 * MIB), KeptMatrices()
    size = pack_weights(weights(0).permute(0, 2, 3, 1).contiguous().numpy(), "winograd4").nbytes
    memory_bound.bound_memory(2)
    assert size < MIB
    ours = [weights(seed) for seed in range(5)]
    for one in ours:
        packed.get(one, "winograd4", 1)
    assert len(packed) == 2 * MIB // size  # the first ones stay: all would be packed in each call
    matrix = torch.zeros(MIB // 4)
    kept.keep(X, "geometry", matrix)
    assert len(kept) == 0
    packed.clear()
    kept.keep(X, "geometry", matrix)
    assert memory_bound.held() == (0, 0, MIB, 2 * MIB)
    memory_bound.reserve(MIB + 1)
    assert memory_bound.held() == (MIB + 1, 0, 0, 2 * MIB)


@pytest.mark.parametrize("value", [-1, 1.5, True, "256", [1], float("nan")])
def test_a_wrong_bound_is_refused_before_anything_changes(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"kernel.memory_mib: expected a whole number of MiB"):
        bt.enable({"kernel": {"memory_mib": value}})
    assert memory_bound.held().limit is None


def test_the_program_of_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "control.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (block,) = [one for one in blocks if "memory_mib" in one]
    exec(compile(block, "control.md", "exec"), {})

"""Steps that write their results into a part of a concatenation."""

from __future__ import annotations

import copy
import io
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_results import is_close, operations
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.torch.plan.algorithms.table import table
from bestof.torch.plan.memory.memory_plan import MemoryPlan
from bestof.torch.plan.operations.joined_channels import JoinedChannels
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.steps.convolution_step import ConvolutionStep

Join = Callable[[Any, Tensor], Tensor]
GIVES_UP = MemoryPlan._give_up_parts


@pytest.fixture(autouse=True)
def all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs keep parts that would take memory for too long."""
    monkeypatch.setattr(MemoryPlan, "_give_up_parts", lambda _: None)


class Joined(nn.Module):
    """What joins some layers of one value, and a layer that reads it."""

    def __init__(self, join: Join, channels: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.join = join
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.three = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 20, 3, padding=1)
        self.stem = nn.Conv2d(8, 12, 7, stride=2, padding=3)
        self.strided = nn.Conv2d(8, 9, 3, stride=2, padding=1)
        self.same, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.join(self, self.first(x).relu()))
        return found


def fire(m: Any, x: Tensor) -> Tensor:
    """An expansion of SqueezeNet."""
    return torch.cat([m.one(x).relu(), m.three(x).relu()], 1)


def inception(m: Any, x: Tensor) -> Tensor:
    pooled = nn.functional.max_pool2d(x, 3, 1, 1)
    return torch.cat([m.one(x), m.three(x).relu(), pooled, m.one(pooled).sigmoid()], 1)


def reduction(m: Any, x: Tensor) -> Tensor:
    pooled = nn.functional.avg_pool2d(x, 3, 2, 1)
    return torch.cat([nn.functional.silu(m.stem(x)), pooled, m.strided(x)], 1)


def skip(m: Any, x: Tensor) -> Tensor:
    return torch.cat([x, m.same(x).relu()], 1)


def twice(m: Any, x: Tensor) -> Tensor:
    piece = m.one(x)
    return torch.cat([piece, piece, m.three(x)], 1)


def added(m: Any, x: Tensor) -> Tensor:
    return torch.cat([(m.same(x) + x).relu(), m.one(x)], 1)


def pooled_layer(m: Any, x: Tensor) -> Tensor:
    pooled = nn.functional.max_pool2d(m.three(x).relu(), 2)
    return torch.cat([pooled, m.strided(x)[:, :, :3, :4]], 1)


def nested(m: Any, x: Tensor) -> Tensor:
    return torch.cat([x, torch.cat([m.one(x), m.three(x)], 1)], 1)


def read_by_two(m: Any, x: Tensor) -> Tensor:
    both = fire(m, x)
    return torch.cat([both, both.tanh()], 1)


# What joins, its channels, how many values lie in a concatenation, and the steps that copy others.
CASES: tuple[tuple[Join, int, int, int], ...] = (
    (fire, 36, 2, 0),
    (inception, 60, 2, 1),
    (reduction, 29, 3, 0),
    (skip, 16, 1, 1),
    (twice, 52, 0, 1),
    (added, 24, 1, 1),
    (nested, 44, 2, 1),
)
IDS = [one[0].__name__ for one in CASES]


def program_of(plan: OptimizedModel, x: Tensor) -> Any:
    return plan.program([x], pytree.tree_flatten(((x,), {}))[1])[0]


def layers_of(plan: OptimizedModel, x: Tensor) -> list[ConvolutionStep]:
    program = program_of(plan, x)
    binding = program.borrow()
    program.give_back(binding)
    return list(binding.layers)


def copying_steps(plan: OptimizedModel) -> int:
    return sum(one.problem == "channels" for one in plan.explain().steps)


@pytest.mark.parametrize(("join", "channels", "written", "copying"), CASES, ids=IDS)
def test_a_value_that_only_a_concatenation_reads_is_written_there(
    join: Join, channels: int, written: int, copying: int
) -> None:
    model, x = Joined(join, channels).eval(), torch.randn(2, 3, 7, 9)
    plan = bt.optimize(model, x)
    assert len(program_of(plan, x)._memory.parts) == written
    assert copying_steps(plan) == copying
    assert is_close(plan, model, x)


@pytest.mark.parametrize(
    ("join", "channels"), [(pooled_layer, 29), (read_by_two, 72)], ids=["pooled", "two readers"]
)
def test_others_are_right_too(join: Join, channels: int) -> None:
    model, x = Joined(join, channels).eval(), torch.randn(2, 3, 7, 9)
    assert is_close(bt.optimize(model, x), model, x)


@pytest.mark.parametrize("join", [fire, reduction])
def test_each_algorithm_writes_the_part_or_its_results_are_copied(join: Join) -> None:
    model = Joined(join, {fire: 36, reduction: 29}[join]).eval()
    x = torch.randn(2, 3, 21, 19)
    plan = bt.optimize(model, x, tune=False)
    tried = set()
    for name, row in table().items():
        for one in layers_of(plan, x):
            if one.problem.pitch:
                runs = one.choice.can_run(name)
                one.choice.settle(name if runs else one.pytorch)
                if runs:
                    tried.add(row.pitches(one.problem))
        program_of(plan, x).bind_anew()
        assert is_close(plan, model, x), name
    assert tried == {True, False}


def test_an_element_that_stands_out_is_computed_by_pytorch() -> None:
    model, x = Joined(reduction, 29).eval(), torch.randn(2, 3, 21, 19)
    plan = bt.optimize(model, x, tune=False)
    for one in layers_of(plan, x):
        for name in ("winograd3_7x7_s2", "winograd3_s2"):
            if one.problem.pitch and one.choice.can_run(name):
                one.choice.settle(name)
    program_of(plan, x).bind_anew()
    names = {one.algorithm for one in layers_of(plan, x)}
    assert {"winograd3_7x7_s2", "winograd3_s2"} <= names
    x[0, 1, 3, 4] = float("inf")
    x[1, 2, 7, 7] = 1e30
    with torch.no_grad():
        wanted = model(x)
        torch.testing.assert_close(plan(x), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_comparison_poisons_the_part_alone() -> None:
    model, x = Joined(fire, 36).eval(), torch.randn(2, 3, 7, 9)
    plan = bt.optimize(model, x, tune=False)
    program = program_of(plan, x)
    for one in layers_of(plan, x):
        one.choice.settle("convgemm")
    program.bind_anew()
    wanted = plan(x)
    binding = program.borrow()
    binding.slots[0] = x
    for step in binding.steps:
        step.run()
        if isinstance(step.chosen, ConvolutionStep):
            assert step.chosen.complaint() is None
            if step.chosen.problem.pitch and step.chosen.problem.terms == 72:  # the second part
                first = step.chosen.out.storage_offset() - 16
                before = step.chosen.out.as_strided((2, 16, 7, 9), step.chosen.out.stride(), first)
                assert torch.isfinite(before).all()
            step.run()
    program.give_back(binding)
    assert torch.equal(plan(x), wanted)


def test_the_arena_holds_each_branch_once() -> None:
    x = torch.randn(1, 3, 32, 32)
    memory = bt.optimize(Joined(fire, 36).eval(), x, tune=False).explain().memory
    assert memory is not None
    # x in channels last or the first layer, the concatenation, and where a row's results wait.
    assert memory.arena <= 4 * 32 * 32 * (8 + 36 + 20 + 4) + 1024


def test_the_choice_knows_the_pixels_that_a_part_lies_in() -> None:
    model, x = Joined(fire, 36).eval(), torch.randn(1, 3, 7, 9)
    texts = [str(one.problem) for one in layers_of(bt.optimize(model, x, tune=False), x)]
    assert [text.endswith("part of 36") for text in texts] == [False, True, True, False]


@pytest.mark.parametrize("join", [fire, inception])
def test_it_is_saved_and_loaded(join: Join) -> None:
    model = Joined(join, {fire: 36, inception: 60}[join]).eval()
    x, file = torch.randn(2, 3, 7, 9), io.BytesIO()
    plan = bt.optimize(model, x)
    plan.save(file)
    again = bt.load(io.BytesIO(file.getvalue()))
    assert operations(again, x) == operations(plan, x)
    assert copying_steps(again) == copying_steps(plan)
    assert torch.equal(again(x), plan(x))


def test_bfloat16() -> None:
    model, x = Joined(fire, 36).eval().bfloat16(), torch.randn(2, 3, 7, 9).bfloat16()
    plan = bt.optimize(model, x)
    assert copying_steps(plan) == 0
    with torch.no_grad():
        right = copy.deepcopy(model).double()(x.double())
        error, theirs = ((one(x).double() - right).norm() for one in (plan, model))
    assert error <= max(2 * theirs, 4 * 2**-9 * right.norm())


class Drawn(nn.Module):
    """Layers at random, each of a concatenation of some values before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.layers, self.read = nn.ModuleList(), list[list[int]]()
        widths = [draw.choice([3, 8, 16])]
        self.channels = widths[0]
        for _ in range(draw.randint(3, 8)):
            read = sorted(draw.sample(range(len(widths)), draw.randint(1, min(3, len(widths)))))
            made, kernel = draw.choice([1, 5, 8, 16, 17, 32]), draw.choice([1, 3, 5])
            given = sum(widths[one] for one in read)
            layer: nn.Module = nn.Conv2d(given, made, kernel, padding=kernel // 2)
            if draw.random() < 0.2:
                layer, made = nn.MaxPool2d(3, 1, 1), given
            activations = nn.ReLU(), nn.SiLU(), nn.Identity()
            self.layers.append(nn.Sequential(layer, draw.choice(activations)))
            self.read.append(read)
            widths.append(made)

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layer, read in zip(self.layers, self.read, strict=True):
            values.append(layer(torch.cat([values[one] for one in read], 1)))
        unread = set(range(len(values))) - {one for read in self.read for one in read}
        return torch.cat([values[one] for one in sorted(unread)], 1)


@pytest.mark.long(every=8)
@pytest.mark.parametrize("seed", range(40))
def test_random_concatenations(seed: int) -> None:
    model, draw = Drawn(seed).eval(), random.Random(seed)
    for one in model.modules():
        if isinstance(one, nn.Conv2d):
            nn.init.normal_(one.weight, std=one.weight[0].numel() ** -0.5)
    shape = draw.choice([1, 2, 3]), model.channels, draw.randint(1, 15), draw.randint(1, 15)
    x = torch.randn(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = bt.optimize(model, x, tune=draw.random() < 0.3)
    assert is_close(plan, model, x)


class Early(nn.Module):
    """A mask that is computed early, and concatenated behind large values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mask = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 1)
        self.up, self.mid, self.down = (
            nn.Conv2d(8, 64, 1),
            nn.Conv2d(64, 64, 1),
            nn.Conv2d(64, 8, 1),
        )
        self.late, self.last = nn.Conv2d(8, 56, 1), nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        mask = self.mask(x)
        y = self.down(self.mid(self.up(x).relu()).relu())
        found: Tensor = self.last(torch.cat([mask, self.late(y)], 1))
        return found


def test_parts_take_no_more_memory_than_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Early().eval(), torch.randn(1, 3, 32, 32)
    larger = program_of(bt.optimize(model, x, tune=False), x).floats
    monkeypatch.setattr(MemoryPlan, "_give_up_parts", GIVES_UP)
    plan = bt.optimize(model, x, tune=False)
    assert is_close(plan, model, x)
    taken = program_of(plan, x).floats
    monkeypatch.setattr(JoinedChannels, "parts", lambda _one, _node: {})
    assert taken <= program_of(bt.optimize(model, x, tune=False), x).floats < larger

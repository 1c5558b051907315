"""Which shapes a plan learns: those that come back. The model answers all others."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning, InvalidArgument, TorchError
from bestof.torch.plan import admission, optimized
from bestof.torch.plan.admission import Admission
from bestof.torch.plan.trace import twin

MEETINGS, PATIENCE = admission.MEETINGS, admission.PATIENCE


@pytest.fixture(autouse=True)
def as_users_have_it(own_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MEETINGS", MEETINGS)
    monkeypatch.setattr(admission, "PATIENCE", PATIENCE)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that are planned, in order."""
    batches: list[int] = []
    plan_inputs = optimized.plan_inputs

    def noted(model: nn.Module, leaves: list[Tensor], *args: object, **kwargs: object) -> object:
        batches.append(leaves[0].shape[0])
        return plan_inputs(model, leaves, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(optimized, "plan_inputs", noted)
    return batches


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


def rows(count: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(count))


def planned(plan: bt.OptimizedModel) -> list[int]:
    return [one.leaves[0].shape[0] for one in plan._programs.values()]


def check(plan: bt.OptimizedModel, model: nn.Module, x: Tensor) -> None:
    """Two sums of 6 products: 1e-6 is 8 units of the largest result."""
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-5, atol=1e-6)


def serve(plan: bt.OptimizedModel, model: nn.Module, batches: list[int]) -> None:
    for count in batches:
        check(plan, model, rows(count))


def test_a_shape_that_does_not_return_is_never_planned(made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1))
    for count in range(2, 60):
        check(plan, model, rows(count))
    assert made == [1] == planned(plan)


def test_a_shape_that_comes_back_is_planned_within_a_few_calls(made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1))
    for call in range(100):
        check(plan, model, rows(8))
        assert made == ([1] if call < MEETINGS else made)
    assert made == [1, 8]
    assert planned(plan) == [1, 8]


@pytest.mark.parametrize("limit", [2, 5])
def test_shapes_in_turn_do_not_evict_each_other(made: list[int], limit: int) -> None:
    model = small()
    plan = bt.optimize(model, rows(1), shapes=limit, tune=False)
    batches = [*range(1, 10)] * 6 * PATIENCE
    with pytest.warns(BestofWarning, match=rf"more input shapes than the {limit} that it keeps"):
        serve(plan, model, batches)
    assert len(made) == limit == len(set(made)) == len(planned(plan))
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        serve(plan, model, batches[:18])


def test_new_shapes_replace_those_that_are_not_met_any_more(made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1), shapes=3, tune=False)
    with warnings.catch_warnings():  # no thrashing: the old shapes do not come back
        warnings.simplefilter("error")
        for day in ((2, 3), (4, 5), (6, 7)):
            plan.admission._since = 1e9  # the model has answered for long since
            for _ in range(4 * PATIENCE):
                plan.admission._since += 1e9
                for count in day:
                    check(plan, model, rows(count))
            assert planned(plan) == [1, *day]  # the example stays
    assert made == list(range(1, 8))


def test_replacing_waits_until_planning_is_repaid() -> None:
    """The model has answered for ten times as long as planning takes."""
    one = Admission(shapes=1)
    one.planned("a", 2.0)
    assert not one.has_room([4])
    one.tell("b", 3.0)
    assert one.replaceable(["a"]) is None  # an epoch begins
    for _ in range(5):
        one.tell("b", 3.0)
    assert one.comes_back("b")
    assert one.replaceable(["a"]) is None
    one.tell("b", 3.0)
    one.tell("b", 3.0)
    assert one.replaceable(["a"]) == "a"
    one.meet("a")


def test_a_kept_shape_that_is_met_stays() -> None:
    one = Admission(shapes=2)
    assert one.replaceable(["a", "c"]) is None
    one.tell("b", 3.0)
    one.meet("a")
    assert one.replaceable(["a", "c"]) == "c"
    assert one.epoch == 1


def test_crowded_are_plans_whose_shapes_are_all_met_twice() -> None:
    one = Admission(shapes=2)
    for epoch in range(4):
        assert one.epoch == epoch
        assert one.is_crowded == (epoch > 2)
        assert one.replaceable(["a", "c"]) is None
        one.meet("a")
        one.meet("c")
    one.replaceable(["a", "d"])  # another shape was taken in
    assert not one.is_crowded


def test_large_arenas_leave_no_room() -> None:
    one = Admission(shapes=99)
    assert one.has_room([])
    assert one.has_room([2**31])
    assert not one.has_room([2**30] * 4)
    assert one.has_room([2**26] * 15)
    assert not one.has_room([2**26] * 16)


def test_counts_are_bounded() -> None:
    one = Admission()
    for key in range(5000):
        one.tell(key, 1.0)
        one.refuse(key)
    assert len(one._new) <= 1024
    assert len(one._refused) <= 1024


@pytest.mark.parametrize(
    "shapes",
    [
        [(4, 6), (7, 6)],
        [torch.Size([4, 6]), [7, 6]],
        [((4, 6),), ((7, 6),)],
        [torch.ones(4, 6), (torch.ones(7, 6),)],
        (tuple(one.shape) for one in (torch.ones(4, 6), torch.ones(7, 6))),
    ],
    ids=["shapes", "sizes", "tuples", "inputs", "generator"],
)
def test_prepared_shapes_are_planned_at_once(shapes: object, made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1))
    assert plan.prepare(shapes) is plan  # type: ignore[arg-type]
    assert made == [1, 4, 7]
    for count in (1, 4, 7):
        check(plan, model, rows(count))
    assert made == [1, 4, 7]
    assert all(plan._programs.values())
    for one in plan._programs.values():
        assert all(choice.algorithm is not None for choice in one.program.choices.values())


def test_prepared_shapes_stay_and_are_saved(made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1), shapes=12).prepare([(one, 6) for one in range(2, 13)])
    with pytest.warns(BestofWarning, match="more input shapes than the 12"):
        serve(plan, model, [20, 21] * 6 * PATIENCE)
    assert planned(plan) == list(range(1, 13))
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    for count in range(1, 13):
        check(loaded, model, rows(count))
    assert planned(loaded) == list(range(1, 13))
    with pytest.raises(TorchError, match="serves only inputs"):
        loaded(rows(20))
    with pytest.raises(TorchError, match="serves only inputs"):
        loaded.prepare([(20, 6)])
    assert loaded.prepare([(12, 6)]) is loaded


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (torch.ones(4, 6), "got a Tensor"),
        (3, "got a int"),
        ((4, 6), "got the item 4"),
        (["4x6"], "got the item '4x6'"),
        ([((4, 6), (4, 6))], "the plan takes 1 tensor"),
        ([(4, -6)], r"got the item \(4, -6\)"),
        ([(4, 6.0)], r"got the item \(4, 6.0\)"),
        ([(True, 6)], r"got the item \(True, 6\)"),
        ([(one, 6) for one in range(1, 40)], "39 shapes.*pass shapes=39"),
    ],
)
def test_what_cannot_be_prepared(shapes: object, message: str, made: list[int]) -> None:
    plan = bt.optimize(small(), rows(1))
    with pytest.raises(InvalidArgument, match=message):
        plan.prepare(shapes)  # type: ignore[arg-type]
    assert made == [1]


def test_shapes_that_the_model_refuses_are_not_prepared() -> None:
    plan = bt.optimize(small(), rows(1))
    with pytest.raises(TorchError, match=r"does not run on float32 \(2, 7\).*made for"):
        plan.prepare([(2, 7)])
    assert planned(plan) == [1]


@pytest.mark.parametrize("shapes", [0, -1, True, 2.0, "8", None])
def test_wrong_limits_are_refused(shapes: object) -> None:
    with pytest.raises(InvalidArgument, match="optimize: shapes: expected a whole number"):
        bt.optimize(small(), rows(1), shapes=shapes)  # type: ignore[arg-type]


def test_several_tensors_take_several_shapes() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, index: Tensor, scale: float, *, bias: Tensor) -> Tensor:
            return torch.relu(x[index] * scale + bias)

    given = torch.randn(3, 4), torch.tensor([0, 1]), 2.0
    plan = bt.optimize(Two().eval(), given, {"bias": torch.ones(4)})
    plan.prepare([((5, 4), (3,), (4,))])
    leaves = [[tuple(leaf.shape) for leaf in one.leaves if isinstance(leaf, Tensor)]
              for one in plan._programs.values()]  # fmt: skip
    assert leaves == [[(3, 4), (2,), (4,)], [(5, 4), (3,), (4,)]]
    with pytest.raises(InvalidArgument, match="the plan takes 3 tensors"):
        plan.prepare([(5, 4)])


def test_images_stay_in_channels_last() -> None:
    x = torch.randn(1, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    plan = bt.optimize(nn.Conv2d(3, 4, 3).eval(), x).prepare([(2, 3, 9, 9)])
    leaf = next(reversed(plan._programs.values())).leaves[0]
    assert leaf.is_contiguous(memory_format=torch.channels_last)


def test_two_threads_that_meet_a_new_shape_plan_it_once(made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1))
    failures: list[BaseException] = []

    def call() -> None:
        try:
            serve(plan, model, [8, 9] * 60)
        except BaseException as error:  # shown below
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures
    assert sorted(made) == [1, 8, 9] == sorted(planned(plan))


def test_while_one_thread_plans_the_model_answers_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    plan = bt.optimize(model, rows(1))
    for count in (8, 9):
        for _ in range(PATIENCE):
            plan(rows(count))
    begun, may_end = threading.Event(), threading.Event()
    plan_inputs = optimized.plan_inputs

    def slow(*args: object, **kwargs: object) -> object:
        begun.set()
        assert may_end.wait(60)
        return plan_inputs(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(optimized, "plan_inputs", slow)
    plan._programs.popitem()  # of 9
    for _ in range(PATIENCE - 1):
        plan.admission.tell(plan._key([rows(9)], plan._example[1]), 1.0)  # type: ignore[index]
    thread = threading.Thread(target=lambda: plan(rows(9)))
    plan._simple = {}
    thread.start()
    assert begun.wait(60)
    check(plan, model, rows(11))
    check(plan, model, rows(9))
    may_end.set()
    thread.join()


def test_a_shape_that_cannot_be_planned_is_answered_by_the_model(made: list[int]) -> None:
    """Beyond 5 rows, the model asks for values."""

    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] > 5 and float(x.sum()) > 1e9:
                return x
            return x + 1

    model = Branches().eval()
    plan = bt.optimize(model, rows(1))
    for _ in range(3 * PATIENCE):
        check(plan, model, rows(8))
    assert made == [1, 8]


def counting(change: Callable[[nn.Module], None]) -> nn.Module:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.seen, self.linear = 0, [], nn.Linear(6, 6)
            self.register_buffer("table", torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x) + self.calls + len(self.seen)
            if x.shape[0] > 1:
                change(self)
            return y + self.table.shape[0]

    return Counts().eval()


def one_more(model: nn.Module) -> None:
    model.calls += 1  # type: ignore[operator]


def grow(model: nn.Module) -> None:
    model.table = torch.ones(9)


@pytest.mark.parametrize("change", [one_more, grow, lambda model: model.seen.append(1)])
def test_models_that_change_their_attributes_begin_anew_in_each_call(
    change: Callable[[nn.Module], None],
) -> None:
    model = counting(change)
    plan = bt.optimize(model, rows(1))
    with torch.no_grad():
        right = twin.twin_of(model)(rows(8))
        for _ in range(3):
            torch.testing.assert_close(plan(rows(8)), right)
    assert model.calls == 0
    assert not model.seen
    assert model.table.shape == (2,)


def test_the_model_answers_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).eval()
    plan = bt.optimize(model, rows(1))
    x = rows(8)
    right = plan(x)
    model.train()
    assert torch.equal(plan(x), right)
    model.eval()
    with pytest.raises(TorchError, match="requires a gradient"):
        plan(x.requires_grad_())
    assert not plan(x.detach()).requires_grad
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(TorchError, match="changed"):
        plan(rows(9))


def test_a_model_in_training_mode_does_not_answer() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)).eval()
    plan = bt.optimize(model, rows(1))
    model.train()
    with pytest.raises(TorchError, match="training mode"):
        plan(rows(8))


def test_errors_from_outside_pass_through() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 8 and not isinstance(x, torch._subclasses.FakeTensor):
                raise TimeoutError("of a signal handler")
            return x + 1

    plan = bt.optimize(Interrupted().eval(), rows(1))
    for _ in range(2 * PATIENCE):
        with pytest.raises(TimeoutError):
            plan(rows(8))
    with pytest.raises(TorchError, match="does not run on float64"):
        bt.optimize(small(), rows(1))(rows(8).double())


def test_other_numbers_of_threads_are_bound_at_once(made: list[int]) -> None:
    model = small()
    plan = bt.optimize(model, rows(1))
    torch.set_num_threads(2)
    check(plan, model, rows(1))
    assert planned(plan) == [1, 1]
    assert made == [1]  # not traced again


def test_a_released_plan_keeps_its_shapes() -> None:
    model = small()
    plan = bt.optimize(model, rows(1)).prepare([(4, 6)])
    plan(rows(9))
    plan.release()
    check(plan, model, rows(4))
    with pytest.raises(TorchError, match="serves only inputs"):
        plan(rows(9))

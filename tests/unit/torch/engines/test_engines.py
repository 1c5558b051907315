"""Engines are measured in processes of their own, and the fastest right one answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import cast

import pytest
import torch
from engine_fakes import Changing, Net, Pooling, fake
from torch import nn

import bestof.torch as bt
from bestof.errors import BestofWarning, InvalidArgument, TorchError
from bestof.selection.store import close_default_store
from bestof.torch.engines import contest, table
from bestof.torch.engines.choice import EngineResult
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.error import error_of
from bestof.torch.plan import engine_model
from bestof.worker.process import WorkerProcess

ROWS = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BESTOF_STORE", str(tmp_path / "decisions.sqlite"))
    close_default_store()
    yield
    close_default_store()


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> object:
    def to(*engines: Engine) -> list[str]:
        monkeypatch.setattr(table, "ENGINES", engines)
        return [one.name for one in engines]

    return to


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replace the processes: the engines take 1, 2, 3 s. Return a list of those measured."""
    seen: list[tuple[str, ...]] = []

    def measure(_model, inputs, engines, _accuracy):
        seen.append(tuple(one.name for one in engines))
        results = [
            EngineResult(one.name, one.version, (float(place),), 0.0)
            for place, one in enumerate(engines, 1)
        ]
        return [tuple(results)] * len(inputs)

    monkeypatch.setattr(engine_model, "measure", measure)
    return seen


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def test_the_fastest_right_engine_answers_and_the_others_are_named(
    offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "PATIENCE", 6.0)
    names = offer(*map(fake, ("slow", "hangs", "crashes", "needs a file", "wrong", "right")))
    model = net()
    with pytest.warns(BestofWarning, match="left out") as warned:
        plan = bt.optimize(model, ROWS, engines=names)
    (choice,) = plan.choices
    assert choice.ranking == ("right", "slow")
    reasons = {one.engine: one.reason for one in choice.results}
    assert "was not ready when the 6 s" in reasons["hangs"]
    assert "ended with status -6" in reasons["crashes"]
    assert "No such file or directory: '/nowhere/model.bin'" in reasons["needs a file"]
    assert reasons["wrong"].startswith("wrong by 1.")
    assert "crashes: its process ended" in str(warned[0].message)
    got = plan(ROWS)
    assert got["label"] == "net"
    assert torch.equal(got["result"], model(ROWS)["result"].detach())
    told = str(plan.explain())
    assert told.splitlines()[0].endswith(": right")
    assert "out: FileNotFoundError" in told


def test_engines_that_wait_for_a_processor_have_longer() -> None:
    class Starved:
        lost = 30.0

        def send(self, _order: str, **_: object) -> None:
            pass

        def receive(self, _order: str, _patience: float, crowded: float) -> float:
            return crowded

    class Late(Starved):
        lost = 1e9  # of an order that came before

    crowded = contest._Contestant(fake("right"), cast(WorkerProcess, Starved()))
    late = contest._Contestant(fake("slow"), cast(WorkerProcess, Late()), failed="it crashed")
    assert contest._build([crowded, late], 0, monotonic() + 100.0) == 30.0
    assert crowded.builds == {0: 2 * contest.PATIENCE}


def test_a_second_run_measures_nothing_unless_an_engine_is_new(offer, timed) -> None:
    names = offer(fake("right"), fake("slow"))
    bt.optimize(net(), ROWS, engines=names)
    close_default_store()  # as another process finds it
    plan = bt.optimize(net(), ROWS, engines="installed")
    assert plan.choices[0].engine == "right"
    assert plan.choices[0].stored
    assert bt.optimize(net(), ROWS, engines=["slow"]).choices[0].engine == "slow"
    assert len(timed) == 1
    bt.optimize(net(), ROWS.repeat(2, 1), engines=names)
    bt.optimize(net().float(), ROWS, engines=names, accuracy="relaxed")
    assert len(timed) == 3
    offer(*table.ENGINES, fake("also right"))
    bt.optimize(net(), ROWS, engines="installed")
    assert timed[3:] == [("right", "slow", "also right")]


def test_a_plan_that_was_chosen_earlier_is_made_without_a_contest(offer, timed) -> None:
    names = offer(Engine("plan", "bestof.torch.plan.engine"), fake("right"))
    model = net()
    for _ in range(2):
        plan = bt.optimize(model, ROWS, engines=names)
        assert plan.choices[0].engine == "plan"
        assert "linear" in str(plan.explain())  # a step
        torch.testing.assert_close(plan(ROWS)["result"], model(ROWS)["result"].detach())
    assert len(timed) == 1


def test_a_choice_for_other_weights_that_is_wrong_for_these_is_made_again(offer, timed) -> None:
    names = offer(fake("wrong"), fake("right"))
    with pytest.warns(BestofWarning, match="wrong, the fastest .* cannot be used"):
        bt.optimize(net(), ROWS, engines=names)
    close_default_store()
    assert bt.optimize(net(), ROWS, engines=names).choices[0].engine == "right"
    assert len(timed) == 1


def test_shapes_have_their_own_winners(offer) -> None:
    names = offer(fake("for two", slow_batch=4), fake("for four", slow_batch=2))
    model = net()
    plan = bt.optimize(model, ROWS[:2], engines=names)
    assert plan.prepare([(4, 8)]) is plan
    assert [one.engine for one in plan.choices] == ["for two", "for four"]
    for batch in (1, 2, 3, 4):  # those that were not measured too
        rows = torch.randn(batch, 8)
        assert torch.equal(plan(rows)["result"], model(rows)["result"].detach())
    with pytest.raises(TorchError, match="does not run on"):
        plan(torch.randn(2, 9))


def test_a_model_that_changes_its_inputs_is_answered_by_the_plan(offer) -> None:
    offer(fake("right"))
    with pytest.warns(BestofWarning, match="cannot be compared: the model changes its inputs"):
        plan = bt.optimize(Changing().eval(), ROWS.clone(), engines="installed")
    rows = ROWS.clone()
    plan(rows)
    assert torch.equal(rows, ROWS + 1)
    assert plan.choices[0].engine == "plan"


@pytest.mark.long
def test_a_model_that_no_process_can_import_is_exported(offer) -> None:
    class Local(Net):
        pass

    names = offer(fake("right"))
    model = Local().eval()
    plan = bt.optimize(model, ROWS, engines=names)
    assert plan.choices[0].engine == "right"
    assert torch.equal(plan(ROWS)["result"], model(ROWS)["result"].detach())


def test_a_model_that_cannot_travel_is_answered_by_the_plan(offer) -> None:
    class Local(nn.Module):
        def forward(self, rows):
            return rows.relu() if rows.sum() > 0 else rows

    names = offer(fake("right"))
    with (
        pytest.warns(BestofWarning, match="can neither be pickled nor exported"),
        pytest.raises(TorchError),  # nor can it be planned
    ):
        bt.optimize(Local().eval(), ROWS, engines=names)


def test_the_model_behaves_as_a_plan(offer, timed) -> None:
    names = offer(fake("right"))
    model = net()
    scale = torch.full((4,), 2.0)
    plan = bt.optimize(model, ROWS, {"scale": scale}, engines=names)
    assert torch.equal(plan(ROWS, scale=scale)["result"], model(ROWS)["result"].detach() * 2)
    assert not list(plan.parameters())
    twin = copy.deepcopy(plan)
    assert torch.equal(twin(ROWS, scale=scale)["result"], plan(ROWS, scale=scale)["result"])
    assert "by right" in repr(twin)
    with pytest.raises(TorchError, match="engines"):
        plan.save("/nowhere/plan")
    with pytest.raises(TorchError, match="no backward pass"):
        plan(ROWS.clone().requires_grad_(), scale=scale)
    with torch.no_grad():
        model.dense.weight.mul_(2)
    with pytest.raises(TorchError, match="was changed"):
        plan(ROWS, scale=scale)


def test_padded_lengths_go_to_the_engine_of_their_length(offer, timed) -> None:
    names = offer(fake("right"))
    model = Pooling().eval()
    lengths = bt.Lengths(16, pad={0: 0.0}, step=8)
    plan = bt.optimize(model, ROWS, engines=names, lengths=lengths).prepare()
    assert len(plan.choices) == 2
    for length in (3, 8, 9, 16, 17):
        rows = torch.randn(2, length)
        torch.testing.assert_close(plan(rows), model(rows))
    assert plan.prepare() is plan
    assert len(timed) == 2  # the example, then the other length


def test_a_released_model_answers_its_shapes_only(offer, timed) -> None:
    model = net()
    right = model(ROWS)["result"].detach()
    plan = bt.optimize(model, ROWS, engines=offer(fake("right"))).release()
    assert torch.equal(plan(ROWS)["result"], right)
    with pytest.raises(TorchError, match="loaded or released"):
        plan(ROWS[:2])


def test_another_number_of_threads_is_not_what_was_measured(offer, timed) -> None:
    model = net()
    plan = bt.optimize(model, ROWS, engines=offer(fake("right")))
    for answer in plan._answers.values():
        answer._call = None
    with pytest.raises(TypeError):
        plan(ROWS)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert torch.equal(plan(ROWS)["result"], model(ROWS)["result"].detach())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"engines": "all"}, "expected 'installed', or a list of plan, eager"),
        ({"engines": []}, "expected 'installed'"),
        ({"engines": ["tensorrt"]}, "no engine 'tensorrt'; the engines are plan, eager"),
        ({"engines": ["plan"], "accuracy": "exact"}, "other bits"),
        ({"engines": ["plan"], "tune": False}, "measured times"),
        ({"engines": ["plan"], "memory": "eager"}, "measured times"),
    ],
)
def test_wrong_arguments_get_one_error(arguments: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        bt.optimize(net(), ROWS, **arguments)


def test_an_engine_that_is_not_installed_is_refused(offer) -> None:
    offer(Engine("far", "far.away", ("no_such_package",)))
    with pytest.raises(InvalidArgument, match="far needs no_such_package"):
        bt.optimize(net(), ROWS, engines=["far"])


def test_errors_of_other_shapes_other_nans_and_other_integers_are_infinite() -> None:
    inf, nan = float("inf"), float("nan")
    right = torch.tensor([3.0, -4.0, nan, inf])
    assert error_of([right], [right]) == 0.0
    assert error_of([right + torch.tensor([0.0, 1.0, 0.0, 0.0])], [right]) == 1 / 12.5**0.5
    for other in ([3.0, -4.0, nan, -inf], [3.0, -4.0, 0.0, inf], [3.0, nan, nan, inf], [3.0, -4.0]):
        assert error_of([torch.tensor(other)], [right]) == inf
    assert error_of([], [right]) == inf
    assert error_of([torch.tensor([1])], [torch.tensor([2])]) == inf

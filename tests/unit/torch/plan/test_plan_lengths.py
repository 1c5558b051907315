"""Plans of few lengths serve inputs of any length."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import InvalidArgument, TorchError
from bestof.torch.plan import admission

MOST = 40
LENGTHS = bt.Lengths(MOST, {"ids": 0, "mask": 0})


class Encoder(nn.Module):
    """Texts: the states of all tokens, and the first one's scores."""

    def __init__(self, is_masked: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.is_masked = is_masked

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = mask == 0 if self.is_masked else None
        states = self.layer(self.table(ids), src_key_padding_mask=hidden)
        return {"states": states, "scores": self.head(states[:, 0])}


def text(length: int, texts: int = 2) -> dict[str, Tensor]:
    ids = torch.randint(1, 50, (texts, length), generator=torch.Generator().manual_seed(length))
    return {"ids": ids, "mask": torch.ones_like(ids)}


def planned(plan: bt.OptimizedModel) -> list[int]:
    return sorted({one.leaves[0].shape[1] for one in plan._programs.values()})


@pytest.fixture(scope="module")
def pair() -> tuple[Encoder, bt.OptimizedModel]:
    model = Encoder().eval()
    plan = bt.optimize(model, (), text(11), lengths=LENGTHS, tune=False)
    return model, plan.prepare()


@pytest.mark.parametrize("length", [1, 7, 8, 9, 33, 40])
@pytest.mark.parametrize("texts", [1, 2])
def test_each_length_has_the_results_of_the_model(
    pair: tuple[Encoder, bt.OptimizedModel], length: int, texts: int
) -> None:
    model, plan = pair
    given = text(length, texts)
    with torch.no_grad():
        right, got = model(**given), plan(**given)
    assert got.keys() == right.keys()
    for name in right:
        assert got[name].shape == right[name].shape
        assert got[name].is_contiguous()
        assert torch.allclose(got[name], right[name], rtol=1e-4, atol=1e-5), name


def test_all_lengths_are_served_by_the_planned_ones(
    pair: tuple[Encoder, bt.OptimizedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model itself never answers."""
    _, plan = pair
    assert planned(plan) == [8, 16, 24, 32, 40] == list(LENGTHS.planned)
    monkeypatch.setattr(plan, "_by_model", None)
    for length in range(1, MOST + 1):
        assert plan(**text(length))["states"].shape == (2, length, 16)


def test_longer_inputs_are_met_as_other_shapes(pair: tuple[Encoder, bt.OptimizedModel]) -> None:
    model, plan = pair
    given = text(MOST + 5)
    assert torch.allclose(plan(**given)["states"], model(**given)["states"], atol=1e-5)


def test_a_length_that_is_not_planned_is_answered_unpadded_and_planned_when_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Encoder().eval()
    plan = bt.optimize(model, (), text(5), lengths=LENGTHS, tune=False)
    monkeypatch.setattr(admission, "MEETINGS", 4)  # as in a program
    monkeypatch.setattr(admission, "PATIENCE", 16)
    by_model, seen = plan._by_model, list[int]()

    def noted(args: Any, kwargs: Any, leaves: Any, spec: Any) -> Any:
        seen.append(kwargs["ids"].shape[1])
        return by_model(args, kwargs, leaves, spec)

    monkeypatch.setattr(plan, "_by_model", noted)
    for call in range(40):
        length = 9 + call % 8
        right = model(**text(length))["states"]
        assert torch.allclose(plan(**text(length))["states"], right, atol=1e-5)
    assert planned(plan) == [8, 16]
    assert seen == [9 + call % 8 for call in range(len(seen))]
    assert 4 <= len(seen) <= 16


@pytest.mark.parametrize("again", [deepcopy, "file"])
def test_copies_and_files_pad_too(
    pair: tuple[Encoder, bt.OptimizedModel], again: Any, tmp_path: Path
) -> None:
    _, plan = pair
    if again == "file":
        plan.save(tmp_path / "plan")
        other = bt.load(tmp_path / "plan")
    else:
        other = again(plan)
    for length in (3, 24, 39):
        assert torch.equal(other(**text(length))["states"], plan(**text(length))["states"])


def test_places_name_positional_arguments_and_the_batch_is_a_length_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    images = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    lengths = bt.Lengths(6, {0: 0.0}, axis=0, step=3)
    plan = bt.optimize(model, images[:5], lengths=lengths, tune=False)
    plan.prepare()
    assert [one.leaves[0].shape[0] for one in plan._programs.values()] == [6, 3]
    for count in range(1, 7):
        assert torch.allclose(plan(images[:count]), model(images[:count]), atol=1e-5)
        assert plan(images[:count]).shape == (count, 5)


def test_explain_tells_of_the_padded_call(pair: tuple[Encoder, bt.OptimizedModel]) -> None:
    _, plan = pair
    before = planned(plan)
    assert plan.explain(**text(13), repeats=1).steps
    assert planned(plan) == before


def test_padding_that_changes_results_is_refused() -> None:
    with pytest.raises(TorchError, match=r"result 0 for 11 padded to 16 differs.*give the model a"):
        bt.optimize(Encoder(is_masked=False).eval(), (), text(11), lengths=LENGTHS)


class Other(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda x: torch.cat([x, x], 1), r"result 0 has the shape \(2, 22\) for the length 11"),
        (lambda x: x.add_(1), "the model changes its inputs"),
        (lambda x: (x,) if x.shape[1] < 16 else (x, x), "returns 1 values, or 2 if padded"),
    ],
)
def test_results_that_cannot_be_cut_are_refused(
    function: Callable[[Tensor], Any], complaint: str
) -> None:
    lengths = bt.Lengths(MOST, {0: 0})
    x = torch.ones(2, 11)
    with pytest.raises(TorchError, match=complaint):
        bt.optimize(Other(function).eval(), x, lengths=lengths)
    assert bool((x == 1).all())


def test_inputs_of_several_lengths_are_refused(pair: tuple[Encoder, bt.OptimizedModel]) -> None:
    _, plan = pair
    with pytest.raises(TorchError, match="must have one length; ids has 5, mask has 6"):
        plan(ids=text(5)["ids"], mask=text(6)["mask"])
    with pytest.raises(TorchError, match=r"mask: lengths pad axis 1 of a tensor; got NoneType"):
        plan(ids=text(5)["ids"])
    with pytest.raises(TorchError, match=r"ids: lengths pad axis 1 of a tensor; got \(5,\)"):
        plan(ids=torch.ones(5, dtype=torch.long), mask=text(5)["mask"])


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"most": 1}, "most: expected a whole number of at least 2; got 1"),
        ({"pad": {}}, "pad: expected the number for each padded argument"),
        ({"pad": {-1: 0}}, "pad: expected places or names of arguments; got -1"),
        ({"pad": {"ids": None}}, "pad: expected a number for 'ids'; got None"),
        ({"axis": -1}, "axis: expected a whole number of at least 0; got -1"),
        ({"step": 1}, "step: expected a whole number of at least 2; got 1"),
    ],
)
def test_lengths_are_checked(how: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        bt.Lengths(**{"most": 8, "pad": {"ids": 0}, **how})


def test_arguments_of_optimize_are_checked(pair: tuple[Encoder, bt.OptimizedModel]) -> None:
    model = Encoder().eval()
    for how, complaint in (
        ({"lengths": 512}, "lengths: expected bt.Lengths or None; got int"),
        ({"lengths": LENGTHS, "accuracy": "exact"}, "lengths need another accuracy than 'exact'"),
        ({"lengths": bt.Lengths(8, LENGTHS.pad)}, "the example has the length 11; expected 1 to 8"),
    ):
        with pytest.raises(InvalidArgument, match=complaint):
            bt.optimize(model, (), text(11), **how)  # type: ignore[arg-type]  # on purpose
    plain = bt.optimize(model, (), text(8), tune=False)
    with pytest.raises(InvalidArgument, match="the plan was made without lengths"):
        plain.prepare()


def test_a_changed_file_is_refused(pair: tuple[Encoder, bt.OptimizedModel]) -> None:
    _, plan = pair
    file = io.BytesIO()
    assert plan.padding is not None
    padding, plan.padding = plan.padding, plan.padding._replace(axes=((1,),))
    try:
        plan.save(file)
    finally:
        plan.padding = padding
    file.seek(0)
    with pytest.raises(TorchError, match="the results that are cut are not those of the plan"):
        bt.load(file)

"""Which loaders are tuned, and how bestof's methods of `DataLoader` work beside other libraries."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from bestof.torch.process.data_loading import epoch
from bestof.torch.process.data_loading.interception import _State, arm, follow, tunings
from bestof.torch.process.data_loading.tuning import Bounds

sys.path.insert(0, str(Path(__file__).parent))

from loaders import Numbers, Stream


@pytest.fixture(autouse=True)
def nothing_followed() -> Iterator[None]:
    yield
    follow(None)
    for one in list(_State.loaders):
        del _State.loaders[one]
    _State.finished.clear()


def test_loaders_made_while_it_follows_are_tuned_and_no_others() -> None:
    before = DataLoader(Numbers(), 4)
    follow(Bounds())
    while_on, stream = DataLoader(Numbers(), 4), DataLoader(Stream(), 4)
    assert len(tunings()) == 1
    assert type(iter(while_on)) is epoch.Epoch
    assert type(iter(before)).__name__ == type(iter(stream)).__name__
    follow(None)
    assert not tunings()
    assert type(iter(while_on)).__name__ == "_SingleProcessDataLoaderIter"
    assert DataLoader.__iter__.__module__.startswith("torch")


def test_methods_of_other_libraries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs, calls = DataLoader.__init__, []

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        calls.append("made")
        torchs(self, *arguments, **options)

    monkeypatch.setattr(DataLoader, "__init__", init)
    follow(None)
    assert DataLoader.__init__ is init
    follow(Bounds())
    DataLoader(Numbers(), 4)
    assert calls == ["made"]
    follow(None)
    assert DataLoader.__init__ is init


def test_a_method_that_was_put_over_bestofs_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    follow(Bounds())
    bestofs = DataLoader.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        bestofs(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(DataLoader, "__init__", init)
        follow(None)
        assert DataLoader.__init__ is init
        DataLoader(Numbers(), 4)
        assert not tunings()
        follow(Bounds())
        loader = DataLoader(Numbers(), 4)
        assert len(tunings()) == 1
        assert [int(x) for batch in loader for x in batch] == list(range(300))
    follow(None)
    assert DataLoader.__init__.__module__.startswith("torch")


def test_the_signature_of_a_loader_is_torchs() -> None:
    before = inspect.signature(DataLoader.__init__)
    follow(Bounds())
    assert inspect.signature(DataLoader.__init__) == before


class OwnIterator(DataLoader[Any]):
    """Asks no sampler."""

    def _get_iterator(self) -> Any:
        return iter([1, 2, 3])


def test_a_loader_with_an_iterator_of_its_own_is_left() -> None:
    loader = OwnIterator(Numbers(), 4)
    found = arm(loader, Bounds())
    assert [list(loader), list(loader)] == [[1, 2, 3]] * 2
    assert found.reason == "its iterator does not use its sampler"


@pytest.mark.long
def test_a_loader_that_ends_with_the_program_is_reported() -> None:
    program = """
import atexit, gc, weakref
def report():
    gc.collect()
    print(*data_loading_lines())
atexit.register(report)  # as `bestof run` does: before the program imports torch
import torch
from torch.utils.data import DataLoader, TensorDataset
from bestof.torch.process.data_loading.interception import data_loading_lines, follow
from bestof.torch.process.data_loading.tuning import Bounds
follow(Bounds())
gc.disable()
loader = DataLoader(TensorDataset(torch.zeros(8, 1)))
weakref.finalize(loader, int)  # its exit function runs before the report, and ends all others
for batch in loader:
    pass
loader.itself = loader
del loader, batch
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "loader TensorDataset: " in done.stdout, done.stderr

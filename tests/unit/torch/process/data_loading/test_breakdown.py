"""The shares of a batch's time, on real JPEG files."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

sys.path.insert(0, str(Path(__file__).parent))

from event_clock import EventClock
from photographs import Photographs, encoded, write

from bestof.torch.process.data_loading import breakdown as breakdown_module
from bestof.torch.process.data_loading import decoders
from bestof.torch.process.data_loading.breakdown import STAGES, Breakdown, profiled
from bestof.torch.process.data_loading.decoders import Decoder, faster_decoder

CLOCK = EventClock()


@pytest.fixture(autouse=True)
def events_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (breakdown_module, decoders):
        monkeypatch.setattr(module, "perf_counter", CLOCK)


def slow_collate(batch: list[Any]) -> Any:
    CLOCK.seconds += 1e6
    return default_collate(batch)


def broken_down(loader: DataLoader[Any]) -> Breakdown:
    batches = iter(loader)
    next(batches)
    with profiled(loader.collate_fn) as breakdown:
        next(batches)
    found = breakdown()
    assert found is not None
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert list(found.shares) == list(STAGES)
    return found


def test_decoding_photographs_is_seen(tmp_path: Path) -> None:
    found = broken_down(DataLoader(Photographs(write(tmp_path, 32), transform=0), 16))
    # Pillow decodes in 64 KiB pieces, with three events or more for each.
    assert found.shares["decode"] > 0.2
    assert found.shares["read"] > 0
    assert found.image in encoded()


def test_transforming_and_collating_are_distinguished(tmp_path: Path) -> None:
    paths = write(tmp_path, 16)

    class Transformed(Photographs):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            found = super().__getitem__(index)
            CLOCK.seconds += 1e6
            return found

    found = broken_down(DataLoader(Transformed(paths), 8))
    assert found.shares["transform"] > 0.9
    for collate in (slow_collate, partial(slow_collate)):
        found = broken_down(DataLoader(Photographs(paths), 2, collate_fn=collate))
        assert found.shares["collate"] > 0.9
    assert "collate" in str(found)


class SlowFile(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        CLOCK.seconds += 1e6
        return 0


def test_what_was_read_counts_as_read(tmp_path: Path) -> None:
    class Blobs(Photographs):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            io.BufferedReader(SlowFile()).read()
            return torch.zeros(1), index

    found = broken_down(DataLoader(Blobs(write(tmp_path, 8)), 4))
    assert found.shares["read"] > 0.9


def test_a_profiler_of_the_program_is_left_in_place() -> None:
    events: list[str] = []

    def watch(*event: Any) -> None:
        events.append(event[1])

    sys.setprofile(watch)
    try:
        with profiled(default_collate) as breakdown:
            len("")
        assert breakdown() is None
        assert sys.getprofile() is watch
    finally:
        sys.setprofile(None)


def test_simplejpeg_is_named_only_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("simplejpeg")
    (image, *_) = encoded(512)
    assert module.decode_jpeg(image).shape == (512, 512, 3)
    table = tuple(one for one in decoders.DECODERS if one.module == "simplejpeg")
    for seconds, speedup in ((0.0, None), (1e3, 1e6)):
        monkeypatch.setattr(decoders, "_by_pillow", partial(taking(seconds), None))
        found = faster_decoder(image, table)
        if speedup is None:
            assert found is None
        else:
            assert found is not None
            assert found.call == "simplejpeg.decode_jpeg"
            assert found.speedup == pytest.approx(speedup, rel=1e-3)


def taking(seconds: float) -> Callable[[Any, bytes], object]:
    def decode(module: Any, encoded: bytes) -> object:
        CLOCK.seconds += seconds
        return None

    return decode


def test_the_fastest_decoder_wins_and_broken_ones_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(module: Any, encoded: bytes) -> object:
        raise ValueError("no JPEG")

    monkeypatch.setattr(decoders, "_by_pillow", partial(taking(100.0), None))
    table = (
        Decoder("json", "json.slow", taking(81.0)),
        Decoder("math", "math.fast", taking(50.0)),
        Decoder("random", "random.less_fast", taking(79.0)),
        Decoder("string", "string.refuses", refuse),
        Decoder("no_such_module", "no_such_module.decode", taking(1.0)),
    )
    found = faster_decoder(b"", table)
    assert found is not None
    assert found.call == "math.fast"
    assert found.speedup == pytest.approx(2.0, rel=1e-3)
    assert faster_decoder(b"", table[:1] + table[3:]) is None

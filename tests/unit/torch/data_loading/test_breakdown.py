"""The shares of a batch's time, on real JPEG files."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

sys.path.insert(0, str(Path(__file__).parent))

from photographs import Photographs, encoded, write

from bestof.torch.data_loading.breakdown import STAGES, Breakdown, profiled
from bestof.torch.data_loading.decoders import Decoder, faster_decoder


def slow_collate(batch: list[Any]) -> Any:
    busy(0.2)
    return default_collate(batch)


def busy(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


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
    # It is two thirds where nothing else runs on the machine.
    assert found.shares["decode"] > 0.2
    assert found.shares["read"] > 0
    assert found.image in encoded()


def test_transforming_and_collating_are_distinguished(tmp_path: Path) -> None:
    paths = write(tmp_path, 16)
    found = broken_down(DataLoader(Photographs(paths, transform=80), 8))
    assert max(found.shares, key=found.shares.__getitem__) == "transform"
    for collate in (slow_collate, partial(slow_collate)):
        found = broken_down(DataLoader(Photographs(paths), 2, collate_fn=collate))
        assert max(found.shares, key=found.shares.__getitem__) == "collate"
    assert "collate" in str(found)


def test_what_was_read_counts_as_read(tmp_path: Path) -> None:
    paths = write(tmp_path, 8)
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(40_000_000))

    class Blobs(Photographs):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            with blob.open("rb", buffering=0) as file:
                file.read()
            return torch.zeros(1), index

    found = broken_down(DataLoader(Blobs(paths), 4))
    assert max(found.shares, key=found.shares.__getitem__) == "read"


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


def test_simplejpeg_is_named_only_where_it_is_measured_faster() -> None:
    module = pytest.importorskip("simplejpeg")
    (image, *_) = encoded(512)
    assert module.decode_jpeg(image).shape == (512, 512, 3)
    found = faster_decoder(image)
    assert found is None or (found.call == "simplejpeg.decode_jpeg" and found.speedup >= 1.25)


@pytest.mark.long
def test_the_fastest_decoder_wins_and_broken_ones_are_passed_over() -> None:
    def refuse(module: Any, encoded: bytes) -> object:
        raise ValueError("no JPEG")

    table = (
        Decoder("json", "json.slow", lambda module, encoded: busy(0.3)),
        Decoder("math", "math.instant", lambda module, encoded: None),
        Decoder("string", "string.refuses", refuse),
        Decoder("no_such_module", "no_such_module.decode", lambda module, encoded: None),
    )
    found = faster_decoder(encoded()[0], table)
    assert found is not None
    assert found.call == "math.instant"
    assert faster_decoder(encoded()[0], table[:1] + table[2:]) is None

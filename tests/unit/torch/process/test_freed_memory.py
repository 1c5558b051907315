"""The settings of the C library's allocator, seen by a fake library."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import bestof.torch as integration
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.ops.comparison import Finding
from bestof.torch.process import freed_memory
from bestof.torch.process.freed_memory import (
    LARGE_BYTES,
    hand_back_freed,
    is_set,
    keep_freed,
    mapping_large,
)
from bestof.torch.rows.row_verifier import RowVerifier

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # glibc's malloc.h
KEEPS = [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)]
HANDS_BACK = [
    (M_MMAP_MAX, 65536),
    (M_MMAP_THRESHOLD, 32 << 20),
    (M_TRIM_THRESHOLD, 64 << 20),
    "trim",
]
MAPS = [(M_MMAP_MAX, 65536), (M_MMAP_THRESHOLD, LARGE_BYTES), "trim"]
MAPS_NO_MORE = [(M_MMAP_MAX, 0)]
LEFT = {"memory": {"keep_freed": False}}


class Library:
    """It hears, and refuses the settings that it was told to."""

    def __init__(self, *refused: int) -> None:
        self.refused, self.heard = refused, list[Any]()

    def mallopt(self, parameter: int, value: int) -> int:
        if parameter in self.refused:
            return 0
        self.heard.append((parameter, value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        assert pad == 0
        self.heard.append("trim")
        return 1

    def omp_set_num_threads(self, threads: int) -> None:
        """OpenMP's: the first `enable` of a process asks for one thread."""


class Glibc(Library):
    malloc_usable_size = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: None)

    def gnu_get_libc_version(self) -> bytes:
        return b"2.36"


def use(monkeypatch: pytest.MonkeyPatch, library: Library) -> list[Any]:
    """What it hears from now on; the platform is Linux, and the environment says nothing."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    for name in [
        name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"
    ]:
        monkeypatch.delenv(name)
    return library.heard


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return use(monkeypatch, Glibc())


def test_enabling_twice_keeps_once_and_disabling_twice_hands_back_once(heard: list[Any]) -> None:
    integration.enable()
    integration.enable()
    assert heard == KEEPS
    integration.disable()
    integration.disable()
    assert heard == [*KEEPS, *HANDS_BACK]
    integration.enable()
    assert heard == [*KEEPS, *HANDS_BACK, *KEEPS]


def test_blocks_leave_the_allocator_as_it_is(heard: list[Any]) -> None:
    with integration.enabled(), integration.enabled():
        pass
    assert heard == []
    integration.enable()
    with integration.enabled(LEFT), integration.enabled():
        pass
    assert heard == KEEPS


def test_enable_and_disable_inside_a_block_keep_and_hand_back(heard: list[Any]) -> None:
    with integration.enabled():
        integration.enable()
        assert heard == KEEPS
    assert heard == KEEPS
    with integration.enabled():
        integration.disable()
        assert heard == [*KEEPS, *HANDS_BACK]


def test_another_configuration_hands_back(heard: list[Any]) -> None:
    integration.enable()
    integration.set_config(LEFT)
    assert heard == [*KEEPS, *HANDS_BACK]
    integration.set_config({"kernel": {"accuracy": "exact"}})
    integration.set_config({"kernel": {"enable": False}})
    assert heard == [*KEEPS, *HANDS_BACK] * 2


def test_enabling_that_fails_hands_back(heard: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    integration.enable()
    override = convolution_override()
    assert override is not None
    monkeypatch.setattr(
        type(override), "configure", lambda *_: (_ for _ in ()).throw(KeyError("mine"))
    )
    with pytest.raises(KeyError):
        integration.enable()
    assert heard == [*KEEPS, *HANDS_BACK]


def test_a_library_that_refuses_the_first_setting_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = use(monkeypatch, Glibc(M_MMAP_MAX))
    integration.enable()
    integration.disable()
    assert heard == []


def test_a_library_that_refuses_the_second_gets_the_first_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = use(monkeypatch, Glibc(M_TRIM_THRESHOLD))
    integration.enable()
    assert heard[0] == KEEPS[0]
    assert HANDS_BACK[0] in heard[1:]
    told = len(heard)
    integration.disable()
    assert len(heard) == told


def test_another_c_library_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = use(monkeypatch, Library())
    integration.enable()
    integration.disable()
    assert heard == []


def test_glibc_hears_nothing_where_another_malloc_is_preloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Preloaded(Glibc):
        malloc_usable_size = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: None)

    found, glibc = Preloaded(), Glibc()
    use(monkeypatch, found)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: glibc if name == "libc.so.6" else found)
    integration.enable()
    assert not integration.summary().keeps_freed
    integration.disable()
    assert found.heard == glibc.heard == []


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the system has no Python")
def test_glibc_is_found_by_the_pythons_of_systems() -> None:
    """Debian's lies at a fixed address, and has an entry of its own by the name of malloc."""
    asks = f"import runpy; print(runpy.run_path({freed_memory.__file__!r})['_glibc']() is not None)"
    own, systems = (
        subprocess.run([python, "-c", asks], capture_output=True, text=True, check=True).stdout
        for python in (sys.executable, "/usr/bin/python3")
    )
    assert own == systems


def test_another_system_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = use(monkeypatch, Glibc())
    monkeypatch.setattr(sys, "platform", "darwin")
    integration.enable()
    integration.disable()
    assert heard == []


def test_large_blocks_are_mapped_singly_until_the_last_of_several_is_left(
    heard: list[Any],
) -> None:
    integration.enable()
    with suppress(KeyError), mapping_large():
        assert heard == [*KEEPS, *MAPS]
        with mapping_large():
            pass
        assert heard == [*KEEPS, *MAPS, *MAPS]
        raise KeyError
    assert heard == [*KEEPS, *MAPS, *MAPS, *MAPS_NO_MORE]


def test_memory_that_is_not_kept_is_not_kept_afterwards(heard: list[Any]) -> None:
    with mapping_large():
        assert heard == []
    integration.enable()
    with mapping_large():
        integration.disable()
    with mapping_large():
        pass
    assert heard == [*KEEPS, *MAPS, *HANDS_BACK]


def test_large_operands_of_a_comparison_are_mapped_singly(heard: list[Any]) -> None:
    for size, expected in ((64, []), (1024, [*MAPS, *MAPS_NO_MORE] * 2)):
        keep_freed()
        heard.clear()
        one = torch.zeros(1, 8, size, size)
        right = Doubled()
        verdict = right.judge("other", 0, (None, one), right.expect(0, (None, one)), one + one)
        assert verdict.wrong is None
        assert heard == expected
    hand_back_freed()


class Doubled(RowVerifier):
    """Twice its operand, by every row."""

    def __init__(self) -> None:
        super().__init__("first")

    def run(self, _alternative: str, _stage: int, args: tuple[Any, ...]) -> Any:
        return args[1] + args[1]

    def compare(
        self, _alternative: str, _stage: int, _args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        return Finding(None if torch.equal(expected, got) else "differs")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_MAX_", "7"),
        ("MALLOC_MMAP_THRESHOLD_", "131072"),
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=7:glibc.malloc.trim_threshold=131072"),
    ],
)
def test_settings_of_the_user_stay(
    heard: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    integration.enable()
    integration.disable()
    assert heard == []


def test_other_settings_of_the_environment_are_not_in_the_way() -> None:
    assert not is_set({"MALLOC_ARENA_MAX": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})

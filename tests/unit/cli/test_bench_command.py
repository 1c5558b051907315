"""`bestof bench`: its table of benchmarks, and the tables of `bench dispatch`."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from bestof.bench.call_time import CallTime
from bestof.bench.dispatch import DispatchTime
from bestof.cli import bench_dispatch, main
from bestof.cli.bench import BENCHES

ROWS = [
    DispatchTime("direct call", 61.4e-9, 1.2e-9, 70e-9),
    DispatchTime("trial", 2.5e-6, 0.0, 3e-6, 2e-6),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What `measure` was asked for; it answers ROWS."""
    calls: list[tuple[int, int]] = []

    def measure(repeats: int, calls_each: int) -> list[DispatchTime]:
        calls.append((repeats, calls_each))
        return ROWS

    monkeypatch.setattr(bench_dispatch, "measure", measure)
    return calls


def test_every_row_names_a_module_that_exists() -> None:
    assert BENCHES
    assert all(find_spec(bench.module) is not None for bench in BENCHES)


def test_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(bench.name in shown and bench.summary in shown for bench in BENCHES)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["--fly"],
        ["dispatch", "--fly"],
        ["dispatch", "--repeats", "x"],
        ["--", "dispatch"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2
    assert "usage: bestof bench" in capsys.readouterr().err


def test_too_few_repeats_end_with_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dispatch", "--repeats", "1"]) == 2
    assert (
        capsys.readouterr().err == "bestof: bench dispatch: repeats: expected at least 2; got 1\n"
    )


def test_json_is_in_seconds(
    asked: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "dispatch", "--json", "--repeats", "3", "--calls", "99"]) == 0
    assert asked == [(3, 99)]
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "direct call",
            "seconds": 61.4e-9,
            "spread": 1.2e-9,
            "threaded": 70e-9,
            "reach": None,
        },
        {"name": "trial", "seconds": 2.5e-6, "spread": 0.0, "threaded": 3e-6, "reach": 2e-6},
    ]


@pytest.mark.parametrize("rich", [True, False])
def test_the_table_is_in_nanoseconds(
    rich: bool,
    asked: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not rich:
        monkeypatch.setattr("bestof.view.bench.table.find_spec", lambda name: None)
    assert main(["bench", "dispatch"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["ns", "spread", "8", "threads", "reach"],
        ["direct", "call", "61", "±", "1", "70"],
        ["trial", "2,500", "±", "0", "3,000", "2,000"],
    ]


@pytest.mark.parametrize("rich", [True, False])
def test_the_cost_of_an_enabled_call_beside_the_reach(
    rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch_dispatch = pytest.importorskip("bestof.bench.torch_dispatch")
    rows = [CallTime("backward", 20e-6, 6.51e-6, 8.04e-6, 1.93e-6, 0.26e-6)]
    monkeypatch.setattr(
        torch_dispatch,
        "measure",
        lambda repeats, calls: rows if (repeats, calls) == (3, 40) else [],
    )
    if not rich:
        monkeypatch.setattr("bestof.view.bench.table.find_spec", lambda name: None)
    assert main(["bench", "dispatch", "--torch", "--repeats", "3", "--calls", "40"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        [
            "PyTorch",
            "us",
            "a",
            "Python",
            "pass",
            "in",
            "Python",
            "reach",
            "enabled",
            "spread",
            "reach",
        ],
        ["backward", "20.0", "6.5", "8.0", "10", "1.9", "±", "0.3", "2"],
    ]
    assert main(["bench", "dispatch", "--torch", "--repeats", "3", "--calls", "40", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["enabled"] == 1.93e-6

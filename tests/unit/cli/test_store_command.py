"""`bestof store` and `bestof report`, over a store in memory."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from bestof import selection
from bestof.cli import main
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore
from bestof.view import render

LONG = "x " + ", ".join(f"axis {i}" for i in range(40))
RECORDS = [
    Record(
        "conv",
        LONG,
        "here",
        "fast",
        (Evidence("slow", "1", (2.0, 2.0)), Evidence("fast", "1", (1.0,))),
        0.0,
    ),
    Record("sort", "n=3", "here", None, (), 0.0),
]
TRIED = (AlternativeReport("quick", "chosen", 1e-3, trials=1),)
REPORT = Report((SelectorReport("sort", 1, (ProblemReport("n=3", "quick", "stored", TRIED),)),))


class OpenStore(MemoryStore):
    """A store in memory that knows whether it was closed."""

    closed = False

    @property
    def url(self) -> str:
        return "fake:own"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    store = OpenStore()
    for record in RECORDS:
        store.save(record)
    monkeypatch.setattr(selection, "default_store", lambda: store)
    monkeypatch.setattr(selection, "open_store", lambda url: None if url == "off" else store)
    monkeypatch.setattr(selection, "store_report", lambda store: REPORT)
    return store


def test_show_prints_every_problem_whole(
    store: OpenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "show"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fake:own: 2 problems\n")
    for word in ("conv", "axis 39", "fast", "3", "sort", "n=3", "unsettled", "days"):
        assert word in out
    assert "…" not in out
    assert store.closed


def test_show_of_one_selector_as_json(store: OpenStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "show", "--selector", "conv", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (record,) = content["records"]
    assert content["pins"] == []
    assert (record["selector"], record["decision"]) == ("conv", "fast")
    assert record["evidence"][0]["samples"] == [2.0, 2.0]


def test_clear_asks_before_it_removes(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["store", "clear"]) == 2
    assert store.records() == RECORDS
    assert "--yes" in capsys.readouterr().err
    assert main(["store", "clear", "--selector", "sort", "--yes"]) == 0
    assert store.records() == RECORDS[:1]
    assert "removed 1 problem from" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, 0), ("n\n", 1, 2), ("", 1, 2)])
def test_clear_asks_at_a_terminal(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, left: int
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["store", "clear"]) == status
    assert len(store.records()) == left


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["store", "import", "nowhere.json"], 2, "nowhere.json"),
        (["store", "import", __file__], 1, "lock file"),
        (["store", "export", "no/where/at.all"], 2, "no/where/at.all"),
        (["store", "merge", "nowhere.json"], 2, "nowhere.json"),
        (["store", "merge", __file__], 1, "lock file"),
        (["store", "unpin", "conv"], 1, "has no pin for every problem, every host"),
        (["store", "explain", "nobody"], 1, "holds nothing on nobody"),
        (["store", "explain", "conv", "n=3"], 1, "holds nothing on conv, problem n=3"),
        (["store", "show", "--store", "off"], 1, "the store is off"),
        (["report", "--store", "off"], 1, "the store is off"),
        (["report", "nowhere.json"], 2, "nowhere.json"),
        (["report", __file__], 1, "is not a report"),
        (["report", "x.json", "--store", "fake:"], 2, "one of them"),
        (["report", "--html", "x.pdf"], 2, ".html"),
    ],
)
def test_an_impossible_order_is_one_line(
    store: OpenStore,
    arguments: list[str],
    status: int,
    word: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bestof: ")
    assert err.count("\n") == 1
    assert word in err


@pytest.mark.parametrize("form", [[], ["--all"], ["--tree"], ["--html", "page"]])
def test_a_report_that_nests_too_deeply_is_one_line(
    form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [
        {
            "problem": str(level),
            "decision": "a",
            "source": "measured",
            "alternatives": [
                {"name": "a", "status": "chosen", "children": [["s", str(level + 1)]]}
            ],
        }
        for level in range(3000)
    ]
    content = {"selectors": [{"selector": "s", "stages": 1, "problems": problems}]}
    (tmp_path / "deep.json").write_text(json.dumps(content))
    assert main(["report", str(tmp_path / "deep.json"), *form]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "more than 100 problems are nested" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["store"],
        ["store", "polish"],
        ["store", "import"],
        ["store", "merge"],
        ["store", "pin", "conv"],
        ["store", "unpin"],
        ["store", "explain"],
        ["report", "--json", "--html", "x.html"],
    ],
)
def test_wrong_usage_ends_with_2(store: OpenStore, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_report_of_the_store(
    store: OpenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report"]) == 0
    assert capsys.readouterr().out == render(REPORT) + "\n"
    assert main(["report", "--json"]) == 0
    assert capsys.readouterr().out == render(REPORT, "json") + "\n"
    assert main(["report", "--all"]) == 0
    assert capsys.readouterr().out == render(REPORT, whole=True) + "\n"
    page = tmp_path / "page.html"
    assert main(["report", "--html", str(page)]) == 0
    assert page.read_text() == render(REPORT, "html") + "\n"


def test_the_words_of_reports_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--explain-words"]) == 0
    assert "left out" in capsys.readouterr().out


def test_many_rows_are_cut_to_one_screen(many: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--store", many]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 40
    assert "… and 1,475 more" in shown


def test_a_page_without_an_ending_gets_one(
    store: OpenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--html", "demo"]) == 0
    assert (tmp_path / "demo.html").read_text() == render(REPORT, "html") + "\n"
    assert "demo.html" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["demo.html"]


def test_report_of_a_file(
    store: OpenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Report((SelectorReport("other", 1, REPORT.selectors[0].problems),))
    path = tmp_path / "saved.json"
    path.write_text(render(other, "json"))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out == render(other) + "\n"


@pytest.fixture
def many(tmp_path: Path) -> str:
    """The URL of a store with 1,500 problems of two selectors."""
    store = SqliteStore(tmp_path / "many.sqlite")
    evidence = (Evidence("a", "1", (1.0,)), Evidence("b", "1", (2.0,)))
    store.unite([Record(f"s{n % 2}", f"({n},)", "h", "a", evidence, 1.0) for n in range(1500)])
    store.close()
    return str(tmp_path / "many.sqlite")


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    "command", [["store", "show"], ["report", "--all"], ["store", "explain", "s0"]]
)
def test_tables_of_many_problems_are_cut_and_say_so(
    command: list[str], many: str, capsys: pytest.CaptureFixture[str]
) -> None:
    total = 750 if "explain" in command else 1500

    def shown(*more: str) -> str:
        assert main([*command, "--store", many, *more]) == 0
        return capsys.readouterr().out

    assert len(shown("--json").splitlines()) > total
    few = shown("--limit", "10")
    assert f"{total - 10} problems not shown; --limit 0 shows all" in few.replace(",", "")
    assert sum(f"({n},)" in few for n in range(1500)) == 10
    whole = shown("--limit", "0")
    assert "not shown" not in whole
    assert sum(f"({n},)" in whole for n in range(1500)) == total
    assert ("not shown" in shown()) == (total > 1000)
    assert main([*command, "--store", many, "--limit", "-1"]) == 2

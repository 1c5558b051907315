"""Warnings point at the user's line, and say what to do."""

from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

from bestof import BestOf
from bestof.errors import BestofWarning, InvalidArgument, ProblemError
from bestof.selection import notice


def failing(n: int) -> int:
    raise OSError("no")


def test_a_warning_points_at_the_users_line_behind_a_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = ModuleType("library")
    code = compile("def forward(f, n):\n    return f(n)\n", str(tmp_path / "library.py"), "exec")
    exec(code, vars(library))
    monkeypatch.setattr(notice, "_INSTALLED", (str(tmp_path),))
    selector = BestOf("told", [("a", abs), ("b", failing)], lambda n: n, store="off")
    library.forward(selector, 1)
    with pytest.warns(BestofWarning) as told:
        library.forward(selector, 1)
    line = sys._getframe().f_lineno - 1
    assert [(w.filename, w.lineno) for w in told] == [(__file__, line)]


def test_threads_may_give_the_same_warnings() -> None:
    """Without the GIL, one may take the last of them after another has seen it."""

    class Seen(list[str]):
        def __bool__(self) -> bool:
            return True

    with pytest.warns(BestofWarning) as told:
        notice.warn_of_all(Seen(["one"]))
    assert [str(one.message) for one in told] == ["one"]


def test_without_a_line_of_the_user_a_warning_points_at_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notice, "_INSTALLED", ("/", "<"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        notice.warn("something")
    assert [w.filename for w in told] == [__file__]


@pytest.mark.parametrize(
    "name",
    ["bestof.module", "bestof_autoload.module", "__main__"],
    ids=["own", "autoload", "program"],
)
def test_no_warning_shows_a_line_of_bestof(name: str, tmp_path: Path) -> None:
    """Of the start of a process, where no line of the user is: as `bestof run` imports PyTorch."""
    file = tmp_path / "bestof"
    file.write_text(
        "import bestof.selection.notice as notice\n"
        f"code = compile('notice.warn(\\'heard\\')', {str(file)!r}, 'exec')\n"
        f"exec(code, {{'__name__': {name!r}, 'notice': notice}})\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, file], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "<bestof>:1: BestofWarning: heard\n"


def test_a_line_of_the_user_behind_the_start_of_a_process_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import bestof.selection.notice as notice\n"
        "exec(\"notice.warn('heard')\", {'__name__': 'bestof_autoload', 'notice': notice})\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, file], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.startswith(f"{file}:2: BestofWarning: heard\n")


@pytest.mark.parametrize("asked", ["explain", "best_method_has_been_found"])
def test_explain_names_its_arguments_in_the_error(asked: str) -> None:
    def size(x: list[int], *, flag: bool = False) -> int:
        return len(x)

    selector = BestOf("total", [("a", sum), ("b", sum)], size, store="off")
    with pytest.raises(InvalidArgument) as raised:
        getattr(selector, asked)(5)
    message = str(raised.value)
    assert f"BestOf('total'): {asked} takes the arguments of a call: {asked}(x" in message
    assert "flag" in message
    assert "get_problem_size raised TypeError: object of type 'int' has no len()" in message
    assert isinstance(raised.value.__cause__, TypeError)


def test_explain_of_a_group_says_that_the_stage_is_left_out() -> None:
    pairs = [("a", [len, len]), ("b", [len, len])]
    selector = BestOf("pass", pairs, functools.partial(max, 0), store="off")
    with pytest.raises(InvalidArgument, match="for a group without the stage"):
        selector.explain([1])


def test_explain_of_a_problem_that_is_not_hashable_says_so() -> None:
    selector = BestOf("it", [("a", len), ("b", len)], lambda x: x, store="off")
    with pytest.raises(ProblemError, match="not hashable"):
        selector.explain([1])

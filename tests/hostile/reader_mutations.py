"""Reports, profiles, recipes, configurations and logs whose values were changed.

Every command that reads such a file tells what is wrong, or prints something right: no traceback,
no code that runs, no control character on the terminal, no tag in a page.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import signal
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from mutations import in_processes
from plan_mutations import _DEEP, CODE, _change, _exchange, _values, _watch

from bestof.cli import main
from bestof.configuration import parse_configuration
from bestof.errors import BestofError
from bestof.escaped import escaped
from bestof.profile.mark import Mark
from bestof.profile.peak import Peak
from bestof.profile.profile import Profile, Step
from bestof.profile.span import Span
from bestof.recipe.recipe import Comparison, Recipe, read_recipe
from bestof.recipe.settings import Settings
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.selection.state.earlier_race import EarlierRace
from bestof.torch.process.ranks.entry import parse_place

_SECONDS = 60
_TAG = "<script>alert(1)</script>"
_TEXTS = (_TAG, "\x1b[2J\x1b]0;x\x07", "\r\n", "\u202e", "\ud800", *CODE)
_LINES = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,"
    "src_f32::blocked:acdb::f0 wei_f32::blocked:Acdb8a::f0 bia_f32::blocked:a::f0 "
    "dst_f32::blocked:acdb::f0,,alg:convolution_direct,"
    "mb2_ic3oc8_ih8oh6kh3sh1dh0ph0_iw8ow6kw3sw1dw0pw0,0.05",
    "MKL_VERBOSE SGEMM(N,N,8,16,32,0x7ffd,0x1,8,0x2,32,0x7ffe,0x3,8) 12.5us CNR:OFF Dyn:1 FastMM:1",
)


def whole_report() -> dict[str, Any]:
    """Return the content of a report."""
    alternatives = (
        AlternativeReport("a", "chosen", 1e-3, 1e-4, 5, 1.0, None, (("inner", "(1,)"),)),
        AlternativeReport("b", "disqualified", None, None, 0, None, "it failed"),
    )
    races = EarlierRace("a", 1.0, 2.0), EarlierRace("a", 1.0, 2.0, (0.5, 3.0))
    problems = (
        ProblemReport("(1, 2)", "a", "measured", alternatives, races),
        ProblemReport("(3, 4)", None, None, alternatives, why="few calls"),
    )
    inner = SelectorReport("inner", 1, (ProblemReport("(1,)", "a", "stored", alternatives),))
    outer = SelectorReport("conv", 1, problems, 9, 0.1, 0.01, 5, 0.2)
    content: dict[str, Any] = json.loads(json.dumps(Report((outer, inner)).to_dict()))
    return content


def whole_profile(folder: Path) -> dict[str, Any]:
    """Return the content of a profile."""
    call = json.dumps(["aten::relu", [[2, 3], [3, 1], "float", None]])
    spans = (
        Span("operation", "pytorch", "aten::relu", 0.1, 0.2, 0.2, step=0, text=call),
        Span("line", "onednn", "convolution", 0.4, 0.2, 0.2, step=0, text=_LINES[0], module="m"),
        Span("operation", "pytorch", "aten::add", 0.7, 0.1, 0.1, step=1, phase="forward"),
    )
    steps = Step(0.0, 0.6, 2), Step(0.6, 0.9, 2)
    marks = (Mark("trials", "conv a", 0.0, 0.1),)
    texts = {"examples": ("example",), "refusals": ("refusal",), "notes": ("note",)}
    path = folder / "whole.json"
    Profile(
        *("title", 1.0, spans, steps, 1),
        **texts,  # type: ignore[arg-type]  # tuples of texts
        marks=marks,
        host={"cpu": "here"},
        peak=Peak(1e9, 1e9),
    ).save(path)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def whole_recipe(folder: Path) -> dict[str, Any]:
    """Return the content of a recipe."""
    path = folder / "whole.recipe"
    comparison = Comparison("kernels", Settings(), Settings(kernels=True), [1.1, 1.2], True)
    Recipe(["train.py"], comparisons=[comparison]).save(path)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def readers(folder: Path, count: int, seed: int) -> Counter[str]:
    """Read changed files by the commands and functions that read such files."""
    configuration = {"kernel": {"rounds": 4, "min_speedup": 1.1}, "layout": {"enable": True}}
    wholes: dict[str, Any] = {
        "report": whole_report(),
        "profile": whole_profile(folder),
        "recipe": whole_recipe(folder),
        "configuration": configuration,
        "place": [["key", "trial", 1, 2, 3, ["a", "b"], "a"]],
    }
    unchanged = folder / "unchanged.json"
    unchanged.write_text(json.dumps(wholes["profile"]), encoding="utf-8")
    escaped("\x1b")  # imports come before the hook
    for kind, content in wholes.items():
        for number in range(4):
            _read(kind, json.dumps(content), folder / "first.json", unchanged, number)
    for number in range(2):
        _read("log", "\n".join(_LINES), folder / "first.json", unchanged, number)
    told: list[str] = []

    def one(chance: random.Random, number: int) -> str:
        if not told:
            told.append("watching")
            _watch(told, files=True)
        del told[1:]
        kind = chance.choice((*wholes, "report", "profile", "log"))
        if kind == "log":
            text = _changed_log(chance)
        else:
            content = copy.deepcopy(wholes[kind])
            for _ in range(chance.choice((1, 1, 2, 3))):
                _change_one(content, chance)
            text = json.dumps(content).replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000)
        signal.alarm(_SECONDS)
        try:
            what = _read(kind, text, folder / f"{number}.json", unchanged, number)
        finally:
            signal.alarm(0)
        assert told == ["watching"], told
        return what

    return in_processes(one, count, seed)


def _change_one(content: Any, chance: random.Random) -> None:
    places = list(_values(content))
    if not places:
        return
    holder, key = chance.choice(places)
    if chance.random() < 0.3 and isinstance(holder[key], str):
        holder[key] = chance.choice(_TEXTS)
    elif chance.random() < 0.2:
        _exchange(places, chance)
    else:
        _change(holder, key, chance, "/nowhere/ran")


def _changed_log(chance: random.Random) -> str:
    lines = []
    for line in _LINES:
        fields = line.split(",")
        for _ in range(chance.choice((1, 2))):
            place = chance.randrange(len(fields))
            odd = ("", "9" * 400, "-1", "nan", "x" * 3000, *_TEXTS, fields[place] * 2)
            fields[place] = chance.choice(odd)
        lines.append(",".join(fields))
    return "\n".join(lines).encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _read(kind: str, text: str, path: Path, unchanged: Path, number: int) -> str:
    """Read a file; return what became of it. AssertionError for what no command may do."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    page = path.with_suffix(".html")
    try:
        if kind == "configuration":
            return _called(parse_configuration, path)
        if kind == "recipe":
            return _called(lambda file: "\n".join(read_recipe(file).lines()), path)
        if kind == "place":
            return _called(lambda file: parse_place(file.read_bytes()), path, ValueError)
        ways: list[list[str]] = {
            "report": [
                ["report", str(path)],
                ["report", str(path), "--json"],
                ["report", str(path), "--tree"],
                ["report", str(path), "--html", str(page)],
            ],
            "profile": [
                ["profile", "--show", str(path)],
                ["compare", str(unchanged), str(path)],
                ["profile", "--show", str(path), "--json"],
                ["project", str(path), "--benchdnn"],
            ],
            "log": [["profile", "--log", str(path)], ["project", str(path), "--benchdnn"]],
        }[kind]
        what = _commanded(ways[number % len(ways)])
        if page.exists():
            _Page().feed(page.read_text(encoding="utf-8"))
        return what
    finally:
        path.unlink(missing_ok=True)
        page.unlink(missing_ok=True)


def _called(read: Any, path: Path, *more: type[Exception]) -> str:
    try:
        found = read(path)
    except (BestofError, *more):
        return "refused"
    assert _is_printable(found) if isinstance(found, str) else True
    return "read"


def _commanded(arguments: list[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
    assert status in (0, 1, 2), status
    for text in (out.getvalue(), err.getvalue()):
        assert _is_printable(text), repr(text[:300])
        assert "Traceback" not in text, text[-500:]
    return "read" if status == 0 else "refused"


def _is_printable(text: str) -> bool:
    return text.replace("\n", "").isprintable()


class _Page(HTMLParser):
    """Fails for a script, which no page of bestof has."""

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # HTMLParser's
        assert tag != "script", "a text of the file became a tag"

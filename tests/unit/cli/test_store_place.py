"""`--store` with a place where no store can be is wrong usage, whichever command it is given to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.cli import main


@pytest.mark.parametrize("before", [["run"], ["store", "show"], ["store", "pin", "it", "a"]])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("redis://x", "there is no store 'redis://x'"),
        ("{}", "is a folder; pass a path such as"),
        ("{}/file/decisions", "is not a folder"),
        ("{}/foreign", "no SQLite database"),
    ],
)
def test_an_unusable_place_is_wrong_usage(
    before: list[str], place: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").write_text("words")
    (tmp_path / "script.py").write_text("raise SystemExit('it ran')")
    script = [str(tmp_path / "script.py")] if before == ["run"] else []
    assert main([*before, "--store", place.format(tmp_path), *script]) == 2
    told = capsys.readouterr().err
    assert told.startswith("bestof: --store: ")
    assert says in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "foreign", "script.py"]

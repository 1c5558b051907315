"""A recipe is read as it was written, and a foreign or damaged one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bestof.errors import BestofError, InvalidArgument
from bestof.recipe.recipe import Comparison, Recipe, read_recipe
from bestof.recipe.settings import Settings, parse_settings


def saved(path: Path) -> dict[str, Any]:
    settings = Settings(kernels=True, threads=2)
    compared = Comparison("kernels", Settings(), settings, [1.25] * 6, True)
    Recipe(["train.py", "-x"], "relaxed", settings, [compared], True).save(path)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_recipe_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    content = saved(path)
    assert content["settings"] == {"kernels": True, "threads": 2}
    read = read_recipe(path)
    assert (read.script, read.accuracy, read.complete) == (["train.py", "-x"], "relaxed", True)
    assert read.settings == Settings(kernels=True, threads=2)
    assert read.lines() == [
        "kernels (kernels=true, threads=2): kept; speed-up 1.250 (1.250 to 1.250, 6 pairs)",
        "settings: kernels=true, threads=2",
    ]
    assert [one.name for one in tmp_path.iterdir()] == ["recipe.json"]


def test_parts_that_were_not_compared_are_named_together() -> None:
    recipe = Recipe(["train.py"])
    recipe.comparisons.append(Comparison("enable", Settings(), Settings(kernels=True), [1.0] * 6))
    for part, made in (
        ("data loading", Settings(workers=1)),
        ("data loading", Settings(workers=2)),
        ("threads", Settings(threads=1)),
    ):
        recipe.comparisons.append(Comparison(part, Settings(), made))
    assert recipe.lines() == [
        "enable (kernels=true): not decided; speed-up 1.000 (1.000 to 1.000, 6 pairs)",
        "not compared yet: data loading, threads",
        "settings so far: none",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"machine": {"host": "another"}}, "was made for the host 'another', and this is"),
        ({"machine": None}, "was made for the host None"),
        ({"bestof recipe": 2}, "has the version 2, and this bestof reads 1"),
        (
            {"settings": {"thread": 2}},
            "settings: unknown setting 'thread'; known settings: kernels",
        ),
        ({"settings": {"threads": 0}}, "threads: expected a whole number, 1 or more; got 0"),
        ({"settings": {"kernels": 1}}, "kernels: expected true or false; got 1"),
        ({"settings": {"products": True}}, "products and attention need kernels: true"),
        ({"settings": {"accuracy": "best"}}, "accuracy: expected one of"),
        ({"settings": []}, "settings: expected a dict; got list"),
        ({"comparisons": [{}]}, "is damaged: KeyError: 'kept'; run `bestof tune` here"),
        ({"comparisons": 3}, "is damaged: TypeError"),
        (
            {
                "comparisons": [
                    {
                        "kept": None,
                        "part": "threads",
                        "standing": {},
                        "candidate": {},
                        "ratios": [10**400],
                        "why": "",
                    }
                ]
            },
            "is damaged: OverflowError",
        ),
    ],
)
def test_an_unusable_recipe_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(saved(path) | change))
    with pytest.raises(InvalidArgument, match=told):
        read_recipe(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "is no JSON"), ("[]", "is no recipe"), ('{"kernel": {}}', "is no recipe")],
)
def test_another_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=f"{told}.*; pass --fresh"):
        read_recipe(path, "pass --fresh")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_recipe(tmp_path / "none.json")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BestofError, match="cannot be written"):
        Recipe(["train.py"]).save(tmp_path / "none" / "recipe.json")


def test_changes_are_what_differs_from_an_untuned_script() -> None:
    assert Settings().changes() == {}
    settings = Settings(kernels=True, workers=2)
    assert parse_settings(settings.changes(), "here") == settings

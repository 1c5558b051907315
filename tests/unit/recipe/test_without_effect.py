"""A candidate that changes nothing in the script takes no pairs."""

from __future__ import annotations

from dataclasses import replace

from test_search import FACTS, Fake, World, search

from bestof.recipe.parts import PARTS
from bestof.recipe.settings import Settings


class Plain(World):
    """A script with nothing to choose."""

    def make(self, settings: Settings) -> Fake:
        made = super().make(settings)
        made.chosen = []
        return made


def test_settings_with_nothing_to_choose_take_no_pairs() -> None:
    recipe = search(Plain(lambda _: 1.0))
    kernels = next(one for one in recipe.comparisons if one.part == "kernels")
    assert kernels.ratios == []
    assert kernels.line() == (
        "kernels (kernels=true): not kept; the step has nothing of it to choose"
    )


def test_threads_that_the_script_sets_itself_take_no_pairs() -> None:
    class Setting(World):
        """A script that computes with five threads, whatever its settings are."""

        def make(self, settings: Settings) -> Fake:
            made = super().make(settings)
            made.facts = replace(FACTS, threads=5)
            return made

    parts = tuple(one for one in PARTS if one.name == "memory" or "threads" in one.name)
    recipe = search(Setting(lambda _: 1.0), parts=parts)
    assert recipe.complete
    threads = [one for one in recipe.comparisons if one.part != "memory"]
    assert {(one.kept, one.why, *one.ratios) for one in threads} == {
        (False, "the script sets its threads itself")
    }


def test_settings_with_nothing_to_choose_are_decided_in_a_short_time() -> None:
    # A quarter of the time is less than the turns that such a part needs.
    parts = tuple(one for one in PARTS if one.name in ("kernels", "products", "memory"))
    recipe = search(Plain(lambda _: 1.0), seconds=20, parts=parts)
    kept = {one.part: one.kept for one in recipe.comparisons}
    assert kept == {"kernels": False, "products": False, "memory": None}

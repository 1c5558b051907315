"""A search continues an incomplete recipe until nothing is left to decide."""

from __future__ import annotations

import pytest
from test_search import World, search

from bestof.recipe.parts import ENABLED, PARTS
from bestof.recipe.recipe import Comparison, Recipe
from bestof.recipe.search import Search
from bestof.recipe.settings import Settings


@pytest.mark.parametrize("seconds", [4, 8, 12])
def test_a_search_that_ended_in_its_first_part_is_completed(seconds: int) -> None:
    """The other parts were compared beside nothing then, and beside the first part now."""
    world = World(lambda settings: 0.9 if settings.kernels else 1.0)
    recipe = search(world, seconds=seconds)
    assert not recipe.complete
    assert {one.kept for one in recipe.comparisons} == {None}
    search(world, recipe)
    assert recipe.complete
    assert recipe.settings == Settings(**ENABLED)


def test_a_part_of_an_earlier_bestof_does_not_keep_a_recipe_incomplete() -> None:
    recipe = Recipe(["train.py"])
    made = Settings(kernels=True, attention=True, keep_freed=True)
    recipe.comparisons.append(Comparison("without products", Settings(**ENABLED), made))
    recipe.comparisons.append(Comparison("before", Settings(), made, ratios=[1.0], kept=False))
    search(World(lambda settings: 0.9 if settings.kernels else 1.0), recipe)
    assert recipe.complete
    assert "before" in [one.part for one in recipe.comparisons]  # nothing decided is lost
    assert "without products" not in [one.part for one in recipe.comparisons]


def test_what_the_search_comes_to_is_told_once_and_in_order() -> None:
    """A search that continues tells what was decided before, and no part beyond its time."""
    world = World(lambda settings: 0.9 if settings.kernels else 1.0)
    recipe = Recipe(["train.py"])
    told: list[list[str]] = []
    for seconds in (40, 1000):
        told.append([])
        Search(
            recipe,
            world.make,
            deadline=world.now + seconds,
            save=lambda: None,
            tell=told[-1].append,
            clock=lambda: world.now,
        ).run(PARTS)
        if len(told) == 1:
            assert not [line for line in told[0] if "before its first pair" in line]
            assert recipe.lines()[-2].startswith("not compared yet: data loading, ")
    assert len(told[0]) > 1
    assert told[1][0] == told[0][0]
    assert told[1] == recipe.lines()[:-1]


def test_a_result_beside_other_settings_is_replaced() -> None:
    """The optimizer was compared beside nothing first, as the layout had no time."""
    recipe = Recipe(["train.py"])
    fused = Settings(fused_optimizer=True)
    recipe.comparisons.append(Comparison("optimizer", Settings(), fused, [1.2] * 6, True))

    def cost(settings: Settings) -> float:
        return 0.9 ** (settings.kernels + settings.fused_optimizer)

    search(World(cost), recipe)
    assert recipe.complete
    (optimizer,) = [one for one in recipe.comparisons if one.part == "optimizer"]
    assert optimizer.standing == Settings(**ENABLED)

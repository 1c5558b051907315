"""A search continues an incomplete recipe until nothing is left to decide."""

from __future__ import annotations

import pytest
from test_search import World, search

from bestof.recipe.file import Comparison, Recipe
from bestof.recipe.parts import ENABLED
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

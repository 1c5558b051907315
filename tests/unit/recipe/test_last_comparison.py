"""All kept settings together are compared with the untuned script at last.

What `enable` sets is compared once more before, if it was rejected.
"""

from __future__ import annotations

from test_search import Fake, World, search

from bestof.recipe.parts import ENABLED, PARTS
from bestof.recipe.recipe import TOTAL
from bestof.recipe.settings import Settings


def test_what_gains_alone_and_loses_together_is_rolled_back() -> None:
    def cost(settings: Settings) -> float:
        # In the last comparison, the machine is in another state: what was kept has lost its gain.
        return 1.0 if world.now < 30 or settings == Settings() else 2.0

    gains = {"kernels": 0.8, "keep_freed": 0.8}

    def gaining(settings: Settings) -> float:
        factor = 1.0
        for name, gain in gains.items():
            factor *= gain if getattr(settings, name) else 1
        return cost(settings) * factor

    world = World(gaining)
    recipe = search(world, parts=tuple(one for one in PARTS if one.name in ("kernels", "memory")))
    assert world.now > 30
    assert [one.kept for one in recipe.comparisons] == [True, True, False, False]
    assert recipe.settings == Settings()


def test_the_first_gain_stays_if_a_later_one_was_an_error() -> None:
    def cost(settings: Settings) -> float:
        disturbed = 15 < world.now < 30  # then, the memory's setting seems to gain
        return (0.8 if settings.kernels else 1.0) * (
            (0.5 if disturbed else 2.0) if settings.keep_freed else 1.0
        )

    world = World(cost)
    parts = tuple(one for one in PARTS if one.name in ("kernels", "memory"))
    recipe = search(world, parts=parts)
    found = {one.part: one.kept for one in recipe.comparisons}
    assert found == {"kernels": True, "memory": True, TOTAL: False, "kernels again": True}
    assert recipe.complete
    assert recipe.settings == Settings(kernels=True)
    assert search(world, recipe, parts=parts).settings == Settings(kernels=True)


def test_what_is_kept_stays_if_time_is_up_in_the_last_comparison() -> None:
    parts = tuple(one for one in PARTS if one.name in ("kernels", "memory"))
    wanted = Settings(kernels=True, keep_freed=True)

    def cost(settings: Settings) -> float:
        return (0.8 if settings.kernels else 1.0) * (0.8 if settings.keep_freed else 1.0)

    class Starting(World):
        """Starts of processes take time, and the last comparison starts two."""

        def make(self, settings: Settings) -> Fake:
            self.now += 15
            return super().make(settings)

    recipes = [search(Starting(cost), seconds=seconds, parts=parts) for seconds in range(60, 200)]
    states = [[one.kept for one in recipe.comparisons] for recipe in recipes]
    undecided = [
        recipe for recipe, kept in zip(recipes, states, strict=True) if kept == [True, True, None]
    ]
    assert undecided
    assert not any(recipe.complete for recipe in undecided)
    assert {recipe.settings for recipe in undecided} == {wanted}
    longest = max(undecided, key=lambda recipe: len(recipe.comparisons[-1].ratios))
    kept = list(longest.comparisons[-1].ratios)
    assert kept
    done = search(World(cost), longest, parts=parts)
    assert done.complete
    assert done.settings == wanted
    assert done.comparisons[-1].ratios[: len(kept)] == kept
    assert len(done.comparisons[-1].ratios) == 6, "the pairs of both searches count"


ENABLE = tuple(one for one in PARTS if one.name in ("enable", "optimizer"))


def test_what_enable_sets_is_compared_again_if_it_was_rejected() -> None:
    def cost(settings: Settings) -> float:
        chosen = 0.8 if world.now > 15 else 1.1  # at first, kernels were chosen badly
        return (chosen if settings.kernels else 1.0) * (0.7 if settings.fused_optimizer else 1.0)

    world = World(cost)
    recipe = search(world, parts=ENABLE)
    found = [(one.part, one.kept) for one in recipe.comparisons]
    assert found == [("enable", False), ("optimizer", True), ("enable again", True), (TOTAL, True)]
    assert recipe.settings == Settings(**ENABLED, fused_optimizer=True)
    assert recipe.complete
    turns = world.turns
    assert search(world, recipe, parts=ENABLE).settings == recipe.settings
    assert world.turns == turns + 1, "a complete recipe needs one turn, for the facts"


def test_what_enable_sets_is_rejected_twice_at_most() -> None:
    recipe = search(World(lambda settings: 1.1 if settings.kernels else 1.0), parts=ENABLE)
    found = [one.part for one in recipe.comparisons if one.kept is False]
    assert found == ["enable", "optimizer", "enable again"]
    assert recipe.settings == Settings()
    assert recipe.complete


def test_a_recipe_without_time_for_the_second_look_is_completed_later() -> None:
    def cost(settings: Settings) -> float:
        return 1.1 if settings.kernels else 1.0

    recipes = [search(World(cost), seconds=seconds, parts=ENABLE) for seconds in range(20, 80)]
    cut = [one for one in recipes if one.comparisons[-1].part == "enable again"]
    cut = [one for one in cut if one.comparisons[-1].kept is None]
    assert cut
    assert not any(one.complete for one in cut)
    assert search(World(cost), cut[0], parts=ENABLE).complete

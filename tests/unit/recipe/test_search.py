"""A setting is kept only if the step is confirmed faster; nothing measured is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.recipe.parts import ENABLED, PARTS, Facts, Part, parts_of
from bestof.recipe.recipe import TOTAL, Recipe, read_recipe
from bestof.recipe.search import Search
from bestof.recipe.settings import Settings

FACTS = Facts(threads=2, processors=4, convolutions=True, loaders=True, optimizer=True)


class World:
    """Runs of a made-up script. `cost` gives the seconds of a step; a turn takes a second."""

    def __init__(self, cost: Callable[[Settings], float], noise: float = 0.0) -> None:
        self.cost = cost
        self.now = 0.0
        self.turns = 0
        self.open = 0
        self.interrupt_at: int | None = None
        self._draw = random.Random(3)
        self._noise = noise

    def make(self, settings: Settings) -> Fake:
        self.open += 1
        return Fake(self, settings)

    def spend(self, settings: Settings, deadline: float) -> float:
        self.turns += 1
        if self.turns == self.interrupt_at:
            raise KeyboardInterrupt
        if self.now >= deadline:
            raise OutOfTime("the time is up")
        self.now += 1
        return self.cost(settings) * self._draw.lognormvariate(0, self._noise)


class Fake:
    """One run of the made-up script."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.settings = settings
        self.facts: Facts | None = replace(FACTS, threads=settings.threads or FACTS.threads)
        self.trials = 0
        choices = ("kernels", "products", "attention")
        self.chosen = [name for name in choices if getattr(settings, name)]
        self._world = world

    def turn(self, deadline: float) -> float:
        return self._world.spend(self.settings, deadline)

    def close(self) -> None:
        self._world.open -= 1


def search(
    world: World,
    recipe: Recipe | None = None,
    seconds: float = 1e6,
    parts: tuple[Part, ...] = PARTS,
    save: Callable[[], object] = lambda: None,
) -> Recipe:
    recipe = Recipe(["train.py"]) if recipe is None else recipe
    Search(
        recipe,
        world.make,
        deadline=world.now + seconds,
        save=save,
        tell=lambda _: None,
        clock=lambda: world.now,
    ).run(parts)
    assert world.open == 0
    return recipe


def test_only_what_gains_is_kept() -> None:
    def cost(settings: Settings) -> float:
        return (
            1.0
            * (0.8 if settings.kernels else 1)
            * (3.0 if settings.products else 1)
            * (0.7 if settings.fused_optimizer else 1)
            * (5.0 if settings.threads == 1 else 1)
            * (0.9 if settings.workers == 2 else 1)
        )

    recipe = search(World(cost, noise=0.02))
    assert recipe.complete
    assert recipe.settings == Settings(kernels=True, fused_optimizer=True, workers=2)
    assert recipe.comparisons[-1].part == TOTAL
    assert recipe.comparisons[-1].kept
    found = sorted(recipe.comparisons[-1].ratios)[len(recipe.comparisons[-1].ratios) // 2]
    assert found == pytest.approx(1 / (0.8 * 0.7 * 0.9), rel=0.1)


def test_gains_that_are_too_small_alone_are_kept_together() -> None:
    def cost(settings: Settings) -> float:
        gains = settings.kernels + settings.products + settings.attention + settings.keep_freed
        return 1.0 - 0.008 * gains

    recipe = search(World(cost))
    assert recipe.settings == Settings(**ENABLED)
    assert [one.part for one in recipe.comparisons if one.kept] == ["enable"]


def test_what_loses_a_part_of_the_gain_is_left_out() -> None:
    def cost(settings: Settings) -> float:
        return (0.5 if settings.kernels else 1.0) + 0.2 * settings.products

    recipe = search(World(cost))
    assert recipe.settings == Settings(kernels=True, attention=True, keep_freed=True)
    line = next(one.line() for one in recipe.comparisons if one.part == "leave out")
    assert line.startswith("leave out (products=false): kept; speed-up 1.400")


def test_what_enable_gives_is_confirmed_in_noise() -> None:
    enable = tuple(one for one in PARTS if one.name == "enable")
    found = []
    for seed in range(20):
        world = World(lambda settings: 1.0 if settings.kernels else 1.2, noise=0.15)
        world._draw.seed(seed)
        found.append(search(world, parts=enable))
    assert sum(one.settings == Settings(**ENABLED) for one in found) >= 19
    assert max(len(one.comparisons[0].ratios) for one in found) > 20


class Later(World):
    """A script that has nothing to choose in the first `first` turns of a run. Then it tries
    alternatives in `trials` turns, which take longer."""

    first, trials = 5, 3

    def make(self, settings: Settings) -> Fake:
        self.open += 1
        return LateFake(self, settings)


class LateFake(Fake):
    """One run of such a script."""

    def __init__(self, world: Later, settings: Settings) -> None:
        super().__init__(world, settings)
        self.chosen = []
        self.turns = 0
        self._first, self._trials = world.first, world.trials

    def turn(self, deadline: float) -> float:
        seconds = super().turn(deadline)
        self.turns += 1
        past = self.turns - self._first
        if not self.settings.kernels or past <= 0:
            return seconds
        self.chosen = ["kernels"]
        self.trials = min(self._trials, past)
        return 10 * seconds if past <= self._trials else seconds


def test_what_chooses_late_is_measured_once_it_has_chosen() -> None:
    kernels = tuple(one for one in PARTS if one.name == "kernels")
    recipe = search(Later(lambda settings: 0.5 if settings.kernels else 1.0), parts=kernels)
    assert recipe.settings == Settings(kernels=True)
    assert recipe.comparisons[0].ratios == [2.0] * 6


@pytest.mark.parametrize(("part", "kept"), [("enable", True), ("kernels", False)])
def test_what_enable_sets_may_choose_for_most_of_the_time(part: str, kept: bool) -> None:
    parts = tuple(one for one in PARTS if one.name == part)
    world = Later(lambda settings: 0.5 if settings.kernels else 1.0)
    world.first, world.trials = 0, 55
    recipe = search(world, seconds=100, parts=parts)
    assert (recipe.settings != Settings()) == kept


def test_settings_that_had_no_turn_are_not_decided() -> None:
    class Late(Fake):
        def turn(self, deadline: float) -> float:
            seconds = super().turn(deadline)
            self.chosen = ["convolution"] if self.settings.kernels else []
            return seconds

    class Slow(World):
        def make(self, settings: Settings) -> Fake:
            self.now += 10  # the start of a process
            made = Late(self, settings)
            made.chosen = []
            self.open += 1
            return made

    recipe = search(Slow(lambda _: 1.0), seconds=30)
    assert {one.kept for one in recipe.comparisons} == {None}


def test_equal_settings_are_not_kept() -> None:
    recipe = search(World(lambda _: 1.0, noise=0.0))
    assert recipe.settings == Settings()
    assert recipe.complete


def test_a_candidate_that_fails_is_not_kept() -> None:
    def cost(settings: Settings) -> float:
        if settings.kernels:
            raise ScriptFailed("it failed with status 3: boom")
        return 0.5 if settings.fused_optimizer else 1.0

    recipe = search(World(cost))
    assert recipe.settings == Settings(fused_optimizer=True)
    assert recipe.comparisons[0].kept is False
    assert recipe.comparisons[0].why == "it failed with status 3: boom"


def test_a_script_with_nothing_to_compare_is_told() -> None:
    def cost(settings: Settings) -> float:
        if settings != Settings():
            raise ScriptFailed("it has too few steps")
        return 1.0

    recipe = Recipe(["train.py"])
    told = "no setting could be compared with the script as it is: it has too few steps"
    with pytest.raises(ScriptFailed, match=told):
        search(World(cost), recipe)
    assert not recipe.comparisons
    assert not recipe.complete


def test_a_script_that_fails_as_it_stands_ends_the_search() -> None:
    def cost(_: Settings) -> float:
        raise ScriptFailed("it failed with status 1: boom")

    with pytest.raises(ScriptFailed, match="boom"):
        search(World(cost))


@pytest.mark.parametrize("interrupt_at", [2, 9, 40])
def test_an_interrupted_search_continues_with_what_it_measured(
    tmp_path: Path, interrupt_at: int
) -> None:
    def cost(settings: Settings) -> float:
        return 0.5 if settings.kernels else 1.0

    path = tmp_path / "recipe.json"
    world = World(cost, noise=0.05)
    world.interrupt_at = interrupt_at
    recipe = Recipe(["train.py"])
    with pytest.raises(KeyboardInterrupt):
        search(world, recipe, save=lambda: recipe.save(path))
    assert world.open == 0
    kept = read_recipe(path)
    assert not kept.complete
    pairs = [len(one.ratios) for one in kept.comparisons]
    search(World(cost, noise=0.05), kept, save=lambda: kept.save(path))
    assert kept.complete
    assert kept.settings == Settings(**ENABLED)
    after = [len(one.ratios) for one in kept.comparisons]
    assert all(now >= before for now, before in zip(after, pairs, strict=False))
    # A complete recipe needs one turn, for the facts.
    again = World(cost)
    search(again, read_recipe(path))
    assert again.turns == 1


def test_what_enable_gives_is_found_first_in_a_short_time() -> None:
    # Six pairs take twelve turns. A quarter of 20 seconds would have no room for them.
    recipe = search(World(lambda settings: 0.5 if settings.kernels else 1.0), seconds=20)
    assert recipe.settings == Settings(**ENABLED)
    assert not recipe.complete


def test_a_search_without_time_keeps_what_was_found() -> None:
    recipe = search(World(lambda settings: 0.5 if settings.kernels else 1.0), seconds=60)
    assert not recipe.complete
    assert recipe.settings == Settings(**ENABLED)
    again = search(World(lambda _: 1.0), recipe, seconds=0)
    assert again.settings == Settings(**ENABLED)


def test_a_search_ends_in_time_and_says_what_is_open() -> None:
    world = World(lambda _: 1.0, noise=0.3)
    recipe = search(world, seconds=60)
    assert world.now <= 60
    assert not recipe.complete
    assert any("the time was up" in one.why for one in recipe.comparisons)
    assert recipe.settings == Settings()
    assert recipe.lines()[-1] == "settings so far: none"


def test_parts_that_do_not_apply_are_not_tried() -> None:
    bare = Facts(threads=1, processors=1, convolutions=False, loaders=False, optimizer=False)
    tried = {part.name for part in PARTS for _ in part.values(bare)}
    assert tried == {"enable", "kernels", "products", "attention", "memory", "leave out"}


@pytest.mark.parametrize("accuracy", ["exact", "float32", "relaxed"])
def test_precision_follows_the_accuracy(accuracy: Any) -> None:
    def values() -> Iterator[dict[str, Any]]:
        for part in parts_of(accuracy):
            yield from part.values(FACTS)

    names = {name for found in values() for name in found}
    assert ("accuracy" in names) == (accuracy == "relaxed")
    if accuracy == "exact":
        assert names == {"keep_freed", "workers"}

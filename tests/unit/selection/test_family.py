"""Selectors of the same functions, such as one for each layer of a model, search together."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bestof import Alternative, BestOf
from bestof.errors import BestofWarning


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()
NAMES = [""]  # of the selectors of the running test, the last
WRONG: list[object] = []  # the layers whose `quick` is wrong


class Layer:
    """A layer that owns a selector of its methods, as in the README."""

    def __init__(self, scale: float = 1.0, **options: Any) -> None:
        self.scale = scale
        self.weights = [object()]
        options = {"policy": "rounds:rounds=10", "store": "off", "clock": CLOCK, **options}
        self.forward = BestOf(
            NAMES[-1], [("loop", self.loop), ("quick", self.quick)], lambda x: x, **options
        )

    def loop(self, x: float) -> tuple[object, float]:
        CLOCK.now += 2.0
        return self, self.scale * x

    def quick(self, x: float) -> tuple[object, float]:
        CLOCK.now += 1.0
        return self, self.scale * x + (self in WRONG)


@pytest.fixture(autouse=True)
def name(request: pytest.FixtureRequest) -> None:
    """Those of an earlier test, which the collector has not freed yet, are no relatives."""
    NAMES.append(request.node.name)


def same(expected: Any, got: Any) -> bool:
    return bool(expected == got)


def trials(layers: list[Layer]) -> int:
    return sum(layer.forward.trials for layer in layers)


def test_eight_layers_search_as_one() -> None:
    layers = [Layer() for _ in range(8)]
    for _ in range(10):
        for layer in layers:
            assert layer.forward(1.0) == (layer, 1.0)  # each calls its own functions
    assert trials(layers) == 20
    assert {layer.forward.explain(1.0).decision for layer in layers} == {"quick"}
    assert {layer.forward.explain(1.0).source for layer in layers} == {"measured"}


def test_one_that_comes_later_begins_with_the_decision() -> None:
    first = Layer()
    for _ in range(30):
        first.forward(1.0)
    later = Layer()
    assert later.forward(1.0) == (later, 1.0)
    assert later.forward.trials == 0
    assert later.forward.explain(1.0).decision == "quick"
    assert later.forward.best_method_has_been_found(1.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"scale": 1.0}, {"scale": 2.0}),
        ({"policy": "rounds:rounds=10"}, {"policy": "rounds:rounds=9"}),
        ({"check": None}, {"check": 1e-5}),
        ({"clock": CLOCK}, {"clock": Clock()}),
    ],
)
def test_those_that_differ_search_by_themselves(one: dict[str, Any], other: dict[str, Any]) -> None:
    layers = [Layer(**one), Layer(**other)]
    for layer in layers:
        for _ in range(30):
            layer.forward(1.0)
    assert all(layer.forward.trials >= 18 for layer in layers)


@pytest.mark.parametrize("wrong", range(4))
def test_each_result_is_compared_by_the_selector_that_returns_it(wrong: int) -> None:
    layers = [Layer(check=same) for _ in range(4)]
    WRONG[:] = [layers[wrong]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        for _ in range(30):
            for layer in layers:
                assert layer.forward(1.0) == (layer, 1.0)
    decisions = [layer.forward.explain(1.0).decision for layer in layers]
    assert decisions == ["loop" if place == wrong else "quick" for place in range(4)]
    later = Layer(check=same)
    WRONG[:] = [later]
    with pytest.warns(BestofWarning, match="'quick' was disqualified: wrong result"):
        assert [later.forward(1.0) for _ in range(30)] == [(later, 1.0)] * 30
    assert later.forward.explain(1.0).decision == "loop"
    WRONG.clear()


def test_one_whose_alternative_fails_leaves_the_others() -> None:
    layers = [Layer() for _ in range(4)]

    def broken(x: float) -> None:
        raise OSError("broken")

    layers[2].quick = broken  # type: ignore[method-assign,assignment]
    layers[2].forward = BestOf(
        NAMES[-1],
        [("loop", layers[2].loop), ("quick", layers[2].quick)],
        lambda x: x,
        policy="rounds:rounds=10",
        store="off",
        clock=CLOCK,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        for _ in range(40):
            for layer in layers:
                assert layer.forward(1.0) == (layer, 1.0)
    assert [layer.forward.explain(1.0).decision for layer in layers] == [
        *("quick", "quick"),
        *("loop", "quick"),
    ]


def test_all_that_fail_alike_search_as_one() -> None:
    def made() -> BestOf:
        def broken(x: float) -> None:
            raise OSError("broken")

        def takes(seconds: float) -> Callable[[float], float]:
            def called(x: float) -> float:
                CLOCK.now += seconds
                return x

            return called

        return BestOf(
            NAMES[-1],
            [("broken", broken), ("a", takes(2.0)), ("b", takes(1.0))],
            lambda x: x,
            policy="rounds:rounds=10",
            store="off",
            clock=CLOCK,
        )

    selectors = [made() for _ in range(6)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        for _ in range(20):
            for selector in selectors:
                assert selector(1.0) == 1.0
    assert sum(selector.trials for selector in selectors) <= 20 + len(selectors)
    assert {selector.explain(1.0).decision for selector in selectors} == {"b"}


def test_groups_share_too() -> None:
    def made() -> BestOf:
        def stage(seconds: float) -> Callable[[float], float]:
            def called(x: float) -> float:
                CLOCK.now += seconds
                return x

            return called

        pairs = [("a", [stage(2.0), stage(2.0)]), ("b", [stage(1.0), stage(1.0)])]
        return BestOf(
            "group", pairs, lambda x: x, policy="rounds:rounds=5", store="off", clock=CLOCK
        )

    selectors = [made() for _ in range(6)]
    for _ in range(10):
        for selector in selectors:
            assert (selector(0, 1.0), selector(1, 1.0)) == (1.0, 1.0)
    assert sum(selector.trials for selector in selectors) == 20
    assert {selector.explain(1.0).decision for selector in selectors} == {"b"}


def test_a_layer_that_is_dropped_is_freed_and_the_rest_goes_on() -> None:
    layers = [Layer() for _ in range(3)]
    for layer in layers:
        layer.forward(1.0)
    gone = weakref.ref(layers.pop(0))
    del layer
    gc.collect()
    assert gone() is None
    for _ in range(20):
        for layer in layers:
            assert layer.forward(1.0) == (layer, 1.0)
    assert {layer.forward.explain(1.0).decision for layer in layers} == {"quick"}
    kept = [weakref.ref(layer.forward._knowledge.family) for layer in layers]
    del layer
    layers.clear()
    gc.collect()
    assert [one() for one in kept] == [None, None]


@pytest.mark.parametrize("hopeless", [None, lambda problem: True])
@pytest.mark.filterwarnings("ignore:.*'broken' was disqualified")
def test_a_search_that_nobody_goes_on_with_is_forgotten(hopeless: Any) -> None:
    def broken(x: float) -> float:
        raise OSError("broken")

    out = Alternative("broken", broken, hopeless=hopeless)
    selector = BestOf(NAMES[-1], [("a", abs), out, ("b", abs)], abs, rounds=2, store="off")
    for problem in range(20):
        for _ in range(8):
            selector(problem)
    assert len(selector._knowledge.decisions) == 20
    gc.collect()  # the errors hold the calls that raised them
    assert not selector._knowledge.family.searches


def test_threads_of_many_layers() -> None:
    layers = [Layer() for _ in range(8)]

    def call(layer: Layer) -> bool:
        return all(layer.forward(float(x % 5)) == (layer, float(x % 5)) for x in range(300))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, layers))
    assert trials(layers) <= 5 * (20 + 2 * len(layers))  # a thread may be inside a trial

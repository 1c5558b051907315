"""A fused layer of a plan that is bound to memory."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import torch

from bestof.torch.plan.algorithms.algorithm import Bound, Runner, Site
from bestof.torch.plan.algorithms.choice import Choice
from bestof.torch.plan.algorithms.selection import selector
from bestof.torch.plan.algorithms.table import PYTORCH, algorithm, applicable
from bestof.torch.plan.layers.frozen_weights import Packed
from bestof.torch.plan.layers.layer import Layer
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.layers.window import MAX_2X2, pooling_runner


class ConvolutionStep:
    """A layer at its site, run by whichever algorithm is chosen.

    While the choice is open, each call goes through the selector, which tries the algorithms. Once
    it is settled, `run` is the bound algorithm itself: a call costs nothing beyond it.
    """

    def __init__(self, site: Site, choice: Choice) -> None:
        site.check()
        self.site, self.choice = site, choice
        self._bound: dict[str, Bound] = {}
        self._taken: str | None = None
        self._run: Runner = self._select

    @property
    def layer(self) -> Layer:
        return self.site.layer

    @property
    def problem(self) -> FusedProblem:
        """What the algorithm is chosen for."""
        return self.site.problem

    @property
    def algorithm(self) -> str | None:
        """The name of the chosen algorithm; None while the choice is open."""
        return self.choice.algorithm

    @property
    def run(self) -> Runner:
        """The function that runs the layer."""
        return self._run

    @property
    def packed(self) -> tuple[Packed, ...]:
        """The weights in layouts of their own that it holds."""
        return tuple(one.packed for one in self._bound.values() if one.packed is not None)

    @property
    def raced_bytes(self) -> int:
        """About the bytes of the weights that are packed for a race.

        Twice the weight for each algorithm: F(6) takes seven times as much, F(4) four times, most
        others as much.
        """
        return 2 * len(applicable(self.problem)) * self.layer.weights.weight.nbytes

    def prepare(self) -> None:
        """Pack the weights for all algorithms that race: packing is no part of a call's time."""
        for name in applicable(self.problem):
            # It fails again at its trial, where the selector disqualifies it and reports why.
            with suppress(Exception):
                self.runner(name)

    def runner(self, name: str) -> Runner:
        """Return the function that runs the layer by one algorithm.

        The first request packs the weights.
        """
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bound[name] = self._bind(name)
        return bound.run

    def settle(self, name: str) -> None:
        """Choose an algorithm, and free what the others had packed."""
        self.choice.settle(name)
        self.learn()

    def learn(self) -> bool:
        """Bind to the chosen algorithm if there is one; return whether there is."""
        name = self.algorithm
        if name is None:
            name = selector().explain(self).decision
            if name is None:
                return False
            self.choice.take(name)
        if name != self._taken:
            self._run = self.runner(name)
            self._bound = {name: self._bound[name]}
            self._taken = name
        return True

    def _select(self) -> None:
        selector()(self)

    def _guarded(self, run: Runner, pools: bool) -> Runner:
        """Return a function that lets PyTorch compute a call if an element of it stands out.

        pools: whether `run` pools what it computes.
        """
        by_pytorch: list[Runner] = []

        def guarded() -> None:
            if run() is not False:
                return
            if not by_pytorch:
                other = self._bind(PYTORCH.name) if pools else PYTORCH.bind(self.site)
                by_pytorch.append(other.run)
            by_pytorch[0]()

        return guarded

    def _bind(self, name: str) -> Bound:
        row, site = algorithm(name), self.site
        bound = row.bind(site)
        if row.reach != "own":
            bound = Bound(self._guarded(bound.run, row.pools(site.problem)), bound.packed)
        second: Runner
        if site.layer.pooled and not row.pools(site.problem):
            second = pooling_runner(MAX_2X2, site.unpooled, site.out)
        elif site.gate is not None and not row.gates(site.problem):
            second = partial(torch.mul, site.out, site.gate, out=site.out)
        else:
            return bound
        first = bound.run

        def run() -> None:
            first()
            second()

        return Bound(run, bound.packed)

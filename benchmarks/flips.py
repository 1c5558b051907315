"""How often do two races of the same problem decide differently, quiet and beside bursts of load?

    python benchmarks/flips.py --policy race:tie=0.03,confidence=0.97,max_trials=8

A training is simulated: one call of each problem in a step of 0.3 s. Problems have 2 to 6
alternatives with gaps from half a percent to eight times. Calls have a noise of 2 %; one in twenty
is late, and first calls are 1 to 10 times as slow. Beside bursts, all calls of every other second
take 1.3 to 2.4 times as long. A line has, for each policy:

    flips    of two races, those whose winners differ by more than 3 %
    large    the same beyond 10 %
    best     winners within 3 % of the best
    regret   the time of the winner over that of the best, mean
    calls    until the race is over, mean
    lost     what these calls take beyond the best, first calls left out, in calls of the best

Seeded: the same arguments print the same figures.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

from bestof.selection.policies import parse_policy
from bestof.selection.policies.policy import Policy

STEP = 0.3  # seconds
BEST = 0.005  # seconds of the best alternative
RACES = 12  # of each problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", action="append", help="as `bestof` takes it")
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    for bursts in (False, True):
        print("beside bursts" if bursts else "quiet")
        for text in options.policy or ["race"]:
            print(
                f"  {text}: {figures(parse_policy(text), bursts, options.problems, options.seed)}"
            )


def figures(policy: Policy, bursts: bool, problems: int, seed: int) -> str:
    """Return the figures of one policy as a line."""
    pairs: list[float] = []
    winners, calls, lost = [], [], []
    for problem in range(problems):
        rng = np.random.default_rng([seed, problem])
        gaps = 10 ** rng.uniform(-2.3, 0.9, int(rng.integers(2, 7)))
        gaps[0] = 0.0
        beyond = rng.permutation(gaps)
        cold = 10 ** rng.uniform(0, 1, len(beyond))
        races = [
            race(policy, beyond, cold, bursts, np.random.default_rng([seed, problem, one]))
            for one in range(RACES)
        ]
        times = [1.0 + beyond[called[-1]] for called, _ in races]
        winners += times
        pairs += [max(pair) / min(pair) for pair in pairwise(times)]
        calls += [len(called) - 1 for called, _ in races]
        lost += [loss for _, loss in races]
    one = np.array(pairs)
    return (
        f"flips {np.mean(one > 1.03):.1%}  large {np.mean(one > 1.1):.1%}  "
        f"best {np.mean(np.array(winners) <= 1.03):.1%}  regret {np.mean(winners):.4f}  "
        f"calls {np.mean(calls):.0f}  lost {np.mean(lost):.1f}"
    )


def race(
    policy: Policy, beyond: np.ndarray, cold: np.ndarray, bursts: bool, rng: np.random.Generator
) -> tuple[list[int], float]:
    """Return the alternatives that were called, the winner behind them, and what was lost."""
    search = policy.start([f"a{position}" for position in range(len(beyond))])
    began, called, lost = rng.uniform(0, 2), list[int](), 0.0
    while search.winner is None:
        position = search.ask()
        assert position is not None
        late = np.exp(0.02 * rng.standard_normal())
        if rng.random() < 0.05:
            late *= 1.0 + 0.3 * rng.pareto(2.0)
        if bursts and (began + len(called) * STEP) % 2.0 < 1.0:
            late *= rng.uniform(1.3, 2.4)
        first = 1.0 if position in called else cold[position]
        search.tell(position, float(BEST * (1.0 + beyond[position]) * late * first))
        called.append(position)
        lost += float(beyond[position])
    return [*called, search.winner], lost


if __name__ == "__main__":
    main()

"""Replay recorded and synthetic times through the policies: how well, how soon and how steadily do
they decide?

    python benchmarks/policies.py [--repeats 100] [--seed 1] [--policy race --policy
    rounds:rounds=5] [--detail]

A trace is a table: the time that each alternative would take at each call. The policy sees only
what it asks for; its regret is what its first 150 calls take beyond as many of the best
alternative, in calls of the best and by true times, so that a late call is nobody's fault. The
column `w/cold` adds what the first calls took beyond usual ones, which everybody pays who tries an
alternative at all. The true time is what a synthetic trace was made from, the median of a recorded
one. `steady` counts the traces whose best is ahead by more than 5 % and on which all repeats
decided alike. The last two tables hold the figures beside what is to be reached, and the price of a
race of many unlike alternatives.
Seeded: the same arguments print the same figures.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bestof.selection.policies import parse_policy
from bestof.selection.policies.policy import Policy

CALLS = 150  # over which regret is summed
LONGEST = 2000  # calls until a search counts as endless
COUNTS = tuple(range(2, 11))
FEW, MANY = range(2, 7), range(7, 11)
# Times of eleven ways to compute a convolution over that of the best, as a layer of VGG16 has them.
UNLIKE = (1.0, 1.05, 1.3, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)
Noise = Callable[[np.random.Generator, int, int], np.ndarray]


@dataclass
class Trace:
    """One problem: its true times, and tables of what repeated runs would meet."""

    name: str
    truth: np.ndarray
    cold: np.ndarray  # factors, or seconds where recorded, of the first call of each
    tables: Callable[[np.random.Generator], np.ndarray]
    first: np.ndarray | None = None

    @property
    def clear(self) -> bool:
        """Whether the best is ahead of all others by more than 5 %."""
        ranked = np.sort(self.truth)
        return bool(ranked[1] > 1.05 * ranked[0])


def calm(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Half a percent."""
    return np.exp(0.005 * np.abs(rng.standard_normal((rows, n))))


def noisy(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Three percent."""
    return np.exp(0.03 * rng.standard_normal((rows, n)))


def heavy(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Two percent, and one call in twelve late by a Pareto tail without a variance."""
    late = rng.random((rows, n)) < 1 / 12
    return noisy(rng, rows, n) ** (2 / 3) * np.where(late, 1.0 + rng.pareto(1.3, (rows, n)), 1.0)


def ramp(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """The clock speeds up over the first calls, from 1.6 times the time."""
    return noisy(rng, rows, n) * (1.0 + 0.6 * np.exp(-np.arange(rows) / 40.0))[:, None]


def throttle(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """The clock slows down to 1.5 times the time."""
    return noisy(rng, rows, n) * (1.5 - 0.5 * np.exp(-np.arange(rows) / 60.0))[:, None]


def bursts(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """A neighbour takes the core for eight calls, and leaves it for twenty, on average."""
    state, busy = np.empty(rows), rng.random() < 0.3
    for row in range(rows):
        busy = rng.random() >= 1 / 8 if busy else rng.random() < 1 / 20
        state[row] = 1.9 if busy else 1.0
    return noisy(rng, rows, n) ** 0.5 * state[:, None]


def bimodal(rng: np.random.Generator, rows: int, n: int) -> np.ndarray:
    """Three calls in ten take 1.35 times as long."""
    return noisy(rng, rows, n) ** 0.5 * np.where(rng.random((rows, n)) < 0.3, 1.35, 1.0)


NOISES: dict[str, Noise] = {
    "calm": calm,
    "noisy": noisy,
    "heavy": heavy,
    "ramp": ramp,
    "throttle": throttle,
    "bursts": bursts,
    "bimodal": bimodal,
}


def synthetic(instances: int, seed: int) -> Iterator[Trace]:
    """Every noise with every number of alternatives: gaps from half a percent to 8 times, evenly in
    their logarithm.

    The last instance of each is made of near-ties alone (up to 1.5 %) beside one alternative 30 %
    behind. First calls are 1 to 10 times as slow.
    """
    for kind, noise in NOISES.items():
        for n in COUNTS:
            for instance in range(instances):
                rng = np.random.default_rng([seed, list(NOISES).index(kind), n, instance])
                gaps = 10 ** rng.uniform(-2.3, 0.9, n)
                if instance == instances - 1:
                    gaps = rng.uniform(0, 0.015, n)
                    gaps[-1] = 0.3
                gaps[0] = 0.0
                truth = 1.0 + rng.permutation(gaps)
                cold = 10 ** rng.uniform(0, 1, n)

                def tables(
                    rng: np.random.Generator,
                    noise: Noise = noise,
                    truth: np.ndarray = truth,
                    n: int = n,
                ) -> np.ndarray:
                    return noise(rng, 400, n) * truth

                yield Trace(f"{kind}-{n}-{instance}", truth, cold, tables)


def recorded(folder: Path, seed: int) -> Iterator[Trace]:
    """The files in `folder`: each as a whole, and as random selections of its alternatives, begun
    at any row."""
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            rows = list(csv.reader(file))
        whole = np.array(rows[1:], float)
        rng = np.random.default_rng([seed, len(path.name), whole.shape[1]])
        sizes = [n for n in COUNTS if n <= whole.shape[1]]
        for n in sizes:
            table = whole[:, rng.permutation(whole.shape[1])[:n]]

            def tables(rng: np.random.Generator, table: np.ndarray = table) -> np.ndarray:
                return np.roll(table[1:], -int(rng.integers(len(table) - 1)), axis=0)

            yield Trace(
                f"{path.stem}-{n}", np.median(table[1:], axis=0), np.ones(n), tables, table[0]
            )


@dataclass
class Outcome:
    """What a policy did on one trace, run by run."""

    regret: list[float] = field(default_factory=list)
    cold: list[float] = field(
        default_factory=list
    )  # what first calls took beyond a usual call: the part of regret
    # that everybody pays who tries an alternative at all
    settled: list[int] = field(default_factory=list)
    winners: list[int] = field(default_factory=list)


def replay(policy: Policy, trace: Trace, repeats: int, seed: int) -> Outcome:
    """Run one policy over so many tables of one trace."""
    outcome = Outcome()
    best = int(np.argmin(trace.truth))
    beyond = (trace.truth / trace.truth[best] - 1.0).tolist()
    names = [f"a{position}" for position in range(len(trace.truth))]
    for repeat in range(repeats):
        rows = trace.tables(np.random.default_rng([seed, repeat, len(names)])).tolist()
        search = policy.start(names)
        called: set[int] = set()
        regret, cold, call = 0.0, 0.0, 0
        winner = None
        while winner is None:
            position = search.ask()
            assert position is not None
            seconds = usual = rows[call % len(rows)][position]
            if position not in called:
                called.add(position)
                seconds = (
                    float(trace.first[position])
                    if trace.first is not None
                    else seconds * trace.cold[position]
                )
                if position != best:  # always having called the best costs its first call as well
                    cold += seconds - usual
            search.tell(position, seconds)
            winner = search.winner
            if call < CALLS:
                regret += beyond[position]
            call += 1
            assert call < LONGEST, f"{policy} does not settle on {trace.name}"
        outcome.regret.append(regret + max(0, CALLS - call) * beyond[winner])
        outcome.cold.append(cold / trace.truth[best])
        outcome.settled.append(call)
        outcome.winners.append(winner)
    return outcome


def good(trace: Trace, outcome: Outcome) -> float:
    """The share of decisions within 2 % of the best."""
    return float(np.mean(trace.truth[outcome.winners] <= 1.02 * trace.truth.min()))


def steady(outcome: Outcome) -> float:
    """The share of the most frequent decision."""
    return Counter(outcome.winners).most_common(1)[0][1] / len(outcome.winners)


def table(
    title: str, policies: dict[str, Policy], results: dict[str, list[tuple[Trace, Outcome]]]
) -> None:
    """Print one line a policy and number of alternatives."""
    print(f"\n{title}")
    print(
        f"{'policy':34} {'n':>4} {'traces':>6} {'good %':>7} {'regret':>8} {'ratio':>6} "
        f"{'w/cold':>6} {'settle':>6} {'steady':>9}"
    )
    reference = results[next(iter(policies))]
    for name in policies:
        for label, counts in (
            *((str(n), (n,)) for n in COUNTS),
            ("2-6", FEW),
            ("7-10", MANY),
            ("all", COUNTS),
        ):
            chosen = [(t, o) for t, o in results[name] if len(t.truth) in counts]
            peers = [o for t, o in reference if len(t.truth) in counts]
            if not chosen:
                continue
            share = float(np.mean([good(t, o) for t, o in chosen]))
            regret = float(np.mean([np.mean(o.regret) for _, o in chosen]))
            peer = float(np.mean([np.mean(o.regret) for o in peers]))
            cold = float(np.mean([np.mean(o.cold) for _, o in chosen]))
            frozen = float(np.mean([np.mean(o.cold) for o in peers]))
            settle = float(np.median([s for _, o in chosen for s in o.settled]))
            clear = [steady(o) == 1.0 for t, o in chosen if t.clear]
            print(
                f"{name:34} {label:>4} {len(chosen):6} {100 * share:7.2f} {regret:8.2f} "
                f"{regret / peer:6.2f} {(regret + cold) / (peer + frozen):6.2f} {settle:6.0f} "
                f"{sum(clear):4}/{len(clear):<4}"
            )


def reach(
    policies: dict[str, Policy], results: dict[str, list[tuple[Trace, Outcome]]], repeats: int
) -> None:
    """Print the figures over all traces beside what is to be reached."""
    for label, counts in (("2 to 6", FEW), ("7 to 10", MANY)):
        columns = []
        peer = 0.0
        for name in policies:
            chosen = [(t, o) for t, o in results[name] if len(t.truth) in counts]
            regret = float(np.mean([np.mean(o.regret) for _, o in chosen]))
            peer = peer or regret
            clear = [steady(o) for t, o in chosen if t.clear]
            columns.append(
                (
                    name[:24],
                    f"{100 * np.mean([good(t, o) for t, o in chosen]):.2f} %",
                    f"{regret / peer:.3f}",
                    f"{sum(share == 1.0 for share in clear)} of {len(clear)}",
                    f"{round(repeats * (1 - min(clear)))} of {repeats}",
                    f"{np.median([s for _, o in chosen for s in o.settled]):.0f}",
                )
            )
        titles = (
            (f"{label} alternatives", "reach"),
            ("decisions within 2 % of the best", ">= 99 %"),
            (f"regret against {next(iter(policies))}", "<= 0.40"),
            (f"traces alike in {repeats} of {repeats} runs, gap > 5 %", "all"),
            ("  other decisions on the worst of them", "0"),
            ("calls to settle, median", ""),
        )
        print()
        for (what, goal), *figures in zip(titles, *columns, strict=True):
            print(f"{what:48} {goal:>8} " + " ".join(f"{figure:>24}" for figure in figures))


def price(policies: dict[str, Policy], repeats: int, seed: int) -> None:
    """Print what a race of eleven unlike alternatives takes beyond as many calls of the best, in
    calls of the best.

    Three percent of noise; first calls are 1 to 10 times as slow, which is not counted.
    """
    truth = np.array(UNLIKE)
    print(f"\n{'a race of ' + ', '.join(f'{factor:g}' for factor in UNLIKE)}: beyond the best")
    print(f"{'policy':34} {'beyond':>8} {'calls':>6}   calls of each")
    for name, policy in policies.items():
        rng = np.random.default_rng(seed)
        calls = np.zeros(len(truth))
        for _ in range(repeats):
            rows = noisy(rng, LONGEST, len(truth)) * truth
            cold = 10 ** rng.uniform(0, 1, len(truth))
            order = rng.permutation(len(truth)).tolist()
            search = policy.start([f"a{position}" for position in order])
            called: set[int] = set()
            while (position := search.ask()) is not None:
                chosen = order[position]
                search.tell(
                    position,
                    float(rows[int(calls.sum()) % LONGEST, chosen])
                    * (1.0 if chosen in called else cold[chosen]),
                )
                called.add(chosen)
                calls[chosen] += 1
        calls /= repeats
        print(
            f"{name:34} {float(calls @ (truth - 1.0)):8.1f} {calls.sum():6.1f}   "
            f"{' '.join(f'{n:.1f}' for n in calls)}"
        )


def main() -> None:
    """Print a table over the recorded traces, one over the synthetic ones, one over both, and the
    two summaries."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="another one gives other synthetic traces and other runs",
    )
    parser.add_argument(
        "--policy", action="append", help="as `bestof` takes it; ratios are against the first"
    )
    parser.add_argument("--traces", type=Path, default=Path(__file__).parent / "traces")
    parser.add_argument(
        "--detail", action="store_true", help="every trace on which a policy is not perfect"
    )
    options = parser.parse_args()
    policies = {text: parse_policy(text) for text in options.policy or ["rounds", "race"]}
    sources = {
        "recorded": list(recorded(options.traces, options.seed)),
        "synthetic": list(synthetic(options.instances, options.seed)),
    }
    both: dict[str, list[tuple[Trace, Outcome]]] = defaultdict(list)
    for title, traces in sources.items():
        results = {
            name: [
                (trace, replay(policy, trace, options.repeats, options.seed)) for trace in traces
            ]
            for name, policy in policies.items()
        }
        table(title, policies, results)
        for name, rows in results.items():
            both[name] += rows
    table("both", policies, both)
    reach(policies, both, options.repeats)
    price(policies, options.repeats, options.seed)
    if options.detail:
        print(f"\n{'policy':34} {'trace':28} {'good %':>7} {'regret':>8} {'settle':>6} decisions")
        for name, rows in both.items():
            for trace, outcome in rows:
                if good(trace, outcome) < 1.0 or (trace.clear and steady(outcome) < 1.0):
                    ratios = " ".join(f"{ratio:.3f}" for ratio in trace.truth / trace.truth.min())
                    print(
                        f"{name:34} {trace.name:28} {100 * good(trace, outcome):7.1f} "
                        f"{np.mean(outcome.regret):8.2f} {np.median(outcome.settled):6.0f} "
                        f"{Counter(outcome.winners).most_common()} of {ratios}"
                    )


if __name__ == "__main__":
    main()

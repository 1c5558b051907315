"""Show where the time of a plan goes, step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor, nn

from bestof.html_table import html_table
from bestof.selection.duration import duration
from bestof.torch.engines.choice import EngineChoice
from bestof.torch.plan.run.plan_bytes import PlanMemory, memory_of, model_bytes
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.chosen_step import ChosenStep


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step.

    modules: the names of the modules whose weights the step reads, as in `model.named_modules()`.
    They are empty for steps without weights, and where the plan has no model any more.
    algorithm: None for PyTorch's operators, and while the choice is open. gflops: the additions and
    multiplications of a direct convolution, whatever the algorithm does; 0 for other steps.
    """

    name: str
    problem: str
    algorithm: str | None
    seconds: float
    share: float
    gflops: float
    modules: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All steps of a plan, in the order in which they run; `seconds` is their sum.

    choice: what was measured of engines, with `optimize(..., engines=)`. If another engine than the
    plan was chosen, there are no steps, `seconds` is its time, and `memory` is None.
    """

    steps: tuple[StepReport, ...]
    seconds: float
    memory: PlanMemory | None
    choice: EngineChoice | None = None

    def lines(self) -> Iterator[str]:
        """Yield plain text: the engines, then a line a step, then the sums."""
        if self.choice is not None:
            yield from self.choice.lines()
        if self.memory is not None:
            yield from self._lines_of_plan(self.memory)

    def _lines_of_plan(self, memory: PlanMemory) -> Iterator[str]:
        width = max((len(step.problem) for step in self.steps), default=0)
        named = max((len(step.modules) for step in self.steps), default=0)
        named = max(named, len("module")) + 2 if named else 0
        yield (
            f"{'module' if named else '':<{named}}{'problem':<{width}}  {'algorithm':<10}  "
            f"{'time':>8}  {'share':>6}  {'GFLOP/s':>8}"
        )
        for step in self.steps:
            gflops = f"{step.gflops:8.1f}" if step.gflops else " " * 8
            yield (
                f"{step.modules:<{named}}{step.problem:<{width}}  {step.algorithm or '':<10}  "
                f"{duration(step.seconds):>8}  {step.share:6.1%}  {gflops}"
            ).rstrip()
        yield f"{duration(self.seconds)} in {len(self.steps)} steps"
        yield memory.line()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row a step."""
        rows = [
            (
                step.modules,
                step.problem,
                step.algorithm or "",
                duration(step.seconds),
                f"{step.share:.1%}",
                f"{step.gflops:.1f}" if step.gflops else "",
            )
            for step in self.steps
        ]
        headings = ("module", "problem", "algorithm", "time", "share", "GFLOP/s")
        title = f"{duration(self.seconds)} in {len(self.steps)} steps"
        notes = [] if self.choice is None else list(self.choice.lines())
        notes += [] if self.memory is None else [self.memory.line()]
        return html_table(title, headings, rows, notes=notes)


def explain(
    program: Program, inputs: Sequence[Tensor], repeats: int, model: nn.Module | None
) -> Explanation:
    """Return the explanation of a program: medians of `repeats` runs, each step timed.

    model: the model that the plan keeps.
    """
    owners = _owners(model)
    binding = program.borrow()
    seconds: list[list[float]] = [[] for _ in binding.steps]
    try:
        for _ in range(repeats):
            binding.slots[: len(inputs)] = list(inputs)
            for step, times in zip(binding.steps, seconds, strict=True):
                start = time.perf_counter()
                step.run()
                times.append(time.perf_counter() - start)
        binding.refresh()
        medians = [median(times) for times in seconds]
        total = sum(medians)
        steps = []
        for step, took in zip(binding.steps, medians, strict=True):
            one = step.chosen
            flops = 0 if one is None else one.flops
            algorithm = None if one is None else one.algorithm
            steps.append(
                StepReport(
                    step.name,
                    step.kind,
                    algorithm,
                    took,
                    took / total,
                    flops / took / 1e9,
                    "" if one is None else _modules(one, owners),
                )
            )
        return Explanation(tuple(steps), total, memory_of(program, model_bytes(model)))
    finally:
        program.give_back(binding)


def _owners(model: nn.Module | None) -> dict[int, str]:
    """Return the names of the modules that hold the parameters, by the addresses of these."""
    named = {} if model is None else dict(model.named_parameters())
    return {
        one.untyped_storage().data_ptr(): name.rpartition(".")[0] for name, one in named.items()
    }


def _modules(step: ChosenStep, owners: dict[int, str]) -> str:
    """Return the names of the modules whose weights a step reads."""
    weights = [one for weights, _ in step.reads for one in weights.watched]
    found = (owners.get(one.untyped_storage().data_ptr(), "") for one in weights if not one.is_meta)
    names = [name for name in found if name]
    shared = _shared_prefix(names)
    return shared + ", ".join(name.removeprefix(shared) for name in names)


def _shared_prefix(names: Sequence[str]) -> str:
    """Return the modules that all of several names begin with, with the last dot: "block1."."""
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return ""
    first, last = min(parts), max(parts)
    count = next((i for i, one in enumerate(first) if i == len(last) or one != last[i]), 0)
    return "".join(f"{one}." for one in first[:count])

"""What one rank does in the tests of ranks: `rank_program.py NAME RANK COUNT PORT FOLDER`.

Each rank is a fresh interpreter. It writes what its part returned to `FOLDER/RANK.json`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import bestof.torch as bt
from bestof import BestOf
from bestof.selection import report_all, use_store
from bestof.selection.state import registry

SECONDS = {"as is": 3.0, "good": 2.2, "best": 2.0, "awful": 9.0}
WAIT = 1000.0
PROBLEMS = 50
MOST_STEPS = 100_000  # a loaded machine may need many until another rank has looked at the log


class Toy:
    """A selector whose alternatives take time on a clock of its own, with the noise of this
    rank."""

    def __init__(self, rank: int, noise: float = 0.5) -> None:
        self.now = 0.0
        self.seconds = dict(SECONDS)
        self.noise = noise
        self.random = random.Random(rank)
        self.changes = False  # whether the best one is slower in each race from now on
        alternatives = [(name, self.alternative(name)) for name in SECONDS]
        self.selector = BestOf(
            "toy", alternatives, lambda x: x, policy="race", clock=lambda: self.now
        )

    def alternative(self, name: str) -> Callable[[int], None]:
        def call(problem: int) -> None:
            if self.changes and self.decision(problem) is None:
                self.seconds["best"] = 8.0
            self.now += self.seconds[name] * (1.0 + self.noise * self.random.random())

        return call

    def decision(self, problem: int = 5) -> str | None:
        return self.selector.explain(problem).decision

    def decisions(self, problems: Sequence[int]) -> list[str | None]:
        return [self.decision(problem) for problem in problems]


class Training:
    """Steps of an optimizer that ranks make together, by an all-reduce as DDP's."""

    def __init__(self, together: bool = True) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.optimizer = torch.optim.SGD([self.weight], 0.1)
        self.together = together

    def step(self) -> None:
        self.weight.grad = torch.ones(1)
        if self.together:
            dist.all_reduce(self.weight.grad)
        time.sleep(0.002)
        self.optimizer.step()


def all_of(done: bool) -> bool:
    """Return whether all ranks are done."""
    least = torch.tensor([float(done)])
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return bool(least.item())


def noisy(seed: int, problems: int = PROBLEMS) -> Any:
    """So many problems, each with the noise of this rank."""
    toy, training = Toy(seed), Training()
    for step in range(MOST_STEPS):
        for problem in range(problems):
            toy.selector(problem)
        training.step()
        if step % 20 == 19 and all_of(None not in toy.decisions(range(problems))):
            break
    return toy.decisions(range(problems))


def drifts(rank: int) -> Any:
    """The best alternative becomes slow, and only rank 0 meets the change by itself."""
    toy, training = Toy(rank, noise=0.02), Training()
    history: list[str | None] = []
    for step in range(MOST_STEPS):
        toy.selector(5)
        training.step()
        if step % 20 == 19:
            if not history and all_of(toy.decision() is not None):
                history.append(toy.decision())
                toy.changes = True
                if rank == 0:
                    toy.seconds["best"] = 8.0
            elif history and all_of(toy.decision() not in (None, history[0])):
                break
    return [*history, toy.decision()]


def dies(rank: int) -> Any:
    toy, training = Toy(rank), Training(together=False)
    dist.barrier()
    for step in range(MOST_STEPS):
        if rank == int(os.environ["DIES"]) and step == 2:
            os._exit(9)
        toy.selector(5)
        training.step()
        if toy.decision() is not None:
            break
    return toy.decision()


def uneven(rank: int) -> Any:
    """Rank 1 begins late, is slow, and has no last batches."""
    toy, training = Toy(rank), Training(together=False)
    if rank == 1:
        time.sleep(0.5)
    for step in range(MOST_STEPS):
        for _ in range(1 + (rank == 0) * (step % 3)):
            toy.selector(5)
        if rank == 0 and step % 10 == 9:
            toy.selector(7)
        if rank == 1:
            time.sleep(0.001)
        training.step()
        if toy.decision() is not None and (rank == 1 or toy.decision(7) is not None):
            break
    return toy.decisions([5, 7])


def trains(rank: int) -> Any:
    """Train with DDP, untuned and tuned; return both losses and the decisions of all ranks."""
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415  slow

    losses = []
    for tuned in (False, True):
        if not tuned:
            bt.disable()
        else:
            bt.set_config({"ranks": {"enable": True}})
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        )
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
        data = torch.Generator().manual_seed(rank)

        def train(
            step: int,
            data: torch.Generator = data,
            wrapped: torch.nn.Module = wrapped,
            optimizer: torch.optim.Optimizer = optimizer,
        ) -> torch.Tensor:
            size = 3 if step % 5 == 4 else 4  # the last batch of an epoch is smaller
            x = torch.randn(size, 3, 12, 12, generator=data)
            loss = (wrapped(x) - x.mean(1, keepdim=True)[..., 1:-1, 1:-1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        whole = [train(step) for step in range(100)][-1].clone()
        dist.all_reduce(whole)
        losses.append(whole.item())
    return losses, decisions_of_all(train)


def examples(rank: int) -> Any:
    """Train the networks of `examples/train_ranks.py`; return the losses, untuned and tuned."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
    import train_ranks  # noqa: PLC0415  slow

    found = {}
    for model in os.environ["MODELS"].split(","):
        # With larger rates, networks of ReLUs let rounding errors grow. After 100 steps, two of
        # PyTorch's own back-ends differ by 0.003 for ResNet34 at 0.001, and by 0.1 for VGG16 at
        # 0.01. For VGG16 at 0.0001, twelve starts one rounding apart differ by 6e-6.
        rate = {"resnet34": 3e-4, "vgg16": 1e-4}.get(model, 0.01)
        found[model] = []
        for tuned in (False, True):
            bt.disable()
            if tuned:
                kernel = {"product": True, "attention": True}
                bt.set_config({"kernel": kernel, "ranks": {"enable": True}})
            found[model].append(train_ranks.train(model, width=4, batch=4, steps=100, rate=rate))
    return found, sum(one.trials for one in report_all().selectors)


def decisions_of_all(train: Callable[[int], torch.Tensor]) -> list[dict[str, str]]:
    """Train on until all ranks have decided alike: real times may reopen a race at any moment.

    A problem that a rank has not decided is left out: if a layer has decided for a joint
    alternative, the passes by themselves are not called any more.
    """
    gathered: list[Any] = [None] * dist.get_world_size()
    for step in range(MOST_STEPS):
        train(step)
        if step % 20 == 19:
            mine = {
                f"{selector.name} {problem.problem!r}": problem.decision
                for selector in registry.selectors()
                for problem in selector.report().problems
                if problem.decision is not None
            }
            dist.all_gather_object(gathered, mine)
            decided = {(key, one[key]) for one in gathered for key in one}
            alike = len(decided) == len({key for key, _ in decided})
            if alike and min(map(len, gathered)) >= 6:
                break
    return gathered


def join(rank: int, count: int, port: int, job: str = "") -> None:
    """Make this process a rank of a job that shares its key-value store with other jobs."""
    seconds = timedelta(seconds=WAIT)
    hosts = os.environ.get("STORE_HOST") == str(rank)
    server = dist.TCPStore("127.0.0.1", port, count, hosts, seconds, wait_for_workers=False)
    store = dist.PrefixStore(job, server) if job else server
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=seconds)
    bt.set_config({"ranks": {"enable": True}})


def jobs(rank: int, count: int, port: int) -> list[Any]:
    """Make so many jobs, one after the other; return what this rank decided in each.

    Each rank of each job is a process of its own. It is forked before it has threads or a group, so
    it need not import PyTorch, which takes most of a job's time.
    """
    found = []
    for job in range(int(os.environ["JOBS"])):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                join(rank, count, port, f"job {job}")
                result = noisy(rank + 100 * job, problems=3)
                os.write(writer, json.dumps(result).encode())
                dist.barrier()
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        with open(reader, "rb") as file:
            told = file.read()
        ended, status = os.waitpid(child, 0)
        assert (ended, status) == (child, 0)
        found.append(json.loads(told))
    return found


def main(name: str, rank: int, count: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    use_store(None)
    if name == "jobs":
        (folder / f"{rank}.json").write_text(json.dumps(jobs(rank, count, port)))
        return
    join(rank, count, port)
    result = globals()[name](rank)
    (folder / f"{rank}.json").write_text(json.dumps(result))
    if name != "dies":
        dist.barrier()
        dist.destroy_process_group()
    elif os.environ.get("STORE_HOST") == str(rank):
        # The store ends with this process. Before, the other ranks must have decided.
        left = {str(other) for other in range(count)} - {os.environ["DIES"]}
        while not all((folder / f"{other}.json").exists() for other in left):
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5]))  # type: ignore[arg-type]

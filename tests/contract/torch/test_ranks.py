"""Real ranks over Gloo: what they decide, and what happens where one of them is slow, late or
gone."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bestof.torch as bt
from bestof import BestOf
from bestof.selection import use_store

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="this PyTorch has no Gloo"
)

SECONDS = {"as is": 3.0, "good": 2.2, "best": 2.0, "awful": 9.0}
WAIT = 60.0

Body = Callable[[int, Path], Any]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ranks(count: int, body: Body, folder: Path, last_words: bool = True) -> list[Any]:
    """Run `body` on so many ranks, forked from here; return what it returned, None for a rank that
    died."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=begin, args=(rank, count, port, body, folder, last_words))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + 120
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    stuck = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
    assert not stuck, f"ranks {stuck} did not end"
    files = [folder / f"{rank}.json" for rank in range(count)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def begin(rank: int, count: int, port: int, body: Body, folder: Path, last_words: bool) -> None:
    """The life of one rank. It ends without the handlers of the test process, whose fork it is."""
    status = 1
    try:
        torch.set_num_threads(1)
        use_store(None)
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=WAIT),
        )
        bt.set_config({"ranks": {"enable": True}})
        result = body(rank, folder)
        (folder / f"{rank}.json").write_text(json.dumps(result))
        if last_words:
            dist.barrier()
        else:
            time.sleep(0.2)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Toy:
    """A selector whose alternatives take time on a clock of its own, with the noise of this
    rank."""

    def __init__(self, rank: int, seed: int = 0, noise: float = 0.5) -> None:
        self.now = 0.0
        self.seconds = dict(SECONDS)
        self.noise = noise
        self.random = random.Random(1000 * seed + rank)
        self.called: list[str] = []
        alternatives = [(name, self.alternative(name)) for name in SECONDS]
        self.selector = BestOf(
            "toy", alternatives, lambda x: x, policy="race", clock=lambda: self.now
        )

    def alternative(self, name: str) -> Callable[[int], None]:
        def call(problem: int) -> None:
            self.called.append(name)
            self.now += self.seconds[name] * (1.0 + self.noise * self.random.random())

        return call

    def decision(self, problem: int = 5) -> str | None:
        return self.selector.explain(problem).decision


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


def dies(rank: int, folder: Path) -> Any:
    toy, training = Toy(rank), Training(together=False)
    dist.barrier()
    for step in range(3000):
        if rank == int(os.environ["DIES"]) and step == 2:
            os._exit(9)
        toy.selector(5)
        training.step()
        if toy.decision() is not None:
            break
    return toy.decision()


@pytest.mark.long
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_holds_up_nobody(
    who: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rank 0 takes the store along: then each of the others decides for itself.
    monkeypatch.setenv("DIES", str(who))
    found = ranks(3, dies, tmp_path, last_words=False)
    assert found[who] is None
    left = [decision for rank, decision in enumerate(found) if rank != who]
    assert all(decision is not None for decision in left)
    assert who == 0 or left[0] == left[1]


def uneven(rank: int, folder: Path) -> Any:
    toy, training = Toy(rank), Training(together=False)
    if rank == 1:
        time.sleep(0.5)  # begins late, and is slow
    for step in range(3000):
        for _ in range(1 + (rank == 0) * (step % 3)):
            toy.selector(5)
        if rank == 0 and step % 10 == 9:
            toy.selector(7)  # the last batch of an epoch, which the other rank does not have
        if rank == 1:
            time.sleep(0.001)
        training.step()
        if toy.decision() is not None and (rank == 1 or toy.decision(7) is not None):
            break
    return toy.decision(), toy.decision(7)


def test_unequal_batches_a_late_and_a_slow_rank(tmp_path: Path) -> None:
    first, second = ranks(2, uneven, tmp_path)
    assert first[0] == second[0] is not None
    assert first[1] is not None
    assert second[1] is None


def trains(rank: int, folder: Path) -> Any:
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    losses = []
    for tuned in (False, True):
        if tuned:
            bt.set_config({"ranks": {"enable": True}})
        else:
            bt.disable()
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        )
        wrapped = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), 0.05)
        data = torch.Generator().manual_seed(rank)
        for step in range(100):
            size = 3 if step % 5 == 4 else 4  # the last batch of an epoch is smaller
            x = torch.randn(size, 3, 12, 12, generator=data)
            loss = (wrapped(x) - x.mean(1, keepdim=True)[..., 1:-1, 1:-1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item())
    return losses


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ddp_trains_to_the_same_loss(count: int, tmp_path: Path) -> None:
    for untuned, tuned in ranks(count, trains, tmp_path):
        assert abs(untuned - tuned) <= 1e-3

"""Plans in a forked child whose parent was planning or packing weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FORKS = """
import os, signal, threading, torch
import bestof.torch as bt
from bestof.torch.plan import optimized
from bestof.torch.plan.run import program
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
torch.set_num_threads(1)
model, x = torch.nn.Conv2d(4, 4, 3).eval(), torch.randn(1, 4, 8, 8)
plan = bt.optimize(model, (x,))
begun, end = threading.Event(), threading.Event()
def wait():
    begun.set()
    end.wait()
{held}
thread = threading.Thread(target=hold)
thread.start()
begun.wait()
if (child := os.fork()) == 0:
    signal.alarm(250)
    let_go()
    {used}
    os._exit(0 if good else 1)
print(os.waitpid(child, 0)[1])
end.set()
thread.join()
"""

_PLANNING = """
plan_inputs = optimized.plan_inputs
def slow(*given, **named):
    wait()
    return plan_inputs(*given, **named)
optimized.plan_inputs = slow
def hold(): plan.prepare([(torch.randn(2, 4, 8, 8),)])
def let_go(): optimized.plan_inputs = plan_inputs
"""
_PLANNED = """
x = torch.randn(3, 4, 8, 8)
    plan.prepare([(x,)])
    good = torch.allclose(plan(x), model(x), atol=1e-4)
"""

_BINDING = """
made = next(iter(plan._programs.values())).program
made.bind_anew()
bind = made._bind
def slow():
    wait()
    return bind()
made._bind = slow
def hold(): plan(x)
def let_go(): made._bind = bind
"""
_BOUND = """
    good = torch.allclose(plan(x), model(x), atol=1e-4)
"""

_PACKING = """
weights = FrozenWeights(model.weight, None, None, 1)
def slow():
    wait()
    return Packed(model.weight)
def hold(): weights.kept(("slow",), slow)
def let_go(): pass
"""
_PACKED = """
    good = weights.kept(("quick",), lambda: Packed(model.weight)).layout is model.weight
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("held", "used"),
    [
        pytest.param(_PLANNING, _PLANNED, marks=pytest.mark.long),
        (_BINDING, _BOUND),
        pytest.param(_PACKING, _PACKED, marks=pytest.mark.long),
    ],
    ids=["planning", "binding", "packing"],
)
def test_a_forked_child_answers_though_its_parent_held_a_lock(held: str, used: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKS.format(held=held, used=used.strip())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0"]


_OWN = """
import os
from bestof.torch.process.fork_lock import ForkLock
lock = ForkLock()
with lock:
    child = os.fork()
if child == 0:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.long
def test_a_thread_that_forks_under_its_own_lock_still_holds_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _OWN], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0"], done.stderr

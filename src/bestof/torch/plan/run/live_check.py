"""Compare a settled step of a running plan now and then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.state.registry import Defaults
from bestof.selection.state.sample_interval import calls_between
from bestof.torch.plan.steps.binding import Binding
from bestof.torch.plan.steps.chosen_step import ChosenStep, Runner


def with_live_check(binding: Binding, bind_anew: Callable[[], None]) -> list[Runner]:
    """Return what a call runs; one step also compares its result, if the account allows it.

    The next question is asked after as many calls as lie between two samples of a selector. Steps
    take turns: more of them than the account allows in half a minute must all be met.
    bind_anew: called once a step has got another alternative. Other threads' calls end as they
    began.
    """
    steps, checks = binding.steps, Defaults.live_checks
    now, calls, (before, calls_before) = checks.clock(), binding.calls, binding.asked
    seconds = (now - before) / (calls - calls_before)  # of a call, and of what lies between two
    binding.asks_at, binding.asked = calls + calls_between(seconds, calls), (now, calls)
    for turn in range(1, len(steps) + 1):
        place = (binding.checked + turn) % len(steps)
        one = steps[place].chosen
        if one is not None and one.is_comparable and checks.is_due(_item(one)):
            binding.checked = place
            runs = list(binding.runs)
            runs[place] = partial(_compared, one, bind_anew)
            return runs
    return binding.runs


def _item(one: ChosenStep) -> tuple[str, int]:
    """Return what names a step in the account, without keeping its weights alive."""
    return "step of a plan", id(one.choice)


def _compared(one: ChosenStep, bind_anew: Callable[[], None]) -> None:
    """Run a step after a comparison of its results; by PyTorch, if they are wrong."""
    checks, wrong = Defaults.live_checks, None
    started = checks.clock()
    try:
        wrong = one.complaint()
    except (RuntimeError, MemoryError):  # memory is short
        reraise_from_outside()
    finally:
        checks.book(_item(one), checks.clock() - started)
    if wrong is not None and one.algorithm is not None:
        one.give_up(wrong)
        bind_anew()
    one.run()

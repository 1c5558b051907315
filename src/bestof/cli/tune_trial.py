"""Runs a script for `bestof tune`: `-m bestof.cli.tune_trial PARENT SETTINGS ORDERS REPORTS ...`.

PARENT is the process of `bestof tune`. If it is killed, the kernel ends this process too. Between
turns the script waits for an order from the file descriptor ORDERS, and writes its times to
REPORTS.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from bestof import selection
from bestof.cli.after_import import after_import
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.recipe.channel import Channel
from bestof.recipe.settings import Settings, parse_settings
from bestof.selection.state.registry import Defaults
from bestof.worker.end_with import end_with


def main(argv: Sequence[str]) -> int:
    """Run the script that the arguments name."""
    if not end_with(int(argv[0])):
        return 1
    os.environ["BESTOF"] = "off"  # what the user has set would tune the script as it stands too
    settings = parse_settings(json.loads(argv[1]), "settings")
    _, module, rest = split_arguments(argv[4:], ())
    script = find_module(rest[0], rest[1:]) if module else find_script(rest[0], rest[1:])
    channel = Channel("bestof tune", int(argv[2]), int(argv[3]))
    begin = partial(_begin, settings, channel)
    return script.run(partial(after_import, "torch", begin))


def _begin(settings: Settings, channel: Channel) -> None:
    from bestof.recipe.apply import apply  # noqa: PLC0415 - the program has imported torch
    from bestof.recipe.step_clock import StepClock  # noqa: PLC0415 - as above

    def pause(seconds: float | None) -> float:
        selectors = selection.report_all().selectors
        report = {
            "seconds": seconds,
            "trials": sum(one.trials for one in selectors),
            "chosen": sorted({one.selector for one in selectors if one.problems}),
            "facts": asdict(clock.facts()),
        }
        return channel.exchange(report)

    Defaults.budget.is_on = False  # steps without a trial end a search
    clock = StepClock(pause)
    # The clock's hooks come first, so that a step's time has the work of all others.
    clock.start()
    apply(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

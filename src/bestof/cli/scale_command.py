"""The command lines of a split: the one that `bestof scale` times, and the one that it prints."""

from __future__ import annotations

import os
import sys

from bestof.scale.environment_search import Variables
from bestof.scale.split import Split

PLACE = "{batch}"
"""In the arguments of the script, the place of the samples of a rank's step."""


def trial_command(
    script: list[str], variables: Variables, split: Split, orders: int, reports: int
) -> list[str]:
    """Return the command line that times a script's ranks for a `Contestant`.

    variables: of the environment, set before the launcher starts. orders, reports: the descriptors
    of the `Contestant`.
    """
    module = ["-m", "bestof.cli.scale_trial", split.pins(), str(orders), str(reports)]
    # The launcher would make a folder for logs, and leave it when it is killed.
    launcher = ["bestof.cli.scale_launcher", str(os.getpid())]
    options = _options(split, "--log-dir", os.devnull)
    # The dynamic linker reads some of the variables before Python runs.
    environment = ["env", *(f"{name}={value}" for name, value in variables.items())]
    command = [sys.executable, "-m", *launcher, *options, *module, *_filled(script, split)]
    return [*environment, *command] if variables else command


def launched_command(script: list[str], split: Split) -> list[str]:
    """Return the command line that a user starts: the split's ranks, each on its processors."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *_options(split)]
    return [*launcher, "-m", "bestof", "pinned", split.pins(), *_filled(script, split)]


def _options(split: Split, *more: str) -> list[str]:
    return ["--standalone", "--nproc-per-node", str(len(split.ranks)), *more]


def _filled(script: list[str], split: Split) -> list[str]:
    if split.batch is None:
        return script
    return [script[0], *(one.replace(PLACE, str(split.batch)) for one in script[1:])]

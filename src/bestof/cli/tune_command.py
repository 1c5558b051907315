"""The command line by which `bestof tune` runs a script with some settings."""

from __future__ import annotations

import json
import os
import sys

from bestof.recipe.settings import Settings


def trial_command(script: list[str], settings: Settings, orders: int, reports: int) -> list[str]:
    """Return the command line for a `Contestant`, whose descriptors are `orders` and `reports`."""
    told = json.dumps(settings.changes())
    return [
        *(sys.executable, "-m", "bestof.cli.tune_trial", str(os.getpid())),
        *(told, str(orders), str(reports)),
        *script,
    ]

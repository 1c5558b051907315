"""What the options of `bestof run` order: for its own process, and for those that this one starts.

The others get the options by the environment. `bestof_autoload` gives them to `obey` there when
PyTorch is imported. Processes without PyTorch find the store and the lock only.
"""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bestof import selection
from bestof.accuracy import Accuracy
from bestof.cli.kept import named
from bestof.cli.lock_options import LockOptions
from bestof.configuration import Configuration, parse_configuration
from bestof.errors import InvalidArgument
from bestof.recipe.recipe import read_recipe
from bestof.recipe.settings import Settings
from bestof.selection.state.lock import current_lock
from bestof.selection.store.postgresql_url import is_server_url
from bestof_autoload import tell

COMMAND = "bestof run"
"""Begins the value of the variable BESTOF that holds options of `bestof run`."""

UNTUNED = ("PyTorch", "every operation", "it is not tuned, as said above")
"""What is missing in the lock if PyTorch could not be tuned."""

_TEXTS = ("accuracy", "policy")
_PATHS = ("config", "locked", "write_lock")


@dataclass(frozen=True, slots=True)
class RunOrders:
    """The checked options. tune: what to call once PyTorch is imported. told: for the summary.

    environment: the variables by which the processes that this one starts get the same orders.
    """

    tune: Callable[[], None]
    locks: LockOptions
    told: tuple[str, ...]
    environment: dict[str, str]

    @classmethod
    def of(cls, options: argparse.Namespace) -> RunOrders:
        """Read what the options name, and set what holds without PyTorch: store, policy and lock.

        Raises InvalidArgument for what cannot be used.
        """
        configuration = None if options.config is None else parse_configuration(options.config)
        if configuration is not None:
            options.locked = options.locked or configuration.locked
            # The program may change its directory, and this may be a relative path.
            configuration = replace(configuration, locked=None)
        locks = LockOptions.of(options)
        if options.policy is not None:
            selection.use_policy(selection.parse_policy(options.policy))
        # `bestof tune` has measured the first process, and nothing was tuned in the others.
        environment = {"BESTOF": "off" if options.recipe else _written(options)}
        if options.store is not None:
            store = named(options.store)
            selection.use_store(store)
            shown = "off" if store is None else store.url  # a server's hides the password
            environment["BESTOF_STORE"] = options.store if is_server_url(options.store) else shown
        if locks.lock is not None:  # also if the environment names it: perhaps by a relative path
            environment["BESTOF_LOCKED"] = locks.lock.path
        if options.verbose:
            _tell_all()
        if options.recipe is None:
            tune = partial(_tune, configuration, options.accuracy)
            return cls(tune, locks, (), environment)
        if options.config is not None or options.accuracy is not None:
            raise InvalidArgument(
                "--recipe sets what --config and --accuracy set; pass one of them"
            )
        recipe = read_recipe(Path(options.recipe))
        told = f"  the recipe {options.recipe} sets {recipe.chosen() or 'nothing'}"
        return cls(partial(_apply, recipe.settings), locks, (told,), environment)

    def begin(self) -> None:
        """Tune. The program has imported PyTorch."""
        with suppress(Exception):  # the program must run; only names of modules are missing then
            from bestof.torch.dispatch import met_modules  # noqa: PLC0415 - torch is imported

            met_modules.MET_MODULES.start()
        self.tune()


def _written(options: argparse.Namespace) -> str:
    """Return the options as another process reads them, in any directory."""
    words = []
    for name in (*_TEXTS, *_PATHS):
        value = getattr(options, name)
        if value is not None:
            told = os.path.abspath(value) if name in _PATHS else value
            words += [f"--{name.replace('_', '-')}", told]
    return shlex.join([*COMMAND.split(), *words, *(["--verbose"] if options.verbose else [])])


def _tell_all() -> None:
    """Write what the logger of bestof says to the standard error output."""
    handler = logging.StreamHandler()
    form = "bestof %(asctime)s.%(msecs)03d %(message)s"
    handler.setFormatter(logging.Formatter(form, "%H:%M:%S"))
    logger = logging.getLogger("bestof")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # the program may have handlers of its own


def _apply(settings: Settings) -> None:
    try:
        from bestof.recipe.apply import apply  # noqa: PLC0415 - the program has imported torch

        apply(settings)
    except Exception as error:  # the program must run even if bestof fails
        tell(f"bestof: no recipe is applied: {type(error).__name__}: {error}")


def _tune(configuration: Configuration | None, accuracy: Accuracy | None) -> None:
    try:
        import bestof.torch as integration  # noqa: PLC0415 - the program has imported torch

        if configuration is not None:
            integration.set_config(configuration)
        elif accuracy is None:
            integration.enable()
        else:
            integration.enable({"kernel": {"accuracy": accuracy}})
        if accuracy is not None:
            # The program may call `enable` too. The order must hold against its accuracy.
            from bestof.torch.enable import order_accuracy  # noqa: PLC0415 - as above

            order_accuracy(accuracy)
    except Exception as error:  # the program must run even if bestof fails
        tell(f"bestof: PyTorch is not tuned: {type(error).__name__}: {error}")
        lock = current_lock()
        if lock is not None:  # `--strict` must not take it for success
            selector, problem, why = UNTUNED
            lock.missing[selector, problem] = why

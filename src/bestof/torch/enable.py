"""Tuning for the whole process, or for a block."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import torch

from bestof.accuracy import Accuracy, parse_accuracy
from bestof.configuration import (
    EVERYTHING,
    Configuration,
    ConfigurationLike,
    parse_configuration,
)
from bestof.errors import InvalidArgument
from bestof.selection.notice import warn
from bestof.selection.policies import Window
from bestof.selection.state.lock import current_lock, set_lock
from bestof.selection.state.registry import Defaults, use_lock
from bestof.selection.store import import_default_store
from bestof.torch.dispatch.overrides import make_overrides, operation_overrides, overrides
from bestof.torch.dispatch.skipped_modules import SKIPPED_MODULES
from bestof.torch.ops import table
from bestof.torch.plan.algorithms.table import offered_names
from bestof.torch.process.data_loading.interception import follow
from bestof.torch.process.data_loading.tuning import Bounds
from bestof.torch.process.freed_memory import hand_back_freed, keep_freed
from bestof.torch.process.layout.interception import tune_layouts
from bestof.torch.process.neighbours import NEIGHBOURS
from bestof.torch.process.ranks.agreement import Agreement
from bestof.torch.process.steps import count_steps
from bestof.torch.process.threads import FittedThreads, Lowered
from bestof.torch.rows.entry_points import load_entry_points
from bestof.torch.rows.offer import Offer, check_offer, make_offer, only_pytorch


class _State:
    lock = threading.Lock()
    everywhere: Configuration | None = None  # what `enable` was called with; None while it is off
    ordered: Accuracy | None = (
        None  # from outside the program, whose own configurations it then stands above
    )
    blocks: tuple[
        tuple[object, Configuration], ...
    ] = ()  # `with` blocks that are open and were not disabled
    # What holds for loaders and layouts while kernels are off.
    without_kernels: Configuration | None = None
    agreement: Agreement | None = None
    keeps_freed: bool = False  # what the allocator was told
    threads = FittedThreads()
    windows: ClassVar[dict[tuple[int, int], Window]] = {}
    told: ClassVar[set[str]] = set()  # why operations are left out, as the user knows


def enable(config: ConfigurationLike = None) -> None:
    """Choose the kernels of every operation in the table from now on, in training and inference.

    The table is `ops/table.py`: convolutions, matrix products, attention, poolings and others on
    the CPU; if the configuration says so, also 2-D convolutions on CUDA devices. With glibc, freed
    memory stays in the process: later allocations meet no page faults, but the process stays as
    large as at its peak.
    If PyTorch has more threads than affinity and the quota of the control group allow, bestof
    lowers their number.

    config: see `set_config`. Enabling again replaces the configuration for every thread; omitted
    keys take their defaults. Decisions and evidence stay.
    Raises InvalidArgument for an unusable configuration, TorchError if PyTorch is too old.
    """
    configuration = _enabling(config)
    _lock(configuration)
    with _State.lock:
        _State.everywhere, _State.without_kernels = configuration, None
        _apply(threads=True)


def disable() -> None:
    """Put PyTorch's own kernels back, also inside `enabled` blocks. Decisions and evidence stay.

    Disabling twice is the same as once. Running calls end as they began.
    """
    with _State.lock:
        _State.everywhere = _State.without_kernels = None
        _State.blocks = ()
        _apply()


@contextmanager
def enabled(config: ConfigurationLike = None) -> Iterator[None]:
    """Tune inside a `with` block, in every thread of the process; blocks may nest.

    config: see `set_config`. The configuration of the innermost block holds. A block leaves the
    allocator and the threads unchanged, whatever `memory` and `threads` say. Raises what `enable`
    raises.
    """
    token, configuration = object(), _enabling(config)
    if configuration.locked is not None:
        raise InvalidArgument(
            "config: kernel.locked: a lock holds for the whole process; pass it to enable()"
        )
    with _State.lock:
        _State.blocks = (*_State.blocks, (token, configuration))
        _apply()
    try:
        yield
    finally:
        with _State.lock:
            _State.blocks = tuple(block for block in _State.blocks if block[0] is not token)
            _apply()


def set_config(config: ConfigurationLike) -> None:
    """Configure the process by a dict, a JSON file's path, or None: everything.

    `{"kernel": {"enable": true, "accuracy": "float32", "packed_mib": 512, "pooling": true,
    "product": true, "attention": true, "cuda": false, "only": ["im2row"], "without": [],
    "skip_modules": [], "locked": null, "tuning_range": null, "live_checks": true, "budget": 0.05,
    "memory_mib": null}, "memory": {"keep_freed": true}, "threads": {"fit": true, "neighbours":
    true}, "dataloader": {"enable": true, "tuning_steps": 500, "seconds": 30, "workers": [0, 8]},
    "layout": {"enable": true}, "ranks": {"enable": true}}`.
    Omitted keys take their defaults. CUDA, data loading and layout are off by default.

    enable: false puts PyTorch's own kernels back.
    accuracy: `exact` (PyTorch's bits), `float32` (the error bounds of float32), or `relaxed` (also
        Winograd F(6) and bfloat16 inside).
    packed_mib: the most memory for packed weights in inference; 0 for none.
    pooling: choose for maximum and average pooling too. Their results are the same bits.
    product: choose for matrix products too: linear layers, `matmul`, `einsum`.
    attention: choose for attention too: `scaled_dot_product_attention`.
    cuda: choose for 2-D convolutions on CUDA devices too.
    only: the rows that are tried, by their names in reports, wherever they can run. PyTorch's own
        kernels stay, and race with them. All rows by default.
    without: rows that are never tried, and operations that are left to PyTorch, by their names in
        reports. Plans that are made from now on obey `only` and `without` too.
    skip_modules: patterns of names of modules, as in `model.named_modules()`, such as "layer1.*".
        PyTorch computes their calls and gradients, in plans that are made later too. Compiled
        models are not affected.
    locked: a lock file. Every selector of the process takes the decisions in it, and measures
        nothing, until the process ends; see docs/control.md. Data loading and layout stay as they
        are then, and ranks need no agreement.
    tuning_range: [start, stop], steps of the program. Before them, PyTorch's own kernels answer; in
        them, alternatives are tried; after them, the best so far is taken. Steps are those of
        PyTorch's optimizers, or the calls of `step`.
    live_checks: compare results of settled calls with PyTorch's, for at most 1 % of the time.
    budget: the share of the time that trials may cost, or None for no bound.
    memory_mib: the most memory for scratch, packed weights and kept matrices together. A row that
        needs more in one call is not tried.
    keep_freed: keep freed memory in the process until `disable`. Settings of the user in the
        environment variables of the C library stand above it.
    fit: lower PyTorch's threads, until `disable`, to what affinity and quota allow. They are never
        raised, and a number that the program sets afterwards stays.
    neighbours: while other processes want the same processors, let waiting threads sleep soon, and
        let plans try fewer threads.
    dataloader: tune new DataLoaders of map-style datasets as `tune_dataloader` does. This also
        holds if kernel.enable is false.
    layout: try channels last for the weights of each model's convolutions, and keep it if the step
        is confirmed faster. This also holds if kernel.enable is false.
    ranks: whether the ranks of a distributed job agree on what they try and choose.

    Raises InvalidArgument, before anything is changed, for an unknown key, a wrong type or an
    unreadable file.
    """
    configuration = _parsed(EVERYTHING if config is None else config)
    _lock(configuration)
    if not configuration.enable:
        disable()
        with _State.lock:
            _State.without_kernels = configuration
            _apply()
        return
    with _State.lock:
        _State.everywhere, _State.without_kernels = configuration, None
        _apply(threads=True)


def set_aside() -> None:
    """Let PyTorch's own kernels answer until `put_back`. All else stays as it is."""
    with _State.lock:
        for one in overrides():
            one.remove()


def put_back() -> None:
    """Choose again, as is configured at present."""
    with _State.lock:
        _apply()


def order_accuracy(accuracy: str) -> None:
    """Make this accuracy hold from now on, above every configuration of the program."""
    ordered = parse_accuracy(accuracy, "accuracy")
    with _State.lock:
        _State.ordered = ordered
        _apply()


def keeps_freed_memory() -> bool:
    """Return whether freed memory stays in the process at present."""
    return _State.keeps_freed


def lowered_threads() -> Lowered | None:
    """Return how PyTorch's threads were lowered; None if they are the program's at present."""
    return _State.threads.lowered


def _parsed(config: ConfigurationLike) -> Configuration:
    """Return a configuration. Raises InvalidArgument, also for operations that do not exist."""
    configuration = parse_configuration(config)
    load_entry_points()  # the names of their rows may stand in it
    offer = Offer(configuration.only, configuration.without)
    if offer != Offer():
        check_offer(offer, table.OPERATIONS, offered_names())
    return configuration


def _enabling(config: ConfigurationLike) -> Configuration:
    configuration = _parsed(config)
    if not configuration.enable:
        raise InvalidArgument(
            "config: kernel.enable: expected true, as this call enables; got false; use disable()"
        )
    return configuration


def _lock(configuration: Configuration) -> None:
    """Lock the process, if the configuration says so, before anything else is changed.

    Raises InvalidArgument if the lock has records of PyTorch's operations, and none of them fits.
    """
    path, before = configuration.locked, current_lock()
    lock = before if path is None else use_lock(path)
    if lock is None or not configuration.enable:
        return
    make_overrides()
    fit, every = lock.fitting(one.selector.name for one in operation_overrides())
    if every and not fit:
        set_lock(before)
        raise InvalidArgument(
            f"the lock {lock.path}: 0 of its {every} records of PyTorch's operations fit: it was "
            "written with another version of PyTorch or of bestof; write it again by `bestof run "
            "--write-lock FILE script.py`"
        )


def _apply(*, threads: bool = False) -> None:
    """Make it so: the block that was entered last decides, or else `enable`.

    threads: whether `enable` was just called, which fits the threads and watches neighbours. A
    block leaves both alone: the program may have set another number of threads after `enable`.
    """
    wanted = _State.blocks[-1][1] if _State.blocks else _State.everywhere
    if wanted is None:
        _remove_all()
        return
    try:
        if not Defaults.store_named:
            import_default_store()
        _offer(Offer(wanted.only, wanted.without, wanted.memory_mib, wanted.skip_modules))
        SKIPPED_MODULES.skip(wanted.skip_modules)
        make_overrides()  # before any is in, while the kernels in place are PyTorch's
        count_steps()
        Defaults.window = _window(wanted)
        ordered = _State.ordered
        within = wanted if ordered is None else replace(wanted, accuracy=ordered)
        for one in overrides():
            one.configure(within)
        _tell_left_out()
        Defaults.live_checks.is_on = wanted.live_checks
        # Not of blocks: MobileNetV2 on one image, a block for each call, took 25 ms so in place of
        # 15, for at each end what was kept was handed back.
        _keep_freed(_State.everywhere is not None and _State.everywhere.keep_freed)
        if threads and _State.everywhere is not None:
            _fit_threads(_State.everywhere.fit_threads)
            watches = _State.everywhere.watch_neighbours
            _watch_neighbours(watches, refused=not watches)
        measures = current_lock() is None  # loaders, layouts and the agreement of ranks do
        follow(_bounds(wanted) if measures else None)
        tune_layouts(wanted.layout and measures)
        _agree(wanted.ranks and measures)
    except BaseException:
        _State.everywhere, _State.blocks = None, ()
        _remove_all()
        raise


def left_out() -> dict[str, str]:
    """Return the operations that this PyTorch keeps although they are enabled, each with why."""
    found = {one.operation.name: one.objection for one in operation_overrides()}
    return {name: why for name, why in found.items() if why is not None}


def _offer(offer: Offer) -> None:
    """Choose among these rows. Say once if `only` leaves PyTorch's own kernels alone."""
    make_offer(offer)
    names = ", ".join(only_pytorch(table.OPERATIONS, offer))
    if names and names not in _State.told:
        _State.told.add(names)
        warn(f"kernel.only leaves nothing but PyTorch's own kernels for these operations: {names}")


def _tell_left_out() -> None:
    """Warn once of operations that stay PyTorch's own, for each reason."""
    found = left_out()
    for why in dict.fromkeys(found.values()):
        if why not in _State.told:
            _State.told.add(why)
            names = ", ".join(name.replace("_", " ") for name in found if found[name] == why)
            warn(
                f"PyTorch {torch.__version__} keeps its own kernels of these operations: {names}; "
                f"the reason: {why}. Everything else is chosen; please report this"
            )


def _remove_all() -> None:
    Defaults.window = None
    for one in overrides():
        one.remove()
    _offer(Offer())
    for part in operation_overrides():
        part.choose_offered()
    SKIPPED_MODULES.skip(())
    Defaults.live_checks.is_on = True  # for selectors of the program
    _keep_freed(False)
    _fit_threads(False)
    _watch_neighbours(False)
    only = _State.without_kernels
    if current_lock() is not None:
        only = None
    follow(None if only is None else _bounds(only))
    tune_layouts(only is not None and only.layout)
    _agree(False)


def _agree(wanted: bool) -> None:
    if wanted and _State.agreement is None:
        _State.agreement = Agreement()
    Defaults.agreement = _State.agreement if wanted else None


def _window(configuration: Configuration) -> Window | None:
    """Return the window of a configuration. It goes on where an earlier one of its steps was."""
    steps = configuration.tuning_range
    return None if steps is None else _State.windows.setdefault(steps, Window(*steps))


def _bounds(configuration: Configuration) -> Bounds | None:
    """Return the bounds of tuning loaders, None if they are left alone."""
    if not configuration.dataloader:
        return None
    return Bounds(configuration.tuning_steps, configuration.seconds, configuration.workers)


def _keep_freed(wanted: bool) -> None:
    if wanted and not _State.keeps_freed:
        _State.keeps_freed = keep_freed()
    elif not wanted and _State.keeps_freed:
        hand_back_freed()
        _State.keeps_freed = False


def _fit_threads(wanted: bool) -> None:
    if wanted:
        _State.threads.fit()
    else:
        _State.threads.undo()


def _watch_neighbours(wanted: bool, refused: bool = False) -> None:
    """Watch or leave. refused: whether plans must not watch either."""
    NEIGHBOURS.refuse(refused)
    if wanted:
        NEIGHBOURS.watch()
    else:
        NEIGHBOURS.leave()


def _after_fork() -> None:
    _State.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

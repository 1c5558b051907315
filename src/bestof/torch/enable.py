"""Tuning for the whole process, or for a block."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bestof.configuration import (
    EVERYTHING,
    Configuration,
    ConfigurationLike,
    parse_configuration,
)
from bestof.errors import InvalidArgument
from bestof.selection.registry import Defaults
from bestof.torch.accuracy import Accuracy, parse_accuracy
from bestof.torch.allocator import hand_back_freed, keep_freed
from bestof.torch.cuda.device import CUDA, is_built
from bestof.torch.data_loading.interception import follow
from bestof.torch.data_loading.tuning import Bounds
from bestof.torch.max_pooling import MaxPoolOverride
from bestof.torch.override import ConvolutionOverride
from bestof.torch.ranks.agreement import Agreement


class _State:
    lock = threading.Lock()
    override: ConvolutionOverride | None = None
    cuda: ConvolutionOverride | None = None  # where this PyTorch has CUDA
    pooling: MaxPoolOverride | None = None
    everywhere: Configuration | None = None  # what `enable` was called with; None while it is off
    ordered: Accuracy | None = (
        None  # from outside the program, whose own configurations it then stands above
    )
    blocks: tuple[
        tuple[object, Configuration], ...
    ] = ()  # `with` blocks that are open and were not disabled
    loaders_only: Configuration | None = None  # what holds for loaders while kernels are off
    agreement: Agreement | None = None
    keeps_freed: bool = False  # what the allocator was told


def enable(config: ConfigurationLike = None) -> None:
    """From now on every 2-D convolution, in training and in inference, is chosen among alternatives.

    On the CPU, and on CUDA devices where this PyTorch has them. So is maximum pooling on the CPU. And memory that is
    freed stays in the process, where the C library is glibc: what is allocated next meets no page faults, but the
    process stays as large as it was at its peak.

    config: see `set_config`. Enabling again replaces the configuration: the last one holds, for every thread, and what
    it leaves out takes its default. What was found out before stays known.
    Raises InvalidArgument for a configuration that cannot be used, TorchError where PyTorch is too old.
    """
    configuration = _enabling(config)
    with _State.lock:
        _State.everywhere, _State.loaders_only = configuration, None
        _apply()


def disable() -> None:
    """Put PyTorch's own kernels back, also inside of `enabled` blocks. What was found out stays known.

    Disabling twice is the same as once. Calls that run at that moment end as they began.
    """
    with _State.lock:
        _State.everywhere = _State.loaders_only = None
        _State.blocks = ()
        _apply()


@contextmanager
def enabled(config: ConfigurationLike = None) -> Iterator[None]:
    """Tuning inside a `with` block, in every thread of the process; blocks may nest.

    config: see `set_config`; that of the block entered last holds, and the one before holds again at its end. A block
    leaves the allocator as it is, whatever `memory` says. Raises what `enable` raises.
    """
    token, configuration = object(), _enabling(config)
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
    """Configure the whole process: a dict, the path of a JSON file, or None, which enables everything.

    `{"kernel": {"enable": true, "accuracy": "float32", "packed_mib": 512, "pooling": true}, "memory": {"keep_freed":
    true}, "dataloader": {"enable": true, "tuning_steps": 500, "seconds": 30, "workers": [0, 8]}}`, each key of
    which may be left out. What is left out takes its default, and data loading is off by default.
    enable: false puts PyTorch's own kernels back. accuracy: `exact` (the very bits of PyTorch), `float32` (within the
    bounds of its arithmetic), or `relaxed` (Winograd F(6) too). packed_mib: memory for packed copies of weights that
    stand still in inference; 0 for none. pooling: choose for maximum pooling too, whose results are the same bits.
    keep_freed: keep freed memory in the process, from `enable` or this call until `disable`; where the user has set the
    C library's allocator by its environment variables, these hold. dataloader: DataLoaders with a map-style
    dataset, made from now on, are tuned as `tune_dataloader` does; kernel.enable may be false then. ranks: whether the
    ranks of a distributed job agree on what they try and choose; true by default.
    Raises InvalidArgument, before anything is changed, for an unknown key, a wrong type, or a file that cannot be read.
    """
    configuration = EVERYTHING if config is None else parse_configuration(config)
    if not configuration.enable:
        disable()
        with _State.lock:
            _State.loaders_only = configuration
            _apply()
        return
    with _State.lock:
        _State.everywhere, _State.loaders_only = configuration, None
        _apply()


def order_accuracy(accuracy: str) -> None:
    """From now on this accuracy holds, whatever a configuration says: an order from outside the program."""
    ordered = parse_accuracy(accuracy, "accuracy")
    with _State.lock:
        _State.ordered = ordered
        _apply()


def convolution_override() -> ConvolutionOverride | None:
    """What was enabled on the CPU in this process, now or before; None where nothing ever was."""
    return _State.override


def convolution_overrides() -> tuple[ConvolutionOverride, ...]:
    """Likewise of every kind of device."""
    return tuple(override for override in (_State.override, _State.cuda) if override is not None)


def pooling_overrides() -> tuple[MaxPoolOverride, ...]:
    """That of maximum pooling, where it was ever enabled in this process."""
    return () if _State.pooling is None else (_State.pooling,)


def keeps_freed_memory() -> bool:
    """Return whether freed memory stays in the process at present."""
    return _State.keeps_freed


def _enabling(config: ConfigurationLike) -> Configuration:
    configuration = parse_configuration(config)
    if not configuration.enable:
        raise InvalidArgument(
            "config: kernel.enable: expected true where enabling is asked for; got False"
        )
    return configuration


def _apply() -> None:
    """Make it so: the block that was entered last decides, or else `enable`."""
    wanted = _State.blocks[-1][1] if _State.blocks else _State.everywhere
    if wanted is None:
        _remove_all()
        return
    try:
        if _State.override is None:
            _State.cuda = ConvolutionOverride(CUDA) if is_built() else None
            _State.override = ConvolutionOverride()
        ordered = _State.ordered
        for override in convolution_overrides():
            override.configure(wanted if ordered is None else replace(wanted, accuracy=ordered))
            override.register()
        if wanted.pooling and _State.pooling is None:
            _State.pooling = MaxPoolOverride()
        for pooling in pooling_overrides():
            (pooling.register if wanted.pooling else pooling.remove)()
        # Not of blocks: MobileNetV2 on one image, a block for each call, took 25 ms so in place of 15, for at each end
        # what was kept was handed back.
        _keep_freed(_State.everywhere is not None and _State.everywhere.keep_freed)
        follow(_bounds(wanted))
        _agree(wanted.ranks)
    except BaseException:
        _State.everywhere, _State.blocks = None, ()
        _remove_all()
        raise


def _remove_all() -> None:
    for override in convolution_overrides():
        override.remove()
    for pooling in pooling_overrides():
        pooling.remove()
    _keep_freed(False)
    only = _State.loaders_only
    follow(None if only is None else _bounds(only))
    _agree(False)


def _agree(wanted: bool) -> None:
    if wanted and _State.agreement is None:
        _State.agreement = Agreement()
    Defaults.agreement = _State.agreement if wanted else None


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


def _after_fork() -> None:
    _State.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""The settings of the whole process, as a dict or a JSON file.

They are checked before anything is changed. The command line checks a file before the program runs,
so this module must not import torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy, parse_accuracy
from bestof.errors import InvalidArgument

ConfigurationLike: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str] | Configuration | None"
"""A dict, the path of a JSON file with a dict, a parsed configuration, or None for defaults."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of all keys.

    `kernel`: enable: whether anything is chosen. accuracy: see `Accuracy`. packed_mib: the most MiB
        for packed copies of weights; 0 for none. pooling: whether poolings are chosen too.
        product: whether matrix products are chosen too. attention: whether attention is. cuda:
        whether convolutions on CUDA devices are. only: names of rows, such as "native winograd4",
        which are tried beside PyTorch's own, and no others; all if there are none. without: names
        of rows that are never tried, and of operations that are left to PyTorch, such as "average
        pooling". skip_modules: patterns of the names of modules whose calls are left to PyTorch,
        such as "layer1.*". locked: the lock file whose decisions are taken, and nothing else; None
        for none. tuning_range: the steps [start, stop) in which alternatives are tried; None for
        all. live_checks: whether results of settled calls are compared with PyTorch's now and then.
        budget: the share of the time that trials may cost; None for no bound. memory_mib: the most
        MiB for scratch, packed weights and kept matrices together; None for no bound.
    `memory`: keep_freed: whether freed memory stays in the process.
    `threads`: fit: whether PyTorch's threads are lowered to what the process may use. neighbours:
        whether waiting threads sleep soon, and plans try fewer threads, while other processes want
        the same processors.
    `dataloader`: dataloader: whether loaders are tuned. tuning_steps, seconds: what the trials of
        one loader may take together. workers: the least and the highest number of workers to try;
        None for 0 to the number of allowed processors.
    `layout`: layout: whether models try channels last for the weights of their convolutions.
    `ranks`: ranks: whether the ranks of a distributed job agree on what is chosen. Without several
        ranks it does nothing.
    """

    enable: bool = True
    accuracy: Accuracy = DEFAULT_ACCURACY
    packed_mib: int = 512
    pooling: bool = True
    product: bool = True
    attention: bool = True
    cuda: bool = False
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    locked: str | None = None
    tuning_range: tuple[int, int] | None = None
    skip_modules: tuple[str, ...] = ()
    live_checks: bool = True
    budget: float | None = 0.05
    memory_mib: int | None = None
    keep_freed: bool = True
    fit_threads: bool = True
    watch_neighbours: bool = True
    dataloader: bool = False
    tuning_steps: int = 500
    seconds: float = 30.0
    workers: tuple[int, int] | None = None
    layout: bool = False
    ranks: bool = True


EVERYTHING = Configuration(dataloader=True, layout=True)
"""All settings on. Data loading and layout are off by default."""


def parse_configuration(config: ConfigurationLike) -> Configuration:
    """Return the settings of `config`. Omitted keys have their defaults.

    Raises InvalidArgument for a file that cannot be read, for an unknown key (the message names the
    nearest one), and for a wrong type.
    """
    if config is None:
        return Configuration()
    if isinstance(config, Configuration):
        return config
    settings: Any = _read(Path(config)) if isinstance(config, (str, os.PathLike)) else config
    _check_mapping(settings, "config")
    _check_keys(settings, _PARSERS)
    return Configuration(
        **{
            _FIELDS.get((section, key), key): _PARSERS[section][key](
                value, f"config: {section}.{key}"
            )
            for section, values in settings.items()
            for key, value in (values or {}).items()
        }
    )


def _read(path: Path) -> Any:
    try:
        # Some editors begin a file with a byte order mark, which utf-8-sig skips.
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except OSError as error:
        raise InvalidArgument(
            f"config: the file {str(path)!r} cannot be read: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"config: the file {str(path)!r} is no JSON: no UTF-8 text") from None
    except InvalidArgument:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"config: the file {str(path)!r} is no JSON: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of these keys and values. Raises InvalidArgument if a key comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidArgument(f"config: the key {twice!r} comes twice; keep one of them")
    return found


def _check_mapping(value: object, where: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{where}: expected a dict; got {type(value).__name__}")


def _check_keys(config: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> None:
    paths = [*known, *(f"{section}.{key}" for section, keys in known.items() for key in keys)]
    for section, settings in config.items():
        if section not in known:
            raise _unknown(str(section), paths)
        if settings is None:
            continue
        _check_mapping(settings, f"config: {section}")
        for key in settings:
            if key not in known[section]:
                raise _unknown(f"{section}.{key}", paths)


def _unknown(path: str, paths: list[str]) -> InvalidArgument:
    # If a setting was written without its section, compare it with the last part of each path.
    nearest = get_close_matches(path, paths, 1) or [
        known for known in paths if known.partition(".")[2] == path
    ]
    hint = f"; did you mean {nearest[0]!r}" if nearest else ""
    return InvalidArgument(f"config: unknown key {path!r}{hint}; known keys: {', '.join(paths)}")


def _parse_switch(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{where}: expected true or false; got {value!r}")
    return value


def _parse_names(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise InvalidArgument(f"{where}: expected a list of names; got {value!r}")
    return tuple(value)


def _parse_path(value: object, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise InvalidArgument(f"{where}: expected the path of a file; got {value!r}")
    return str(os.fspath(value))


def _parse_only(value: object, where: str) -> tuple[str, ...]:
    found = _parse_names(value, where)
    if not found:
        raise InvalidArgument(
            f"{where}: expected at least one name; got none; use ['as is'] for PyTorch's own "
            "kernels alone"
        )
    return found


def _parse_level(value: object, where: str) -> Accuracy:
    return parse_accuracy(value, where)


def _parse_size(value: object, where: str) -> int:
    if not _is_count(value):
        raise InvalidArgument(f"{where}: expected a whole number of MiB, 0 or more; got {value!r}")
    return value  # type: ignore[return-value]


def _parse_memory(value: object, where: str) -> int | None:
    if value is not None and not _is_count(value):
        raise InvalidArgument(
            f"{where}: expected a whole number of MiB, 0 or more, or null for no bound; got "
            f"{value!r}"
        )
    return value  # type: ignore[return-value]  # checked by _is_count


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_steps(value: object, where: str) -> int:
    if not _is_count(value) or value == 0:
        raise InvalidArgument(f"{where}: expected a whole number, 1 or more; got {value!r}")
    return value  # type: ignore[return-value]  # checked by _is_count


def _parse_seconds(value: object, where: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # An int may be too large for a float.
    if not number or not 0 < value <= sys.float_info.max:  # type: ignore[operator]  # a number
        raise InvalidArgument(f"{where}: expected a positive number of seconds; got {value!r}")
    return float(value)  # type: ignore[arg-type]  # as above


def parse_share(value: object, where: str) -> float | None:
    """Return a share of the time for trials; None for no bound."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value <= 1):  # type: ignore[operator]  # a number
        raise InvalidArgument(
            f"{where}: expected a share of the time above 0 and at most 1, such as 0.05, or None "
            f"(null in JSON) for no bound; got {value!r}"
        )
    return value  # type: ignore[return-value]  # as above


def _parse_range(value: object, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    if not (isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_count, value))):
        raise InvalidArgument(f"{where}: expected two whole numbers, [least, most]; got {value!r}")
    least, most = value
    if least > most:
        raise InvalidArgument(f"{where}: the range is empty: {least} is above {most}")
    return least, most


def _parse_window(value: object, where: str) -> tuple[int, int] | None:
    found = _parse_range(value, where)
    if found is not None and found[0] == found[1]:
        raise InvalidArgument(
            f"{where}: the range is empty: alternatives are tried from step {found[0]} on, and no "
            f"longer in step {found[1]}"
        )
    return found


_FIELDS = {
    **{(section, "enable"): section for section in ("dataloader", "layout", "ranks")},
    ("threads", "fit"): "fit_threads",
    ("threads", "neighbours"): "watch_neighbours",
}
"""The fields of `Configuration` with names that differ from their keys."""

_PARSERS: dict[str, dict[str, Callable[[object, str], Any]]] = {
    "kernel": {
        "enable": _parse_switch,
        "accuracy": _parse_level,
        "packed_mib": _parse_size,
        "pooling": _parse_switch,
        "product": _parse_switch,
        "attention": _parse_switch,
        "cuda": _parse_switch,
        "only": _parse_only,
        "without": _parse_names,
        "locked": _parse_path,
        "tuning_range": _parse_window,
        "skip_modules": _parse_names,
        "live_checks": _parse_switch,
        "budget": parse_share,
        "memory_mib": _parse_memory,
    },
    "memory": {"keep_freed": _parse_switch},
    "threads": {"fit": _parse_switch, "neighbours": _parse_switch},
    "dataloader": {
        "enable": _parse_switch,
        "tuning_steps": _parse_steps,
        "seconds": _parse_seconds,
        "workers": _parse_range,
    },
    "layout": {"enable": _parse_switch},
    "ranks": {"enable": _parse_switch},
}

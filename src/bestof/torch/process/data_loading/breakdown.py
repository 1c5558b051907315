"""Measures how the time of fetching a batch divides: read, decode, transform, collate.

One batch is fetched under a profile function, which Python calls at each call and return of Python
and C functions. The time between two events belongs to the innermost open stage. So if Pillow reads
a file while it decodes, this counts as read. Only the shares are used, because the profile function
itself takes time.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

STAGES = ("read", "decode", "transform", "collate")

# C functions are recognised by their module, Python functions by their file. Image.open of Pillow
# calls a plugin, which reads the header.
_DECODING_MODULES = ("cv2", "simplejpeg", "_imaging")
_DECODING_FILES = ("ImageFile.py", "ImagePlugin.py", "turbojpeg.py")
_DECODING_CALLS = {"decode_jpeg", "decode_image"}
_READING_NAMES = {
    "read",
    "readinto",
    "readline",
    "readlines",
    "open",
    "pread",
    "seek",
    "read_bytes",
}
_READING_MODULES = ("_io", "io", "posix", "mmap", "zipfile", "zlib", "h5py", "lmdb")
_MOST_ENCODED = 1 << 24


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The share of each stage of the time; they add up to 1.

    `encoded` holds the encoded bytes of one decoded JPEG image, or None.
    """

    shares: dict[str, float]
    image: bytes | None = None

    def __str__(self) -> str:
        return ", ".join(f"{stage} {100 * self.shares[stage]:.0f} %" for stage in STAGES)


class _Profile:
    def __init__(self, collate: CodeType | None) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.image: bytes | None = None
        self._collate = collate
        self._open: list[str | None] = []  # for each open call, the stage that it began, or None
        self._stage: list[str] = ["transform"]
        self._last = perf_counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        now = perf_counter()
        self.seconds[self._stage[-1]] += now - self._last
        if event in ("call", "c_call"):
            stage = self._begun(frame) if event == "call" else _begun_by_c(argument)
            self._open.append(stage)
            if stage is not None:
                self._stage.append(stage)
        elif self._open and self._open.pop() is not None:
            self._stage.pop()
        self._last = perf_counter()

    def _begun(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code is self._collate:
            return "collate"
        decoding = code.co_filename.endswith(_DECODING_FILES)
        if decoding or code.co_name in _DECODING_CALLS:
            if self.image is None and code.co_name == "load":
                self.image = _encoded(frame.f_locals.get("self"))
            return "decode"
        return None


@contextmanager
def profiled(collate: Callable[..., Any]) -> Iterator[Callable[[], Breakdown | None]]:
    """Profile the block in this thread.

    Yields a function that returns the breakdown, or None if another profiler is running.
    """
    if sys.getprofile() is not None:
        yield lambda: None
        return
    profile = _Profile(_code(collate))
    sys.setprofile(profile)
    try:
        yield lambda: _breakdown(profile)
    finally:
        sys.setprofile(None)


def _breakdown(profile: _Profile) -> Breakdown | None:
    total = sum(profile.seconds.values())
    if total <= 0:
        return None
    return Breakdown({s: seconds / total for s, seconds in profile.seconds.items()}, profile.image)


def _begun_by_c(function: Any) -> str | None:
    if not isinstance(function, BuiltinFunctionType):
        return None
    owner = function.__self__
    module = getattr(function, "__module__", None) or type(owner).__module__ or ""
    if module.startswith(_DECODING_MODULES) or type(owner).__name__ == "ImagingDecoder":
        return "decode"
    if function.__name__ in _READING_NAMES and module.partition(".")[0] in _READING_MODULES:
        return "read"
    return None


def _code(function: Any) -> CodeType | None:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__code__", None)


def _encoded(image: Any) -> bytes | None:
    """Return the encoded bytes of an image that Pillow is about to decode, if it is a JPEG."""
    if getattr(image, "format", None) != "JPEG":
        return None
    name, file = getattr(image, "filename", ""), getattr(image, "fp", None)
    try:
        if isinstance(name, str) and name:
            return Path(name).read_bytes()[:_MOST_ENCODED]
        return bytes(file.getvalue()) if isinstance(file, io.BytesIO) else None
    except (OSError, ValueError):
        return None

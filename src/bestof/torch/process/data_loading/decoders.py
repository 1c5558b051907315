"""Compares Pillow with other installed decoders of JPEG images, on an image of the program."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder of JPEG images.

    `call` is the function as its users write it. `decode` gets the module and encoded bytes, and
    returns an image.
    """

    module: str
    call: str
    decode: Callable[[Any, bytes], object]


def _by_cv2(module: Any, encoded: bytes) -> object:
    import numpy  # noqa: PLC0415  where cv2 is installed, so is numpy

    return module.imdecode(numpy.frombuffer(encoded, numpy.uint8), module.IMREAD_COLOR)


def _by_torchvision(module: Any, encoded: bytes) -> object:
    import torch  # noqa: PLC0415  as above

    return module.decode_jpeg(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))


DECODERS = (
    Decoder("simplejpeg", "simplejpeg.decode_jpeg", lambda m, encoded: m.decode_jpeg(encoded)),
    Decoder("turbojpeg", "turbojpeg.TurboJPEG().decode", lambda m, e: m.TurboJPEG().decode(e)),
    Decoder("cv2", "cv2.imdecode", _by_cv2),
    Decoder("torchvision.io", "torchvision.io.decode_jpeg", _by_torchvision),
)


@dataclass(frozen=True, slots=True)
class FasterDecoder:
    """A decoder that is faster than Pillow.

    `speedup` is the time of Pillow divided by that of this decoder, for one image of the program.
    """

    call: str
    speedup: float


def faster_decoder(
    encoded: bytes, decoders: tuple[Decoder, ...] = DECODERS
) -> FasterDecoder | None:
    """Return the fastest installed decoder, or None if all take more than 0.8 of Pillow's time."""
    pillow = _seconds(lambda: _by_pillow(encoded))
    found: list[FasterDecoder] = []
    for decoder in decoders:
        try:
            if importlib.util.find_spec(decoder.module) is None:
                continue
            module = importlib.import_module(decoder.module)
            seconds = _seconds(partial(decoder.decode, module, encoded))
        except Exception:  # this package is broken, or refuses the image
            continue
        if seconds < 0.8 * pillow:
            found.append(FasterDecoder(decoder.call, pillow / seconds))
    return max(found, key=lambda one: one.speedup, default=None)


def _by_pillow(encoded: bytes) -> object:
    from PIL import Image  # noqa: PLC0415  optional; what is measured came from Pillow

    return Image.open(io.BytesIO(encoded)).convert("RGB")


def _seconds(decode: Callable[[], object]) -> float:
    decode()
    times = []
    for _ in range(3):
        began = perf_counter()
        decode()
        times.append(perf_counter() - began)
    return min(times)

"""A file of one JSON text and the memory of tensors.

    "bestof plan\\n"  version: u32  bytes of the text: u64  SHA-256 of the text
    text: {"storages": [[bytes, SHA-256]], "tensors": [[storage, offset, shape, strides, dtype]],
           "content": ...}
    the storages, one after the other

Numbers are little-endian; offsets and strides count elements. The file holds no code. Every byte is
under a checksum, each part is checked before it is parsed, and no more memory is allocated than
the file is long: a damaged file gives one error and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.torch.plan.file.values import dtype_of, expect_size
from bestof.torch.plan.trace.eager_run import first_line
from bestof.whole_file import whole_file

VERSION = 3
_MAGIC = b"bestof plan\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}sIQ32s")
_ZIP = b"PK"  # versions 1 and 2 were written by torch.save


# What values of the wrong kind raise, wherever they are read.
_UNREADABLE = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError


class Damaged(Exception):
    """The file differs from what was written; the message says where."""


class Tensors:
    """The distinct tensors of a file, by number."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def number(self, value: Tensor | None) -> int | None:
        """Return the number of a tensor, which becomes part of the file; None for None."""
        if value is None:
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.values)
            self.values.append(value)
        return self._numbers[id(value)]


def write(file: str | Path | BinaryIO, content: Any, tensors: list[Tensor]) -> None:
    """Write a file; an existing one is replaced once the new one is complete."""
    # By address and length: a view of foreign memory, as NumPy's, is a storage of its own, and a
    # shorter one may begin at the same address. The tensors keep what was made for the file.
    storages: dict[tuple[int, int], Tensor] = {}
    numbers: dict[tuple[int, int], int] = {}
    places = []
    for tensor in tensors:
        plain = _plain(tensor)
        storage = plain.untyped_storage()
        memory = storage.data_ptr(), storage.nbytes()
        if memory not in storages:
            storages[memory] = torch.empty(0, dtype=torch.uint8).set_(storage)
        number = numbers.setdefault(memory, len(numbers))
        described = list(plain.shape), list(plain.stride()), str(plain.dtype)
        places.append([number, plain.storage_offset(), *described])
    sums = [[len(one), hashlib.sha256(_bytes(one)).hexdigest()] for one in storages.values()]
    text = json.dumps({"storages": sums, "tensors": places, "content": content}).encode()
    header = _HEADER.pack(_MAGIC, VERSION, len(text), hashlib.sha256(text).digest())
    with _writable(file) as out:
        for part in (header, text, *map(_bytes, storages.values())):
            out.write(part)


def read(file: str | Path | BinaryIO, most: int = 2**46) -> tuple[Any, list[Tensor]]:
    """Return (content, tensors) of a file. TorchError if the file is damaged or of another kind.

    most: the bytes that a tensor may take when all its elements are apart.
    """
    if not isinstance(file, str | Path):
        return _read_checked(file, "the given file object", most)
    try:
        with open(file, "rb") as opened:
            return _read_checked(opened, str(file), most)
    except FileNotFoundError:
        raise TorchError(f"load: there is no file {file}") from None
    except OSError as error:
        raise TorchError(f"load: {file} cannot be read: {error.strerror}") from error


def _read_checked(file: BinaryIO, name: str, most: int) -> tuple[Any, list[Tensor]]:
    try:
        return _read(file, name, most)
    except TorchError:  # it says itself what is wrong
        raise
    except (Damaged, *_UNREADABLE) as error:
        reason = str(error) if isinstance(error, Damaged) else first_line(error)
        raise TorchError(f"load: {name} is damaged: {reason}; save the plan again") from error


def _read(file: BinaryIO, name: str, most: int) -> tuple[Any, list[Tensor]]:
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    header = file.read(_HEADER.size)
    if header[: len(_ZIP)] == _ZIP:
        raise TorchError(
            f"load: {name} is no plan of version {VERSION}: bestof no longer reads the versions 1 "
            "and 2, which were zip files; optimise the model again, and save it"
        )
    if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
        raise TorchError(f"load: {name} is no plan; expected a file that plan.save has written")
    if len(header) < _HEADER.size:
        raise Damaged("it ends within its header")
    _, version, length, checksum = _HEADER.unpack(header)
    if version != VERSION:
        raise TorchError(
            f"load: {name} has version {version} of the format; this bestof reads version "
            f"{VERSION}: optimise the model again, and save it"
        )
    if length > size - len(header):
        raise Damaged("it ends within its text")
    text = file.read(length)
    if hashlib.sha256(text).digest() != checksum:
        raise Damaged("its text has another checksum")
    known = json.loads(text)
    lengths = [count for count, _ in known["storages"]]
    if min(lengths, default=0) < 0 or sum(lengths) != size - len(header) - length:
        raise Damaged("its length is another")
    storages = [_storage(file, count, checksum) for count, checksum in known["storages"]]
    return known["content"], [_tensor(storages, most, *place) for place in known["tensors"]]


def _storage(file: BinaryIO, count: int, checksum: str) -> Tensor:
    memory = torch.empty(count, dtype=torch.uint8)
    view = memory.numpy().data
    done = 0
    while done < count:
        chunk = file.read(min(count - done, 2**24))
        if not chunk:
            raise Damaged("it ends within its tensors")
        view[done : done + len(chunk)] = chunk
        done += len(chunk)
    if hashlib.sha256(view).hexdigest() != checksum:
        raise Damaged("a tensor has another checksum")
    return memory


def _tensor(
    storages: list[Tensor],
    most: int,
    number: int,
    offset: int,
    shape: list[int],
    strides: list[int],
    dtype: str,
) -> Tensor:
    kind = dtype_of(dtype)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    end = (last + 1) * kind.itemsize if 0 not in shape else 0
    if min(number, offset) < 0 or end > len(storages[number]):
        raise Damaged("a tensor lies outside of its memory")
    expect_size(shape, strides, kind, most)
    storage = storages[number].untyped_storage()
    made = torch.empty(0, dtype=kind).set_(storage, offset, shape, strides)
    if kind is torch.bool and made.numel() and int(made.view(torch.uint8).max()) > 1:
        raise Damaged("a truth value is neither 0 nor 1")  # PyTorch would count it wrongly
    return made


def _plain(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TorchError(
            f"save: a tensor of shape {tuple(tensor.shape)} ({tensor.dtype}, {tensor.layout}) "
            "cannot be saved; a file holds dense tensors"
        )
    return tensor.detach().resolve_conj().resolve_neg()


def _bytes(memory: Tensor) -> memoryview:
    return memory.numpy().data


@contextmanager
def _writable(file: str | Path | BinaryIO) -> Iterator[Any]:
    if not isinstance(file, str | Path):
        yield file
        return
    try:
        with whole_file(file) as out:
            yield out
    except OSError as error:
        raise TorchError(f"save: {file} cannot be written: {error.strerror}") from error

"""Puts a Python function in the place of one of PyTorch's kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from bestof.torch.dispatch.kept_kernels import keep_kernel


class PythonKernel:
    """A function that answers one operator, such as `aten::mm`, on one kind of device while
    registered."""

    def __init__(self, name: str, function: Callable[..., Any], key: str = "CPU") -> None:
        """key: PyTorch's dispatch key of the device."""
        self._name, self._key = name, key
        self._function = function
        self._library: Any = None

    def register(self) -> None:
        """Put the function in. Does nothing if it is in."""
        if self._library is not None:
            return
        new: Any = torch.library.Library  # has no annotations
        library = new("aten", "IMPL")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns of every override
                library.impl(
                    self._name.removeprefix("aten::"),
                    self._function,
                    self._key,
                    allow_override=True,
                )
        except BaseException:
            library._destroy()
            raise
        self._library = library
        keep_kernel(self._name, self._key)

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        library, self._library = self._library, None  # one that nobody holds leaves by itself
        if library is not None:
            library._destroy()

    def warn_early(self) -> None:
        """Let PyTorch give its one warning that this operator is overridden now, unseen.

        It warns by Python's warnings if the kernel is registered from Python, and on standard error
        if it is registered from C++. The function answers the calls of other threads meanwhile.
        """
        self.register()
        self.remove()

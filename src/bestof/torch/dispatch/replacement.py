"""Kernels of bestof in the place of PyTorch's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from bestof.accuracy import ACCURACIES, DEFAULT_ACCURACY, Accuracy
from bestof.torch.backends.shim import OperatorShim
from bestof.torch.dispatch.python_kernel import PythonKernel
from bestof.torch.dispatch.registration import objection
from bestof.torch.ops.pytorch_kernel import kernels_of, keys_of


class Replacement:
    """Answers operators of PyTorch on one kind of device, while registered.

    shim: kernels in C++, which ask Python for calls that they do not know; None if this PyTorch, or
        this device, takes none.
    in_python: kernels for where the shim is not put in. If there is neither, nothing is replaced,
        and an override above may ask.
    """

    _is_warned = False

    def __init__(
        self,
        operators: Sequence[str],
        shim: OperatorShim | None,
        in_python: Sequence[PythonKernel],
        key: str = "CPU",
    ) -> None:
        self.shim = shim
        self.level: Accuracy = DEFAULT_ACCURACY
        self._operators, self._in_python, self._key = operators, in_python, key
        self._is_wanted = self._is_in = self._is_shim_in = False

    @property
    def is_registered(self) -> bool:
        """Whether the kernels are in."""
        return self._is_in

    @property
    def is_shim_in(self) -> bool:
        """Whether the kernels in C++ are in."""
        return self._is_shim_in

    @property
    def objection(self) -> str | None:
        """Why the kernels are out although they were to be in; None if nothing is against them."""
        if not self._is_wanted or self._is_in:
            return None
        if self.shim is None:
            return objection() or "another library has replaced PyTorch's own kernel"
        return "another kernel of bestof is in its place"

    def set_level(self, level: Accuracy) -> None:
        """Answer calls within this level of accuracy from now on."""
        if self.shim is not None:  # first: an interrupt in between costs calls of Python, no more
            self.shim.set_level(ACCURACIES.index(level))
        self.level = level

    def register(self) -> None:
        """Put the kernels in, if this PyTorch takes them. Does nothing if they are in."""
        self._is_wanted = True
        if self._is_in:
            return
        if self.shim is not None:
            self._warn_early()
            self.shim.take_out()  # an interrupt may have come after `put_in`
            self._is_shim_in = self._is_in = self.shim.put_in(self._key)
        if not self._is_in and self._in_python:
            try:
                for kernel in self._in_python:
                    kernel.register()
            except BaseException:
                self.remove()
                raise
            self._is_in = True

    def remove(self) -> None:
        """Put PyTorch's own kernels back. Does nothing if they are in."""
        # First what is known, then what is in: whatever an interrupt leaves in, the next call takes
        # out.
        self._is_wanted = self._is_in = self._is_shim_in = False
        for kernel in self._in_python:
            kernel.remove()
        if self.shim is not None:
            self.shim.take_out()
            self._forget_lookups()

    def _forget_lookups(self) -> None:
        """Let traces look the operators up again.

        PyTorch's dispatcher in Python keeps that an operator has a kernel for the very device. Of
        operators that have one for all devices, such as `aten::convolution`, none is left then: a
        trace of `aten::clone` after that ended the process.
        """
        for name in self._operators:
            operator, _, overload = name.removeprefix("aten::").partition(".")
            found = getattr(getattr(torch.ops.aten, operator), overload or "default")
            getattr(found, "_dispatch_cache", {}).clear()  # a private one

    def _warn_early(self) -> None:
        """Let PyTorch warn of the first operator that is overridden, unseen.

        PyTorch warns once, and only where it has a kernel for the very device.
        """
        for name in self._operators:
            has = torch._C._dispatch_has_kernel_for_dispatch_key(name, self._key)
            if has and not Replacement._is_warned:
                (kernel,) = kernels_of((name,), self._key)
                original = partial(kernel.call_boxed, keys_of(self._key))
                PythonKernel(name, original, self._key).warn_early()
                Replacement._is_warned = True

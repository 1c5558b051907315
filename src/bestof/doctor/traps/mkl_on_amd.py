"""MKL's products on processors that are not Intel's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from bestof import kernels
from bestof.doctor.finding import Finding
from bestof.doctor.one_thread import one_thread
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap

_SIDE = 384
_ROUNDS = 12
_FASTER = 1.1


class MklOnAmd(Trap):
    """Times PyTorch's float32 product against bestof's native one, on one thread."""

    name = "MKL on AMD"

    def findings(self, seen: Seen) -> Sequence[Finding]:  # noqa: ARG002 - of the machine
        vendor = _vendor()
        has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        if not has_mkl or vendor == "GenuineIntel":
            return [Finding(self.name, False, None, f"MKL is absent, or the processor is {vendor}")]
        a = np.random.default_rng(0).standard_normal((_SIDE, _SIDE)).astype(np.float32)
        tensor = torch.from_numpy(a)
        with one_thread():
            theirs, ours = _fastest(
                lambda: torch.mm(tensor, tensor), lambda: kernels.matmul(a, a, threads=1)
            )
        factor = theirs / ours
        work = 2.0 * _SIDE**3 / 1e9
        told = (
            f"on one thread, a product of {_SIDE} x {_SIDE} runs at {work / theirs:.0f} GFLOP/s in "
            "PyTorch, and "
        )
        told += f"at {work / ours:.0f} in bestof's kernel ({vendor})"
        caught = factor > _FASTER
        cure = "bestof.torch.enable(), which chooses for each product; or bestof.torch.optimize()"
        return [Finding(self.name, caught, factor, told, cure if caught else "", "products")]


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    found = (line.split(":")[1].strip() for line in lines if line.startswith("vendor_id"))
    return next(found, "unknown")


def _fastest(*products: Callable[[], object]) -> list[float]:
    """Return the least seconds of each of the products, which take turns."""
    times: list[list[float]] = [[] for _ in products]
    for _ in range(_ROUNDS):
        for own, product in zip(times, products, strict=True):
            began = perf_counter()
            product()
            own.append(perf_counter() - began)
    return [min(own[1:]) for own in times]

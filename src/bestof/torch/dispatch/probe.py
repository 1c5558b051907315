"""Tries whether kernels in C++ and this release of PyTorch understand each other.

Kernels are registered by C++ functions of PyTorch that no header promises to other releases: types
such as a boxed argument or a Scalar are read by the layout that they had in PyTorch 2.13. So what
is registered later is tried first, on known tensors: kernels with typed arguments and boxed ones,
of every kind of argument. They must receive what was given and return what they return, and what
they leave to PyTorch must give PyTorch's results. The dispatch key of the trial is one that PyTorch
has for tests, which no other thread's calls have.

A release that this version of bestof has not been tested with may end the process, so a child
process tries first. Its answer is kept in a file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from bestof.selection.store.default import cache_folder
from bestof.torch.backends.shim import make_operator_shim
from bestof.torch.ops.product.pytorch_product import PRODUCTS
from bestof.torch.ops.pytorch_kernel import entry_of
from bestof.whole_file import write_whole

Conversions: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

TESTED = ("2.13.", "2.14.", "2.15.")
"""The releases that the suites have run with."""

_KEY = "TESTING_ONLY_GenericMode"
# For the child process: mostly to import torch. On a busy machine, 60 seconds were too few.
_SECONDS = 300.0
_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"
_TRYING = "BESTOF_TRYING_REGISTRATION"
_VERDICT = "bestof's trial of the registration: "
_CHILD = f"""
import json
from bestof.torch.dispatch.registration import try_registration
print("\\n{_VERDICT}" + json.dumps(try_registration()), flush=True)
"""
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
_NEVER = float("inf")  # more work than any call has


def try_all(
    conversions: Conversions, cases: Sequence[Callable[[Conversions], str | None]] = ()
) -> str | None:
    """Return why kernels in C++ do not work in this process, None if they do.

    conversions: the functions between handles and tensors that the shims use. cases: what is tried;
    by default, every kind of argument.
    """
    library: Any = torch.library.Library
    rest = library("_", "IMPL", _KEY)
    try:
        rest.fallback(torch.library.fallthrough_kernel)
        for case in cases or (_products, _attention, _boxed):
            said = case(conversions)
            if said is not None:
                return said
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        rest._destroy()
    return None


class _Trial:
    """A shim for some operators in place of PyTorch's kernels, and what it was asked."""

    def __init__(
        self,
        conversions: Conversions,
        operators: Sequence[str],
        rule: str,
        results: Sequence[Tensor],
    ) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.results = tuple(results)
        entries = [one for one in map(entry_of, operators) if one is not None]
        kernels = [torch.library.get_kernel(name, "CPU") for name in operators]
        make = partial(make_operator_shim, *conversions, self._answer, entries, kernels, rule)
        self._passing, self._asking = make(_NEVER, {}, []), make(0.0, {}, [])

    def _answer(self, *arguments: Any) -> Any:
        self.asked.append(arguments)
        return self.results if len(self.results) > 1 else self.results[0]

    def objection(
        self, call: Callable[[], Any], arguments: tuple[Any, ...] | None, *, calls: int = 1
    ) -> str | None:
        """Return what went wrong with a call, None if nothing did.

        arguments: what the shim is asked at the last of so many calls; None if PyTorch answers.
        """
        right = call()
        for shim, times in ((self._passing, 1), (self._asking, calls)):
            if shim is None:
                return "PyTorch's own kernel cannot be read"
            self.asked.clear()
            if not shim.put_in(_KEY):
                return "PyTorch refuses a kernel"
            try:
                with torch._C._IncludeDispatchKeyGuard(torch._C._dispatch_key_parse(_KEY)):
                    for _ in range(times):
                        got = call()
            finally:
                shim.take_out()
            is_asked = shim is self._asking and arguments is not None
            if is_asked and not (self.asked and _same(self.asked[-1], arguments)):
                return f"a kernel was given {self.asked} in place of {arguments}"
            if not _same(got, self._answer() if is_asked else right):
                return f"a call gave {got} in place of {self.results if is_asked else right}"
        return None


def _first(found: Sequence[str | None]) -> str | None:
    return next((one for one in found if one is not None), None)


def _products(conversions: Conversions) -> str | None:
    a, b, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4), torch.arange(4.0)
    trial = _Trial(conversions, PRODUCTS, "product", [torch.full((2, 4), 7.0)])
    batches = a[None].expand(2, 2, 3).clone(), b[None].expand(2, 3, 4).clone()
    asks = partial(trial.objection, calls=3)
    return _first(
        [
            asks(lambda: torch.mm(a, b), (0, None, a, b)),
            asks(lambda: torch.addmm(bias, a, b), (1, bias, a, b)),
            asks(lambda: torch.addmm(bias, a, b, beta=1.0), (1, bias, a, b)),
            asks(lambda: torch.addmm(bias, a, b, beta=0.5, alpha=2), None),
            asks(lambda: torch.bmm(*batches), (2, None, *batches)),
            asks(lambda: torch.baddbmm(bias, *batches, alpha=3), None),
        ]
    )


def _attention(conversions: Conversions) -> str | None:
    q, k, v = (torch.arange(4096.0).view(1, 2, 64, 32).sin() + place for place in range(3))
    mask = torch.zeros(64, 64)
    results = [torch.full((1, 2, 64, 32), 7.0), torch.full((1, 2, 64), 5.0)]
    trial = _Trial(conversions, [_ATTENTION], "attention", results)
    own: Any = torch._scaled_dot_product_flash_attention_for_cpu
    both = partial(own, q, k, v)
    return _first(
        [
            trial.objection(both, (q, k, v, 0.0, False, None, None)),
            trial.objection(partial(both, 0.0, True, scale=0.25), (q, k, v, 0.0, True, None, 0.25)),
            trial.objection(
                partial(both, attn_mask=mask, scale=0.5), (q, k, v, 0.0, False, mask, 0.5)
            ),
        ]
    )


def _boxed(conversions: Conversions) -> str | None:
    image, rows = torch.arange(32.0).view(1, 2, 4, 4), torch.arange(12.0).view(3, 4)
    weight, sums = torch.arange(4.0), torch.full((3, 1), 2.0)
    pooling = _Trial(conversions, ["aten::avg_pool2d"], "elements", [torch.ones(1, 2, 2, 2)])
    norm = _Trial(
        conversions, ["aten::native_layer_norm"], "elements", [torch.ones(3, 4), sums, sums]
    )
    gelu = _Trial(conversions, ["aten::gelu"], "elements", [torch.ones(3, 4)])
    gradients = _Trial(
        conversions,
        ["aten::native_layer_norm_backward"],
        "elements",
        [torch.ones(3, 4), torch.ones(4), torch.ones(4)],
    )
    normed: Any = torch.native_layer_norm
    differentiate: Any = torch.ops.aten.native_layer_norm_backward
    return _first(
        [
            pooling.objection(
                lambda: functional.avg_pool2d(image, 2, divisor_override=3),
                (image, (2, 2), (), (0, 0), False, True, 3),
            ),
            norm.objection(
                lambda: normed(rows, [4], weight, None, 0.5), (rows, (4,), weight, None, 0.5)
            ),
            gelu.objection(lambda: functional.gelu(rows, approximate="tanh"), (rows, "tanh")),
            gradients.objection(
                lambda: differentiate(rows, rows, [4], sums, sums, weight, weight, [True] * 3),
                (rows, rows, (4,), sums, sums, weight, weight, (True, True, True)),
            ),
        ]
    )


def _same(got: Any, expected: Any) -> bool:
    if isinstance(expected, tuple | list):
        return (
            isinstance(got, tuple | list)
            and len(got) == len(expected)
            and all(_same(*pair) for pair in zip(got, expected, strict=True))
        )
    if isinstance(expected, Tensor):
        if not isinstance(got, Tensor) or got.shape != expected.shape:
            return False
        return torch.allclose(got, expected, rtol=0.0, atol=0.0, equal_nan=True)
    return type(got) is type(expected) and bool(got == expected)


def said_by_child() -> str | None:
    """Return the objection of a child process, from a file if this PyTorch was tried before."""
    if _TRYING in os.environ:  # the child's own code may enable bestof
        return "it is being tried"
    library = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"), None)
    if library is None:
        return "its library was not found"
    found = library.stat()
    build = [torch.__version__, found.st_size, found.st_mtime_ns, Path(__file__).stat().st_mtime_ns]
    place = _place()
    try:
        kept = None if place is None else json.loads(place.read_text(encoding="utf-8"))
        if kept is not None and kept["build"] == build:
            return None if kept["objection"] is None else str(kept["objection"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    said, lasts = _asked_of_child()
    if lasts and place is not None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, json.dumps({"build": build, "objection": said}))
        except OSError:
            pass
    return said


def _asked_of_child() -> tuple[str | None, bool]:
    """Return the objection of a new child, and whether it would be the same the next time."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "BESTOF": "off", _TRYING: "1"},
        )
    except subprocess.TimeoutExpired:
        told = f"the trial in a child process did not end within {_SECONDS:.0f} seconds, perhaps "
        return told + "because the machine is busy; the next process tries again", False
    except OSError as error:
        return f"the trial in a child process failed: {error}", False
    for line in child.stdout.splitlines():
        if line.startswith(_VERDICT):
            said: str | None = json.loads(line.removeprefix(_VERDICT))
            return said, True
    status = child.returncode
    return f"the trial ended a child process with status {status}", -status in _CRASHES


def _place() -> Path | None:
    """Return the file of the answer; None for a user without a home folder."""
    try:
        return cache_folder() / "bestof" / "registration.json"
    except RuntimeError:
        return None

"""Arguments of other types: integers of any kind are taken, anything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bestof.errors import KernelError
from bestof.kernels import (
    Conv2dPlan,
    Pool2dPlan,
    conv2d,
    conv2d_algorithms,
    conv2d_backward_input,
    conv2d_backward_weight,
    focal_loss,
    multiply_adds,
    pack_weights,
    pool2d,
    pool2d_backward,
    use_isa,
)
from bestof.kernels.transpose import transpose

X = np.ones((1, 9, 9, 8), np.float32)
W = np.ones((8, 3, 3, 8), np.float32)
SHAPES = X.shape, W.shape


def direct_plan(x_shape: Any = X.shape, **options: Any) -> Conv2dPlan:
    return Conv2dPlan(x_shape, W.shape, algorithm="direct", **options)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"threads": 1.5}, "threads: expected an integer; got 1.5"),
        ({"threads": "2"}, "threads: expected an integer; got '2'"),
        ({"algorithm": 3}, "algorithm: expected a name of conv2d_algorithms; got 3"),
        ({"activation": (3, 1)}, r"activation: expected a name, or \(name, slope\); got \(3, 1\)"),
        ({"stride": 1.0}, "stride: expected an integer or a pair of them; got 1.0"),
        ({"padding": "a"}, "padding: expected an integer, a pair"),
        ({"groups": [1]}, r"groups: expected an integer; got \[1\]"),
        ({"groups": 2**64}, "groups: expected an integer; got 18446744073709551616"),
        ({"threads": 2**40}, "threads: expected 1 to 4096; got 1099511627776"),
    ],
)
def test_arguments_of_other_types_are_refused_by_name(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelError, match=said):
        conv2d(X, W, **arguments)


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (lambda: pool2d(X, 2, threads=1.5), "threads"),  # type: ignore[arg-type]  # on purpose
        (lambda: focal_loss(X, X, threads="1"), "threads"),  # type: ignore[arg-type]  # on purpose
        (lambda: pack_weights(W, 3), "algorithm"),  # type: ignore[arg-type]  # on purpose
        (lambda: pack_weights(W, "convgemm", threads=2.5), "threads"),  # type: ignore[arg-type]
        (lambda: transpose(X, (False, True, 2, 3)), "axes"),
        (lambda: conv2d_algorithms(*SHAPES, direction=3), "direction"),  # type: ignore[arg-type]
        (lambda: conv2d_algorithms(X.shape, W.shape, direction="back"), "direction"),
        (lambda: conv2d_algorithms(3, W.shape), "x_shape"),  # type: ignore[arg-type]  # on purpose
        (lambda: conv2d_algorithms(X.shape, (8, 3, 3, 8.0)), "w_shape"),  # type: ignore[arg-type]
        (lambda: conv2d_algorithms(X.shape, W.shape, dtype=3), "dtype"),  # type: ignore[arg-type]
        (lambda: direct_plan(direction=3), "direction"),
        (lambda: direct_plan((1, "9", 9, 8)), "x_shape"),
        (lambda: direct_plan().run(1.5, 2, 3), "addresses"),  # type: ignore[arg-type]  # on purpose
        (lambda: direct_plan().run(1, 2, -3), "addresses"),
        (lambda: conv2d_backward_input(X, W, 9), "x_shape"),  # type: ignore[arg-type]  # on purpose
        (lambda: conv2d_backward_weight(X, X, (8, None, 3, 8)), "w_shape"),  # type: ignore
        (lambda: pool2d(X, 2, count_padding="no"), "count_padding"),  # type: ignore[arg-type]
        (lambda: pool2d(X, 2**64), "kernel"),
        (lambda: pool2d_backward(X, 9, 2, x=X), "x_shape"),  # type: ignore[arg-type]  # on purpose
        (lambda: multiply_adds("many"), "steps"),  # type: ignore[arg-type]  # on purpose
        (lambda: multiply_adds(1, threads=1.5), "threads"),  # type: ignore[arg-type]  # on purpose
        (lambda: use_isa(3), "name"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_the_other_kernels_refuse_it_too(run: Callable[[], Any], name: str) -> None:
    with pytest.raises(KernelError, match=f"{name}: expected"):
        run()


@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "groups", "threads"])
def test_integers_of_numpy_are_integers(name: str) -> None:
    numpy: dict[str, Any] = {name: np.int64(1)}
    python: dict[str, Any] = {name: 1}
    assert np.array_equal(conv2d(X, W, **numpy), conv2d(X, W, **python))


def test_pairs_and_axes_of_numpy() -> None:
    assert conv2d(X, W, stride=np.array([1, 2])).shape == (1, 7, 4, 8)
    assert conv2d(X, W, padding=((np.int64(1), 0), (0, 0))).shape == (1, 8, 7, 8)
    assert transpose(X, np.array([0, 3, 1, 2])).shape == (1, 8, 9, 9)


def test_a_tensor_that_requires_a_gradient_is_refused() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.ones(X.shape), torch.ones(W.shape, requires_grad=True)
    with pytest.raises(KernelError, match=r"^w: expected an array without a gradient.*detach it"):
        conv2d(x, w)
    with pytest.raises(KernelError, match=r"^x: "):
        pool2d(x.clone().requires_grad_(), 2)
    with pytest.raises(KernelError, match=r"^out: "):
        transpose(x, (0, 1, 2, 3), out=x.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(conv2d(x, w), conv2d(x, w.detach()))


def test_a_tensor_with_the_negative_bit_is_refused() -> None:
    """Its memory has the other sign."""
    torch = pytest.importorskip("torch")
    x = torch.randn(*X.shape, dtype=torch.complex64).conj().imag
    with pytest.raises(KernelError, match=r"^x: expected a tensor without the negative bit"):
        pool2d(x, 2)
    resolved = x.resolve_neg()
    assert np.array_equal(pool2d(resolved, 2), pool2d(resolved.numpy(), 2))


def test_a_plan_refuses_addresses_of_nothing() -> None:
    plan = Conv2dPlan(X.shape, W.shape, algorithm="direct")
    with pytest.raises(KernelError, match="addresses: expected three that are not 0; got 0, 0, 0"):
        plan.run(0, 0, 0)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_plan_refuses_arrays_for_addresses(library: str) -> None:
    """Their truth value is an error of their own library, before a kernel is asked."""
    a: Any = pytest.importorskip(library).ones(X.shape)
    for run in (
        lambda: Conv2dPlan(X.shape, W.shape, algorithm="direct").run(a, a, a),
        lambda: Conv2dPlan(X.shape, W.shape, algorithm="direct").run(64, 64, 64, a, a),
        lambda: Pool2dPlan(X.shape, 2).run(a, a),
    ):
        with pytest.raises(KernelError, match="addresses: expected integers from 0 on"):
            run()

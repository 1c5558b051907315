"""The promises of every row of the convolution table, and the errors for bad arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bestof import kernels
from bestof.errors import KernelError

X = np.ones((2, 8, 8, 4), np.float32)
W = np.ones((6, 3, 3, 4), np.float32)
DIRECTIONS = ("forward", "backward_input", "backward_weight")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_row_makes_its_promises(direction: str) -> None:
    promises = kernels.conv2d_algorithms(X.shape, W.shape, padding=1, direction=direction)
    assert "convgemm" in promises
    for name, promise in promises.items():
        row = promise.algorithm
        assert row == kernels.algorithms()[name]
        assert row.name == name
        assert direction in row.directions
        assert promise.error_bound == row.error.rms + row.rounding.rms  # few channels
        assert promise.maximum_bound == row.error.maximum + row.rounding.maximum
        assert promise.scratch_bytes >= 0
        assert 0 < promise.flops < math.inf
        assert promise.packs == (direction == "forward")  # of those that take a 3x3 kernel
        assert promise.pools == (direction == "forward" and row.pools)


def test_every_row_is_sound() -> None:
    rows = kernels.algorithms()
    assert {"direct", "convgemm", "winograd4", "matvec"} <= set(rows)
    for name, row in rows.items():
        assert row.name == name
        assert "forward" in row.directions
        assert 0 < row.error.rms < row.error.maximum < 1e-3
        assert (row.rounds == "nothing") == (row.rounding.rms == row.rounding.maximum == 0.0)
        assert 0 <= row.rounding.rms <= row.rounding.maximum < 0.1
        # Plain float32 arithmetic up to 5e-6; beyond that a user has to ask for it.
        assert row.accuracy == (
            "float32" if row.error.rms + row.rounding.rms <= 5e-6 else "relaxed"
        )
        fixed = row.shapes in ("kernel", "grouped kernel")
        assert fixed == (row.kernel is not None) == (row.stride is not None)
        assert row.dtypes[0] == "float32"
        assert (
            row.eager
            or row.linear
            or name
            in (
                *("im2row", "convgemm_bf16x3", "grouped", "winograd2_grouped", "winograd4_grouped"),
            )
        )


def test_rows_follow_the_instruction_set() -> None:
    before = kernels.isa()
    try:
        for isa in kernels.isas():
            kernels.use_isa(isa)
            rows = kernels.algorithms()
            assert rows["convgemm_bf16"].emulated == (not isa.endswith("_bf16"))
            assert rows["convgemm_bf16x3"].emulated == (isa != "amx_bf16")
            made = [row.name for row in rows.values() if row.rounds == "both" or row.parts]
            assert made == ["convgemm_bf16", "convgemm_bf16x3"]
            assert not any(row.emulated for row in rows.values() if row.name not in made)
    finally:
        kernels.use_isa(before)


def test_an_algorithm_that_does_not_apply_is_no_row() -> None:
    assert "winograd4" in kernels.conv2d_algorithms(X.shape, W.shape)
    assert "winograd4" not in kernels.conv2d_algorithms(X.shape, W.shape, stride=2)
    with pytest.raises(
        KernelError, match=r"algorithm: expected one that applies.*convgemm.*got winograd4"
    ):
        kernels.conv2d(X, W, stride=2, algorithm="winograd4")


def test_winograd_multiplies_less() -> None:
    rows = kernels.conv2d_algorithms((1, 26, 26, 64), (64, 3, 3, 64))
    flops = [rows[name].flops for name in ("direct", "winograd2", "winograd4", "winograd6")]
    assert flops == sorted(flops, reverse=True)
    assert flops[0] / flops[2] == pytest.approx(4.0)


class WithoutMemory:
    """Has a shape, but no memory that a kernel could read."""

    shape = X.shape


BAD: list[tuple[str, dict[str, Any]]] = [
    ("x: expected 4 dimensions", {"x": X[0]}),
    ("x: expected an array; got list", {"x": [1, 2]}),
    ("on the CPU; got WithoutMemory, which cannot be read as one", {"x": WithoutMemory()}),
    ("x: expected float32", {"x": X.astype(np.float64)}),
    ("C-contiguous array; got other strides", {"x": np.ones((2, 8, 8, 8), np.float32)[..., ::2]}),
    ("x: expected a C-contiguous", {"x": X.transpose(0, 2, 1, 3)}),
    ("w: expected 4 channels", {"w": np.ones((6, 3, 3, 5), np.float32)}),
    ("w: expected a kernel that fits", {"w": np.ones((6, 9, 3, 4), np.float32)}),
    ("w: expected extents of at least 1", {"w": np.ones((0, 3, 3, 4), np.float32)}),
    ("groups: expected a divisor", {"groups": 3}),
    ("groups: expected positive", {"groups": 0}),
    ("groups", {"groups": "two"}),
    ("stride: expected positive", {"stride": 0}),
    ("stride: expected an integer or a pair", {"stride": (1, 2, 3)}),
    ("dilation: expected positive", {"dilation": (1, -1)}),
    ("padding: expected non-negative", {"padding": -1}),
    ("padding: expected an integer", {"padding": ((1, 2), (3,))}),
    ("padding: expected an integer", {"padding": (1.5, 1)}),
    ("padding: expected integers", {"padding": ((1.5, 1), 1)}),
    ("bias: expected shape", {"bias": np.ones(5, np.float32)}),
    ("residual: expected shape", {"residual": np.ones((2, 6, 6, 5), np.float32)}),
    ("out: expected shape", {"out": np.ones((2, 6, 6, 5), np.float32)}),
    ("activation: expected relu", {"activation": "softplus"}),
    ("activation: expected a name", {"activation": 3}),
    ("algorithm: expected one that applies", {"algorithm": "fastest"}),
    ("threads: expected", {"threads": -1}),
]


@pytest.mark.parametrize(
    ("message", "change"), BAD, ids=[str(list(change)) + m for m, change in BAD]
)
def test_bad_arguments_are_named_and_nothing_is_written(
    message: str, change: dict[str, Any]
) -> None:
    out = np.full((2, 6, 6, 6), np.nan, np.float32)
    arguments: dict[str, Any] = {"x": X, "w": W, "out": out, **change}
    with pytest.raises(KernelError, match=message):
        kernels.conv2d(**arguments)
    assert np.isnan(out).all()


def test_out_must_be_writeable_and_apart() -> None:
    out = np.zeros((2, 6, 6, 6), np.float32)
    out.flags.writeable = False
    with pytest.raises(KernelError, match="out: expected a writeable"):
        kernels.conv2d(X, W, out=out)
    whole = np.ones(4096, np.float32)
    with pytest.raises(KernelError, match="out: expected memory of its own; it overlaps x"):
        kernels.conv2d(
            whole[:512].reshape(X.shape), W, out=whole[100 : 100 + 432].reshape(2, 6, 6, 6)
        )


def test_read_only_arguments_are_read() -> None:
    x = X.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(kernels.conv2d(x, W), kernels.conv2d(X, W))


def test_residual_may_be_the_result() -> None:
    for name in kernels.conv2d_algorithms(X.shape, W.shape):
        y = np.full((2, 6, 6, 6), 3.0, np.float32)
        kernels.conv2d(X, W, residual=y, out=y, algorithm=name)
        np.testing.assert_allclose(y, 39.0, rtol=1e-5)


def test_packed_weights_serve_their_own_algorithm_shape_and_instruction_set() -> None:
    packed = kernels.pack_weights(W, "winograd4")
    assert (packed.algorithm, packed.shape, packed.groups) == ("winograd4", W.shape, 1)
    assert packed.nbytes >= 36 * 6 * 4 * 4
    np.testing.assert_allclose(kernels.conv2d(X, packed), kernels.conv2d(X, W), rtol=1e-5)
    with pytest.raises(
        KernelError, match="w: expected weights packed for direct; got some for winograd4"
    ):
        kernels.conv2d(X, packed, algorithm="direct")
    with pytest.raises(KernelError, match="algorithm: expected one that applies"):
        kernels.conv2d(X, packed, stride=2)
    with pytest.raises(KernelError, match="algorithm"):
        kernels.pack_weights(np.ones((6, 5, 5, 4), np.float32), "winograd4")
    if len(kernels.isas()) > 1:
        kernels.use_isa(kernels.isas()[-1])
        try:
            with pytest.raises(KernelError, match="pack again"):
                kernels.conv2d(X, packed)
        finally:
            kernels.use_isa(None)


def test_a_plan_computes_the_same_as_the_call() -> None:
    bias = np.arange(6, dtype=np.float32)
    wanted = kernels.conv2d(X, W, bias, padding=1, activation="relu")
    plan = kernels.Conv2dPlan(X.shape, W.shape, padding=1, algorithm="winograd4", activation="relu")
    for w in (W.ctypes.data, kernels.pack_weights(W, "winograd4")):
        y = np.full(plan.y_shape, np.nan, np.float32)
        plan.run(X.ctypes.data, w, y.ctypes.data, bias.ctypes.data)
        np.testing.assert_allclose(y, wanted, rtol=1e-5)
    with pytest.raises(KernelError, match="packed for winograd4"):
        plan.run(X.ctypes.data, kernels.pack_weights(W, "direct"), y.ctypes.data)
    backward = kernels.Conv2dPlan(
        X.shape,
        W.shape,
        padding=1,
        algorithm="convgemm",
        direction="backward_input",
        activation=None,
    )
    gradient = np.full(X.shape, np.nan, np.float32)
    backward.run(wanted.ctypes.data, W.ctypes.data, gradient.ctypes.data)
    np.testing.assert_allclose(
        gradient, kernels.conv2d_backward_input(wanted, W, X.shape, padding=1), rtol=1e-5
    )


def test_torch_tensors_come_and_go_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last)
    w = torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last)
    y = kernels.conv2d(
        x.permute(0, 2, 3, 1), w.permute(0, 2, 3, 1), padding=1, algorithm="winograd4"
    )
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(
        y.permute(0, 3, 1, 2), torch.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4
    )


def test_an_instruction_set_that_cannot_run_is_refused() -> None:
    known = ", ".join(kernels.isas())
    with pytest.raises(
        KernelError, match=rf"BESTOF_ISA: expected an instruction set .*{known}.*; got mmx"
    ):
        kernels.use_isa("mmx")
    assert kernels.isa() in kernels.isas()

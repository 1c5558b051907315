"""The focal loss against an oracle in long double, in its native form and in PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bestof
import bestof.torch as bt
from bestof import kernels
from bestof.errors import BestofWarning
from bestof.selection.policies.fixed import Fixed
from bestof.selection.state.registry import Defaults
from bestof.torch.functional import focal_loss
from bestof.torch.ops import table
from bestof.torch.ops.loss import focal_loss as operation
from bestof.torch.ops.loss.focal_formula import formula

GAMMAS = (0.0, 0.5, 1.0, 2.0, 2.5)
TINY = float(np.finfo(np.float32).tiny)
# Beyond 87 the kernel takes exp(-|x|) for 0, which is at most 1.5 of the smallest normal float.
FLUSHED = 2 * TINY


def oracle(x: Tensor, y: Tensor, alpha: float, gamma: float) -> tuple[Any, Any, Any]:
    """Losses, gradients, and the sum of the magnitudes of each gradient's terms."""
    x, y = (tensor.detach().double().numpy().astype(np.longdouble) for tensor in (x, y))
    p, q = np.exp(-np.logaddexp(0, -x)), np.exp(-np.logaddexp(0, x))
    plus, minus = np.logaddexp(0, x), np.logaddexp(0, -x)
    ce = (1 - y) * plus + y * minus
    hard = (y == 0) | (y == 1)
    between = np.log(np.where(hard, 1, p * (1 - y) + q * y))
    log_om = np.where(y == 0, -minus, np.where(y == 1, -plus, between))
    # p q / om is q or p where y is 0 or 1, and om may underflow.
    rest = np.where(y == 0, q, np.where(y == 1, p, p * q / np.exp(np.where(hard, 0, log_om))))
    weight = alpha * y + (1 - alpha) * (1 - y) if alpha >= 0 else np.ones_like(y)
    power = weight * np.exp(gamma * log_om)
    first, second = gamma * (1 - 2 * y) * rest * ce, p * (1 - y) - q * y
    size = np.abs(first) + p * (1 - y) + q * y
    return power * ce, power * (first + second), power * size


def relative(dtype: torch.dtype, gamma: float, x: Tensor) -> Any:
    """The error of sums and products of positive terms, as in tests/numerics/test_focal_loss.py.

    exp(-|x|) is within 3e-7 and one rounding and enters three factors; log(1 + e) is within 2e-7;
    about 16 operations round, and a power by logarithms multiplies the error of log om by gamma.
    The plain form has the same operations. 24 roundings cover them, PyTorch's own exp and log
    being within one unit. bfloat16 rounds the result once, and once more after the upstream
    gradient.
    """
    log_om = np.maximum(np.abs(x.detach().double().numpy()), 1)
    if dtype is torch.float64:
        return (24 + 3 * gamma + 2 * gamma * log_om) * 2.0**-53
    result = (gamma + 2) * (3e-7 + 2.0**-23) + 2e-7 + (24 + 2 * gamma * log_om) * 2.0**-24
    return result + 2 * 2.0**-8 if dtype is torch.bfloat16 else result


def operands(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (3, 17, 91)
    scales = torch.tensor([0.01, 1.0, 8.0, 100.0, 1e4])
    scale = scales[torch.randint(0, len(scales), shape, generator=generator)]
    x = (torch.rand(shape, generator=generator) * 2 - 1) * scale
    soft = torch.rand(shape, generator=generator)
    hard = (soft < 0.1).float()
    mixed = torch.where(torch.rand(shape, generator=generator) < 0.05, soft, hard)
    y = {"soft": soft, "hard": hard, "mixed": mixed}[kind]
    return x.to(dtype).requires_grad_(), y.to(dtype)


def close(got: Tensor, wanted: Any, bound: Any) -> None:
    assert (np.abs(got.detach().double().numpy() - wanted) <= bound).all()


def loss_by(name: str) -> Callable[..., Tensor]:
    return bt.sigmoid_focal_loss if name == "public" else formula


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of the kernel, which is chosen. No loss is large: each calls the kernel once."""
    for module in focal_loss, operation:
        monkeypatch.setattr(module, "COMPARED", 1 << 20)
    bestof.use_policy(Fixed("native"))
    seen: list[Any] = []
    kernel = kernels.focal_loss

    def counted(*args: Any, **named: Any) -> Any:
        seen.append(named)
        return kernel(*args, **named)

    monkeypatch.setattr(kernels, "focal_loss", counted)
    return seen


@pytest.mark.parametrize("alpha", [0.25, -1])
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", ["public", "plain"])
def test_loss_and_gradient(
    form: str, dtype: torch.dtype, kind: str, gamma: float, alpha: float, calls: list[Any]
) -> None:
    x, y = operands(kind, dtype)
    upstream = torch.linspace(-3, 3, x.numel()).reshape(x.shape).to(dtype)
    loss = loss_by(form)(x, y, alpha, gamma, "none")
    assert len(calls) == (form == "public" and dtype is not torch.float64)
    assert loss.dtype is dtype
    loss.backward(upstream)
    assert x.grad is not None
    wanted, slope, size = oracle(x, y, alpha, gamma)
    bound = relative(dtype, gamma, x)
    close(loss, wanted, bound * wanted + FLUSHED)
    factor = upstream.double().numpy()
    close(x.grad, slope * factor, bound * size * np.abs(factor) + 3 * FLUSHED)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_reductions(reduction: str, dtype: torch.dtype) -> None:
    x, y = operands("mixed", dtype)
    loss = bt.sigmoid_focal_loss(x, y, 0.25, 2, reduction)
    assert loss.shape == ()
    assert loss.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    (loss * 0.5).backward()
    assert x.grad is not None
    assert x.grad.dtype is dtype
    wanted, slope, size = oracle(x, y, 0.25, 2)
    by = 0.5 / x.numel() if reduction == "mean" else 0.5
    inside = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    bound = relative(inside, 2, x)
    # A sum of positive numbers in lanes and parts: 64 additions in a row at most.
    total = float(wanted.sum()) * by * 2
    steps = 64 * (2.0**-53 if dtype is torch.float64 else 2.0**-24)
    assert abs(loss.item() - total) <= float((bound * wanted).sum()) * by * 2 + steps * total
    rounded = {torch.bfloat16: 2 * 2.0**-8, torch.float16: 2 * 2.0**-11}.get(dtype, 2.0**-23)
    least = 2.0**-24 if dtype is torch.float16 else FLUSHED  # float16's smallest number
    close(x.grad, slope * by, (bound + rounded) * size * by + least)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("form", ["public", "plain"])
def test_the_whole_range_of_floats(form: str, gamma: float) -> None:
    x = torch.tensor([44, 88, 89, 104, 1e4, 1e30, 3e38, torch.finfo(torch.float32).max, 1e-45, 0.0])
    x = torch.cat([x, -x]).requires_grad_()
    for target in (0.0, 1.0, 0.5):
        y = torch.full_like(x, target)
        loss = loss_by(form)(x, y, -1, gamma, "none")
        (slope,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
        wanted, right, size = oracle(x, y, -1, gamma)
        # log om is at most 110 where a result does not underflow.
        bound = relative(torch.float32, gamma, x.clamp(-110, 110))
        close(loss, wanted, bound * wanted + FLUSHED)
        close(slope, right, bound * size + FLUSHED)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("form", ["public", "plain"])
def test_infinities_and_nan(form: str, gamma: float) -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([inf, -inf, inf, -inf, inf, -inf, nan, nan, 1.0], requires_grad=True)
    y = torch.tensor([1, 0, 0, 1, 0.5, 0.5, 1, 0.5, nan])
    loss = loss_by(form)(x, y, -1, gamma, "none")
    (slope,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    assert loss[:6].tolist() == [0, 0, inf, inf, inf, inf]
    half = 0.5 ** (gamma + 1)
    torch.testing.assert_close(slope[:6], torch.tensor([0, 0, 1, -1, half, -half]))
    assert loss[6:].isnan().all()
    assert slope[6:].isnan().all()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_a_graph_may_be_walked_twice(reduction: str, calls: list[Any]) -> None:
    x, y = operands("mixed")
    loss = bt.sigmoid_focal_loss(x, y, reduction=reduction).sum()
    (first,) = torch.autograd.grad(loss * 1, x, retain_graph=True)
    kept = first.clone()
    (third,) = torch.autograd.grad(loss * 3, x, retain_graph=True)
    loss.backward()
    assert torch.equal(first, kept)  # later passes do not write to it
    assert torch.equal(x.grad, kept)  # type: ignore[arg-type]
    torch.testing.assert_close(third, 3 * kept, rtol=2.0**-22, atol=0)
    assert len(calls) == 3


def test_the_first_backward_pass_computes_no_loss(calls: list[Any]) -> None:
    x, y = operands("hard")
    bt.sigmoid_focal_loss(x, y, reduction="sum").backward()
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["hard", "soft", "mixed"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(kind: str, gamma: float, reduction: str) -> None:
    x, y = operands(kind, torch.float64)
    x = (x.detach() / 2e3)[0, :3, :7].clone().requires_grad_()
    y = y[0, :3, :7]

    def loss(x: Tensor) -> Tensor:
        return bt.sigmoid_focal_loss(x, y, 0.25, gamma, reduction)

    assert torch.autograd.gradcheck(loss, x)
    assert torch.autograd.gradgradcheck(loss, x)


def test_targets_may_require_a_gradient() -> None:
    x, _ = operands("soft", torch.float64)
    x = (x.detach() / 2e3)[0, :3, :7].clone().requires_grad_()
    y = torch.linspace(0.1, 0.9, 21, dtype=torch.float64).reshape(3, 7).requires_grad_()
    assert torch.autograd.gradcheck(bt.sigmoid_focal_loss, (x, y))


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_double_backward_of_the_native_form(reduction: str, calls: list[Any]) -> None:
    def curvature(x: Tensor, y: Tensor) -> Tensor:
        loss = bt.sigmoid_focal_loss(x, y, reduction=reduction)
        (slope,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    x, y = operands("mixed")
    got = curvature(x, y)
    assert calls
    wanted = curvature(x.detach().double().requires_grad_(), y.double())
    # Sums of some 20 terms below 10, each within a few roundings.
    torch.testing.assert_close(got.double(), wanted, rtol=200 * 2.0**-24, atol=200 * 2.0**-24)


@pytest.mark.parametrize(
    ("reduction", "upstream"),
    [("none", torch.arange(1.0, 5.0).reshape(4, 1, 1, 1)), ("sum", torch.arange(1.0, 5.0))],
)
def test_gradients_in_batches(reduction: str, upstream: Tensor, calls: list[Any]) -> None:
    x, y = operands("mixed")
    loss = bt.sigmoid_focal_loss(x, y, reduction=reduction)
    (got,) = torch.autograd.grad(
        loss, x, upstream.expand(4, *loss.shape), retain_graph=True, is_grads_batched=True
    )
    assert len(calls) == 1
    (slope,) = torch.autograd.grad(loss.sum(), x)
    assert torch.equal(got, upstream.reshape(4, 1, 1, 1) * slope)


def test_targets_of_inference_mode(calls: list[Any]) -> None:
    x, y = operands("mixed")
    with torch.inference_mode():
        unsaved = y.clone()
    (got,) = torch.autograd.grad(bt.sigmoid_focal_loss(x, unsaved, reduction="sum"), x)
    (wanted,) = torch.autograd.grad(bt.sigmoid_focal_loss(x, y, reduction="sum"), x)
    assert calls
    assert torch.equal(got, wanted)


def _forward_mode(x: Tensor, y: Tensor) -> Tensor:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        loss = bt.sigmoid_focal_loss(dual, y)
        return torch.autograd.forward_ad.unpack_dual(loss).tangent  # type: ignore[return-value]


def _compiled(x: Tensor, y: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    torch.compile(bt.sigmoid_focal_loss, backend="eager", fullgraph=True)(x, y).sum().backward()
    return x.grad  # type: ignore[return-value]


ELSEWHERE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad": lambda x, y: torch.func.grad(
        lambda x: bt.sigmoid_focal_loss(x, y, reduction="sum")  # type: ignore[arg-type]
    )(x),
    "vmap": lambda x, y: torch.func.vmap(
        torch.func.grad(lambda x, y: bt.sigmoid_focal_loss(x, y, reduction="sum"))
    )(x, y),
    "forward mode": _forward_mode,
    "compile": _compiled,
}


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of forward mode in PyTorch
@pytest.mark.parametrize("way", ELSEWHERE.values(), ids=ELSEWHERE)
def test_transforms_get_the_plain_form(
    way: Callable[[Tensor, Tensor], Tensor], calls: list[Any]
) -> None:
    x, y = operands("mixed")
    got = way(x.detach(), y)
    assert not calls
    _, slope, size = oracle(x, y, 0.25, 2)
    close(got, slope, relative(torch.float32, 2, x) * size + FLUSHED)


def test_layouts_and_dtypes_of_targets(calls: list[Any]) -> None:
    x, y = operands("hard")
    wanted = bt.sigmoid_focal_loss(x, y)
    assert torch.equal(bt.sigmoid_focal_loss(x.mT, y.mT), wanted.mT)
    assert torch.equal(bt.sigmoid_focal_loss(x[:, ::2], y[:, ::2]), wanted[:, ::2])
    assert torch.equal(bt.sigmoid_focal_loss(x, y.expand(1, *y.shape)[0].bool()), wanted)
    assert torch.equal(bt.sigmoid_focal_loss(x, y.long()), wanted)
    assert torch.equal(bt.sigmoid_focal_loss(x, y.double()), wanted)
    assert torch.equal(bt.sigmoid_focal_loss(x[0, 0, 0], y[0, 0, 0]), wanted[0, 0, 0])
    assert len(calls) == 7


def test_no_elements_and_no_data(calls: list[Any]) -> None:
    none = torch.empty(0, 3, requires_grad=True)
    assert bt.sigmoid_focal_loss(none, none.detach()).shape == (0, 3)
    assert bt.sigmoid_focal_loss(none, none.detach(), reduction="sum") == 0
    assert bt.sigmoid_focal_loss(none, none.detach(), reduction="mean").isnan()
    nowhere = torch.empty(2, 3, device="meta")
    assert bt.sigmoid_focal_loss(nowhere, nowhere, reduction="sum").device.type == "meta"
    assert not calls
    with torch.device("meta"):
        assert bt.sigmoid_focal_loss(*operands_on_the_cpu(), reduction="sum").item() > 0


def operands_on_the_cpu() -> tuple[Tensor, Tensor]:
    return torch.ones(3, device="cpu"), torch.zeros(3, device="cpu")


def test_the_gradient_reaches_what_is_before() -> None:
    x, y = operands("mixed")
    weight = torch.full((), 0.5, requires_grad=True)
    loss = bt.sigmoid_focal_loss(x * weight, y, reduction="sum")
    loss.backward()
    same = weight.detach().double().requires_grad_()
    bt.sigmoid_focal_loss(x.detach().double() * same, y.double(), reduction="sum").backward()
    # The sum over 4641 elements of gradient times x; each is within 3e-6 of its magnitude.
    terms = torch.from_numpy(oracle(x * weight, y, 0.25, 2)[2].astype(float))
    size = (x.detach().abs() * terms).sum()
    assert abs(weight.grad - same.grad) <= 3e-6 * size  # type: ignore[operator]


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (ValueError, "Invalid Value for arg 'reduction': 'all'", {"reduction": "all"}),
        (ValueError, "Invalid alpha value: 2", {"alpha": 2}),
        (ValueError, "Invalid alpha value: nan", {"alpha": float("nan")}),
        (ValueError, "Invalid alpha value: -0.5", {"alpha": -0.5}),
        (TypeError, "gamma: expected a number; got str", {"gamma": "2"}),
        (TypeError, "alpha: expected a number; got Tensor", {"alpha": torch.ones(())}),
        (ValueError, "must be the same as input size", {"targets": torch.ones(3)}),
    ],
)
def test_bad_arguments_are_named(
    error: type[Exception], message: str, change: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        bt.sigmoid_focal_loss(**{"inputs": torch.ones(2), "targets": torch.ones(2), **change})


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of logits that trials compute: fewer than those of `operands`."""
    for module in focal_loss, operation:
        monkeypatch.setattr(module, "COMPARED", 1024)
    return 1024


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_pytorchs_row_against_long_double(reduction: str) -> None:
    bestof.use_policy(Fixed("as is"))
    x, y = operands("mixed")
    loss = bt.sigmoid_focal_loss(x, y, reduction=reduction)
    loss.sum().backward()
    _, slope, size = oracle(x, y, 0.25, 2)
    by = 1 / x.numel() if reduction == "mean" else 1.0
    close(x.grad, slope * by, (relative(torch.float32, 2, x) + 2.0**-23) * size * by + FLUSHED)
    with torch.inference_mode():
        assert torch.equal(bt.sigmoid_focal_loss(x, y, reduction=reduction), loss)


def test_summary_and_configuration_know_the_loss() -> None:
    bestof.use_policy(Fixed("native"))
    bt.enable()
    x, y = operands("mixed")
    bt.sigmoid_focal_loss(x, y, reduction="sum").backward()
    found = {one.name: (one.chosen, one.calls) for one in bt.summary().passes}
    assert found == {"focal loss": ("native", 1)}
    bt.enable({"kernel": {"without": ["focal loss"]}})
    assert torch.equal(bt.sigmoid_focal_loss(x, y), formula(x, y, 0.25, 2, "none"))


def rows_with(monkeypatch: pytest.MonkeyPatch, native: Callable[..., Any]) -> dict[str, list[int]]:
    """Put a function in the place of the kernel; return how many logits each row computes."""
    found = table.named("focal loss", "test")
    seen: dict[str, list[int]] = {}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def row(original: None, problem: Any, x: Tensor, targets: Tensor) -> Any:
            seen.setdefault(name, []).append(x.numel())
            return function(original, problem, x, targets)

        return row

    first, second = found.rows
    rows = (
        replace(first, function=counted("as is", first.function)),
        replace(second, function=counted("native", native)),
    )
    monkeypatch.setattr(found, "rows", rows)
    return seen


def test_a_wrong_kernel_never_answers_once_it_was_compared(
    monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    def wrong(*arguments: Any) -> Any:
        loss, gradient = operation.native(*arguments)
        return loss, gradient * 1.01

    seen = rows_with(monkeypatch, wrong)
    bestof.use_policy(Fixed("native"))
    x, y = operands("mixed")
    with pytest.warns(BestofWarning, match="'native' was disqualified: wrong result"):
        bt.sigmoid_focal_loss(x, y, reduction="sum").backward()
    _, slope, size = oracle(x, y, 0.25, 2)
    close(x.grad, slope, relative(torch.float32, 2, x) * size + FLUSHED)
    assert seen["native"] == [large]


def test_trials_of_large_losses_compute_a_part(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    seen = rows_with(monkeypatch, operation.native)
    bestof.use_policy(Fixed("native"))
    for count in range(40):
        x, y = (one.detach().flatten()[count:] for one in operands("mixed"))
        bt.sigmoid_focal_loss(x.requires_grad_(), y, reduction="sum").backward()
    assert seen["as is"] == [large]  # once: another size is no other problem
    assert seen["native"] == [large, *(4641 - count for count in range(40))]


@pytest.mark.parametrize("name", ["as is", "native"])
def test_hooks_on_kept_tensors_see_the_same_whichever_row_runs(name: str) -> None:
    bestof.use_policy(Fixed(name))
    x, y = operands("mixed")
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bt.sigmoid_focal_loss(x, y, reduction="sum").backward()
    assert [one.data_ptr() for one in packed] == [x.data_ptr(), y.data_ptr()]


@pytest.mark.parametrize("rows", [3, 17])
def test_no_trial_waits_for_the_budget(
    rows: int, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(Defaults.budget, "is_on", True)
    monkeypatch.setattr(Defaults.budget, "lost", 1e9)
    seen = rows_with(monkeypatch, operation.native)
    x, y = (one[:, :rows] for one in operands("mixed"))
    for _ in range(40):
        bt.sigmoid_focal_loss(x, y, reduction="sum")
    assert len(seen["as is"]) < 40
    assert max(seen["as is"]) == min(x.numel(), large)
    assert x.numel() in seen["native"]

"""LAMB against a long double oracle, step by step, and as an optimizer of PyTorch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bestof.torch as bt
from bestof import kernels
from bestof.torch.optim import lamb

WAYS = pytest.mark.parametrize("foreach", [False, True, None], ids=["each", "foreach", "native"])
BETAS = 0.9, 0.999


def wide(tensor: Tensor) -> Any:
    return tensor.detach().double().numpy().astype(np.longdouble)


def check_step(optimizer: bt.optim.LAMB, tensor: Tensor) -> None:
    """Compare one step of one tensor with the formula, from the state that was there before.

    The bound follows the rounding errors: of both moments (a few roundings of their terms), of the
    denominator and of the quotient, which the norm and the final subtraction take over.
    """
    (group,) = optimizer.param_groups
    eps = torch.finfo(tensor.dtype).eps / 2
    state = optimizer.state.get(tensor, {})
    x, g = wide(tensor), wide(tensor.grad)  # type: ignore[arg-type]
    zero = torch.zeros_like(tensor)
    m, v = (wide(state.get(name, zero)) for name in ("exp_avg", "exp_avg_sq"))
    t = int(state["step"]) + 1 if state else 1
    first, second = (np.longdouble(beta) for beta in group["betas"])
    optimizer.step()

    g = -g if group["maximize"] else g
    size = np.abs(first * m) + np.abs((1 - first) * g)
    m = first * m + (1 - first) * g
    v = np.minimum(second * v + (1 - second) * g * g, torch.finfo(tensor.dtype).max)
    least = np.longdouble(torch.finfo(tensor.dtype).smallest_normal) * 2 * eps
    np.testing.assert_array_less(
        np.abs(wide(state_of(optimizer, tensor, 0)) - m), 4 * eps * size + 4 * least
    )
    np.testing.assert_array_less(
        np.abs(wide(state_of(optimizer, tensor, 1)) - v), 6 * eps * v + 4 * least
    )

    d = (1 - first**t) * (np.sqrt(v / (1 - second**t)) + group["eps"])
    # The optimizer takes 1 - beta^t in float64, whose error grows where beta^t is close to 1.
    close_to_1 = 2.0**-52 / (1 - first**t) + 2.0**-52 / (1 - second**t)
    off_d = (8 * eps + close_to_1) * d + (1 - first**t) * np.sqrt(4 * least / (1 - second**t))
    r, decay = m / d, group["weight_decay"] * x
    u = r + decay
    off_u = (4 * eps * size + 4 * least) / d + np.abs(r) * (off_d / d + 2 * eps)
    off_u += 3 * eps * (np.abs(r) + np.abs(decay)) + least
    length, norm = np.sqrt((x * x).sum()), np.sqrt((u * u).sum())
    rate = float(group["lr"]) * (length / norm if length and norm else 1)
    off_rate = (np.sqrt((off_u * off_u).sum()) / norm if norm else 0) + 4 * eps
    wanted = x - rate * u
    bound = rate * (off_u + np.abs(u) * off_rate) + eps * np.abs(wanted) + 2 * least
    assert off_rate < 0.01  # or the bound says nothing
    assert (np.abs(wide(tensor) - wanted) <= bound).all()


def state_of(optimizer: bt.optim.LAMB, tensor: Tensor, moment: int) -> Tensor:
    found: Tensor = optimizer.state[tensor][("exp_avg", "exp_avg_sq")[moment]]
    return found


def tensors(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [
        (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_()
        for shape in ((5, 7), (), (1000,), (3, 2, 2, 2))
    ]


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"maximize": True}, {"weight_decay": 0.0}, {"lr": 0.5, "betas": (0.0, 0.5), "eps": 1e-3}],
    ids=["defaults", "maximize", "no decay", "others"],
)
@pytest.mark.parametrize(
    ("scale", "slope"),
    [(1, 1), (1e4, 1e4), (1e-4, 1e4), (1e37, 1e37), (1, 1e37), (1e-38, 1e-10), (0, 1), (1, 0)],
)
def test_steps(
    scale: float, slope: float, options: dict[str, Any], dtype: torch.dtype, foreach: bool
) -> None:
    for tensor in tensors(scale, dtype):
        optimizer = bt.optim.LAMB([tensor], foreach=foreach, **options)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            grad = torch.randn(tensor.shape, generator=generator) * slope
            tensor.grad = grad.to(dtype)
            check_step(optimizer, tensor)


def run(optimizer: torch.optim.Optimizer, params: list[Tensor], steps: int, first: int = 0) -> None:
    for seed in range(first, first + steps):
        generator = torch.Generator().manual_seed(seed)
        for param in params:
            real = torch.view_as_real(param) if param.is_complex() else param
            grad = torch.randn(real.shape, generator=generator).to(real.dtype)
            param.grad = torch.view_as_complex(grad) if param.is_complex() else grad
        optimizer.step()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]
)
@pytest.mark.parametrize("maximize", [False, True])
def test_both_ways_give_the_same_bits(dtype: torch.dtype, maximize: bool) -> None:
    # The same operations in the same order: no tolerance is needed.
    results = []
    for foreach in (False, True):
        params = [*tensors(1.0, dtype), *tensors(2.0, torch.float64)]
        run(bt.optim.LAMB(params, 0.1, foreach=foreach, maximize=maximize), params, 4)
        results.append(params)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@WAYS
def test_complex_numbers_are_pairs_of_real_ones(foreach: bool) -> None:
    pairs = torch.randn(6, 2, generator=torch.Generator().manual_seed(1))
    number, real = torch.view_as_complex(pairs.clone()).requires_grad_(), pairs.requires_grad_()
    for param in (number, real):
        run(bt.optim.LAMB([param], foreach=foreach), [param], 3)
    assert torch.equal(torch.view_as_real(number), real)


@WAYS
def test_each_tensor_moves_by_its_length(foreach: bool) -> None:
    params = tensors()
    before = [param.detach().clone() for param in params]
    run(bt.optim.LAMB(params, 0.01, foreach=foreach), params, 1)
    for param, old in zip(params, before, strict=True):
        moved = (param.detach() - old).norm() / old.norm()
        # Subtraction rounds by at most 2^-24 of a length that is 100 times the step.
        assert abs(moved - 0.01) <= 0.01 * 200 * 2.0**-24 * 2


@WAYS
def test_nan_reaches_the_whole_tensor_and_no_other(foreach: bool) -> None:
    params = tensors()
    optimizer = bt.optim.LAMB(params, foreach=foreach)
    for param in params:
        param.grad = torch.ones_like(param)
    params[2].grad[3] = torch.nan  # type: ignore[index]
    optimizer.step()
    assert [bool(param.isnan().all()) for param in params] == [False, False, True, False]
    assert all(param.isfinite().all() for param in (params[0], params[1], params[3]))


@WAYS
def test_a_state_dict_continues_the_training(foreach: bool) -> None:
    params = tensors()
    optimizer = bt.optim.LAMB(params, 0.1, foreach=foreach)
    run(optimizer, params, 2)
    twins = [param.detach().clone().requires_grad_() for param in params]
    other = bt.optim.LAMB(twins)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    third = pickle.loads(pickle.dumps(optimizer))
    for again, some in ((optimizer, params), (other, twins)):
        run(again, some, 2, first=2)
    run(third, third.param_groups[0]["params"], 2, first=2)
    for one, two, three in zip(params, twins, third.param_groups[0]["params"], strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_a_state_dict_from_before_an_option() -> None:
    params = tensors()
    optimizer = bt.optim.LAMB(params)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["foreach"], group["maximize"]
    optimizer.load_state_dict(state)
    run(optimizer, params, 1)
    assert optimizer.param_groups[0]["maximize"] is False


def test_groups_have_rates_of_their_own() -> None:
    fast, slow, still, idle = tensors()
    optimizer = bt.optim.LAMB([{"params": [fast, idle], "lr": 0.1}, {"params": [slow]}], lr=0.01)
    optimizer.add_param_group({"params": [still], "lr": torch.tensor(0.0)})
    before = [param.detach().clone() for param in (fast, slow, still, idle)]
    run(optimizer, [fast, slow, still], 1)
    moved = [
        float((param.detach() - old).norm() / old.norm())
        for param, old in zip((fast, slow, still, idle), before, strict=True)
    ]
    assert moved == pytest.approx([0.1, 0.01, 0, 0], rel=1e-4)
    assert idle not in optimizer.state


@WAYS
def test_a_closure_is_called_with_gradients(foreach: bool) -> None:
    param = torch.ones(3, requires_grad=True)
    optimizer = bt.optim.LAMB([param], 0.1, foreach=foreach)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(20)]
    assert losses[0] == 3
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.1


def test_a_schedule_changes_the_rate() -> None:
    params = tensors()
    optimizer = bt.optim.LAMB(params, 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    run(optimizer, params, 1)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("Invalid learning rate: -1", {"lr": -1.0}),
        ("Invalid learning rate: nan", {"lr": float("nan")}),
        ("Tensor lr must be 1-element", {"lr": torch.ones(2)}),
        ("Invalid beta parameter at index 0: 1.0", {"betas": (1.0, 0.9)}),
        ("Invalid beta parameter at index 1: -0.1", {"betas": (0.9, -0.1)}),
        ("Invalid epsilon value: -1", {"eps": -1.0}),
        ("Invalid weight_decay value: -1", {"weight_decay": -1.0}),
        ("optimizer got an empty parameter list", {"params": []}),
        ("can't optimize a non-leaf Tensor", {"params": [torch.ones(2, requires_grad=True) * 2]}),
    ],
)
def test_bad_options_are_refused_in_the_words_of_torch(
    message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=message):
        bt.optim.LAMB(**{"params": tensors(), **options})


def test_sparse_gradients_are_refused() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="LAMB does not support sparse gradients"):
        bt.optim.LAMB(table.parameters()).step()


def native_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every step of the native kernel adds the size of its tensor."""
    sizes: list[int] = []

    def counted(param: Tensor, *args: Any, **options: Any) -> None:
        kernels.lamb_step(param, *args, **options)
        sizes.append(param.numel())

    monkeypatch.setattr(lamb, "lamb_step", counted)
    return sizes


def test_dense_float32_tensors_go_through_the_native_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = native_steps(monkeypatch)
    image = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    params = [*tensors(), image]
    optimizer = bt.optim.LAMB(params)
    for param in params:
        param.grad = torch.randn_like(param)
        before = param._version
        check_step(bt.optim.LAMB([param]), param)
        assert param._version > before, "autograd sees that it was written"
    assert sizes == [param.numel() for param in params]
    optimizer.step()
    assert len(sizes) == 2 * len(params)
    assert optimizer.state[image]["exp_avg_sq"]._version > 0


def test_other_tensors_go_through_the_operations_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = native_steps(monkeypatch)

    class Own(Tensor):
        pass

    strided = torch.randn(6, 4)[:, ::2].requires_grad_()
    double = torch.randn(5, dtype=torch.float64, requires_grad=True)
    own = torch.randn(3).as_subclass(Own).requires_grad_()
    mixed = torch.randn(2, 3, 4, 4, requires_grad=True)
    for param in (strided, double, own, mixed):
        param.grad = torch.ones_like(param)
    mixed.grad = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    itself = torch.randn(7, requires_grad=True)
    itself.grad = itself.detach()  # the kernel refuses memory that is shared
    params = [strided, double, own, mixed, itself]
    before = [param.detach().clone() for param in params]
    bt.optim.LAMB(params, lr=0.1).step()
    assert sizes == []
    assert all(not torch.equal(one, old) for one, old in zip(params, before, strict=True))
    assert all(param.isfinite().all() for param in params)


def test_the_native_kernel_follows_foreach(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = native_steps(monkeypatch)
    results = []
    for foreach in (None, True):
        params = tensors()
        run(bt.optim.LAMB(params, 0.1, foreach=foreach), params, 20)
        results.append(params)
    assert len(sizes) == 20 * len(params)
    for one, other in zip(*results, strict=True):
        # Each step rounds u and x a few times; 20 steps add up to less than 200 roundings.
        length = other.detach().abs().amax()
        assert ((one - other).detach().abs() <= 200 * 2.0**-24 * length).all()


def test_both_share_their_state_dict() -> None:
    one, other = tensors(), tensors()
    native, foreach = bt.optim.LAMB(one), bt.optim.LAMB(other, foreach=True)
    run(native, one, 2)
    run(foreach, other, 2)
    mine, theirs = native.state_dict(), foreach.state_dict()
    assert mine["param_groups"][0].keys() == theirs["param_groups"][0].keys()
    for key, state in mine["state"].items():
        assert state.keys() == theirs["state"][key].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(state[name].dtype == theirs["state"][key][name].dtype for name in state)


@pytest.mark.parametrize("foreach", [None, False])
def test_a_weight_decay_beyond_float32_is_refused(foreach: bool | None) -> None:
    param = torch.ones(3, requires_grad=True)
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="without overflow"):
        bt.optim.LAMB([param], weight_decay=1e300, foreach=foreach).step()

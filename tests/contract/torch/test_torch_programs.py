"""Uses of PyTorch other than training and inference work while tuning is on."""

from __future__ import annotations

import copy
import io
import os
import pickle
import shutil
import threading
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from tuned_program import CALLS, assert_same, assert_unchanged, calls_seen, net, step

import bestof.torch as integration


def test_models_are_copied_and_kept(policy: None) -> None:
    model, x = net().eval(), torch.randn(2, 3, 16, 16)
    expected = model(x)
    with integration.enabled():
        for _ in range(3):
            step(model, x)
        saved = io.BytesIO()
        torch.save(model.state_dict(), saved)
        saved.seek(0)
        loaded = net().eval()
        loaded.load_state_dict(torch.load(saved))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
            assert_same(other(x).detach(), expected.detach())


def test_threads(policy: None) -> None:
    models = [net().eval() for _ in range(4)]
    inputs = [torch.randn(2 + number % 2, 3, 16, 16) for number in range(4)]
    expected = [step(model, x) for model, x in zip(models, inputs, strict=True)]
    failed: list[BaseException] = []

    def work(number: int) -> None:
        torch.set_num_threads(1)
        try:
            for _ in range(CALLS):
                assert_same(step(models[number], inputs[number]), expected[number])
        except BaseException as error:
            failed.append(error)

    with integration.enabled():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork(policy: None) -> None:
    model, x = net().eval(), torch.randn(2, 3, 16, 16)
    expected = step(model, x)
    with integration.enabled():
        for _ in range(3):
            step(model, x)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(3):
                    assert_same(step(model, x), expected)
                integration.disable()
                assert_same(step(model, x), expected)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


class Convolved(torch.utils.data.Dataset):
    """Images that a worker process makes by a convolution of its own."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return torch.conv2d(torch.full((1, 1, 6, 6), float(index)), torch.ones(2, 1, 3, 3))[0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_data_loader_with_workers(policy: None) -> None:
    with integration.enabled():
        torch.conv2d(torch.ones(1, 1, 6, 6), torch.ones(2, 1, 3, 3))
        loader = torch.utils.data.DataLoader(
            Convolved(), batch_size=2, num_workers=2, multiprocessing_context="fork"
        )
        values = torch.cat(list(loader))
    wanted = torch.arange(6.0).reshape(6, 1, 1, 1).expand(6, 2, 4, 4) * 9
    torch.testing.assert_close(values, wanted, rtol=1e-5, atol=1e-5)  # a trial may be Winograd's


def test_compiled(policy: None) -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)),
        torch.randn(2, 3, 12, 12),
    )
    expected = step(model, x)
    torch._dynamo.reset()
    with integration.enabled():
        compiled = torch.compile(model, backend="aot_eager")
        for _ in range(4):
            assert_same(step(compiled, x), expected)
    assert calls_seen() > 0
    assert_same(step(compiled, x), expected)


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # inductor uses torch.jit, which says that it is old
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler for the default backend")
@pytest.mark.skipif(
    " " in torch.__file__,
    reason="PyTorch's default backend does not compile from a path with a space",
)
@pytest.mark.parametrize("train", [True, False])
def test_compiled_by_the_default_backend(train: bool) -> None:
    model, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)),
        torch.randn(2, 3, 12, 12),
    )

    def compute(module: Any) -> list[Tensor]:
        if train:
            return step(module, x)
        with torch.no_grad():
            return [module(x)]

    expected = compute(model)
    torch._dynamo.reset()
    with integration.enabled():
        compiled = torch.compile(model)
        for _ in range(4):
            assert_same(compute(compiled), expected)
        assert calls_seen() > 0
    assert_same(compute(compiled), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # says that it is old
def test_traced(policy: None) -> None:
    model, x = net().eval(), torch.randn(2, 3, 16, 16)
    expected = model(x)
    with integration.enabled():
        traced = torch.jit.trace(model, x)
        for _ in range(3):
            assert_same(traced(x).detach(), expected.detach())


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # torch.func.jvp uses it
def test_function_transforms(policy: None) -> None:
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(5, 2, 3, 9, 9)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return torch.conv2d(x, weight, padding=1).square().mean()

    def compute() -> list[Tensor]:
        return [
            torch.func.grad(loss)(weight, x[0]),
            torch.func.vmap(loss, (None, 0))(weight, x),
            torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x),
            torch.func.jvp(lambda w: loss(w, x[0]), (weight,), (torch.ones_like(weight),))[1],
        ]

    assert_unchanged(compute)


class Watched(Tensor):
    """A tensor that sees every function that it goes through."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("which", ["input", "weight", "gradient"])
def test_tensor_subclasses_see_the_same_calls_as_before(which: str, policy: None) -> None:
    def watched(name: str, tensor: Tensor) -> Tensor:
        return tensor.as_subclass(Watched) if name == which else tensor

    x, weight, go = (
        torch.randn(2, 3, 9, 9),
        torch.randn(4, 3, 3, 3, requires_grad=True),
        torch.randn(2, 4, 7, 7),
    )

    def compute() -> tuple[list[str], list[type], list[Tensor]]:
        Watched.seen.clear()
        out = torch.conv2d(watched("input", x), watched("weight", weight))
        plain = out.as_subclass(
            Tensor
        )  # else all of the backward pass is one function that `Watched` sees
        got = [out.detach(), *torch.autograd.grad(plain, weight, watched("gradient", go))]
        seen = list(Watched.seen)
        return seen, [type(one) for one in got], [one.as_subclass(Tensor) for one in got]

    expected = compute()
    with integration.enabled():
        for _ in range(CALLS):
            got = compute()
            assert got[:2] == expected[:2]
            assert_same(got[2], expected[2])


def test_deterministic_mode_is_obeyed(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    torch.use_deterministic_algorithms(True)
    try:
        expected = step(model, x)
        with integration.enabled():
            for _ in range(3):
                assert all(
                    torch.equal(*pair) for pair in zip(step(model, x), expected, strict=True)
                )
    finally:
        torch.use_deterministic_algorithms(False)
    assert calls_seen() == 0

"""What PyTorch programs do must work, and come to the same, while convolutions are chosen among alternatives."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import bestof
import bestof.torch as integration
from bestof.selection.policies import Fixed, Rounds
from bestof.torch.enable import _State, convolution_override

CALLS = 12  # enough for `EachInTurn` to try seven alternatives; enough for Race to drop some


class EachInTurn:
    """A search without an end, that asks for the alternatives in turn: every call is a trial of another one."""

    def __init__(self, count: int) -> None:
        self._remaining = list(range(count))
        self._asked = 0
        self.winner = None

    def ask(self) -> int | None:
        self._asked += 1
        return self._remaining[self._asked % len(self._remaining)]

    def tell(self, position: int, seconds: float) -> None:
        pass

    def drop(self, position: int) -> None:
        self._remaining.remove(position)


class EachInTurnPolicy:
    def start(self, alternatives: Sequence[str]) -> EachInTurn:
        return EachInTurn(len(alternatives))


class Prefer:
    """Decides for this name where the selector has it, else for the first."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, alternatives: Sequence[str]) -> Any:
        return Fixed(self.name).start(alternatives) if self.name in alternatives else Rounds(1).start(alternatives)


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has just begun, without a store, on one thread; PyTorch's own kernels afterwards."""
    monkeypatch.setattr(_State, "override", None)
    bestof.use_store(None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(threads)
    integration.disable()
    bestof.use_policy(None)


@pytest.fixture(params=["race", "each in turn"])
def policy(request: pytest.FixtureRequest, own_process: None) -> None:
    if request.param != "race":
        bestof.use_policy(EachInTurnPolicy())


def net(channels: int = 3, **options: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1, **options),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1, bias=False, groups=2, **options),
        nn.BatchNorm2d(8, **options),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, dilation=2, padding=2, **options),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12 * 4 * 4, 5, **options),
    )


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and gradients of a step without its update."""
    model.zero_grad()
    out = model(x)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def assert_same(got: Any, expected: Any) -> None:
    """Equal within what float32 sums in another order come to; shapes, dtypes and strides equal."""
    if not isinstance(expected, Tensor):
        assert type(got) is type(expected)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
        return
    tolerance = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float64: 1e-13}.get(expected.dtype, 0.0)
    scale = expected.abs().max().item() if expected.numel() else 0.0
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=0, atol=scale * tolerance, equal_nan=True)


def assert_unchanged(compute: Callable[[], Any], calls: int = CALLS) -> None:
    """The same result with tuning on, call for call, and again after it was off."""
    expected = compute()
    with integration.enabled():
        for _ in range(calls):
            assert_same(compute(), expected)
    assert_same(compute(), expected)


def calls_seen() -> int:
    override = convolution_override()
    return 0 if override is None else sum(sum(counts.totals().values()) for _, counts in override.layer.passes)


# Training


def test_training_follows_the_same_curve(policy: None) -> None:
    x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 5, (16,))
    x.add_(y.reshape(-1, 1, 1, 1) / 2)

    def losses() -> list[float]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), net(16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        curve = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        return curve

    expected = losses()
    with integration.enabled():
        got = losses()
    assert expected[-1] < 0.8 * expected[0]
    assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) < 1e-3
    assert calls_seen() > 20 * 3 * 3


def test_a_step_comes_to_the_same(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    assert_unchanged(lambda: step(model, x))
    assert calls_seen() > 0


@pytest.mark.parametrize("where", ["input", "weight", "both"])
def test_channels_last(where: str, policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    if where != "weight":
        x = x.contiguous(memory_format=torch.channels_last)
    if where != "input":
        model = model.to(memory_format=torch.channels_last)
    assert_unchanged(lambda: step(model, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype, policy: None) -> None:
    model, x = net(dtype=dtype), torch.randn(4, 3, 16, 16, dtype=dtype)
    assert_unchanged(lambda: step(model, x))
    assert (calls_seen() > 0) == (dtype == torch.float64)


def test_autocast_to_bfloat16(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)

    def compute() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return step(model, x)

    assert_unchanged(compute)


@pytest.mark.parametrize("frozen", ["first weight", "first layer", "all", "all but bias"])
def test_frozen_weights(frozen: str, policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16, requires_grad=frozen == "all")
    for name, parameter in model.named_parameters():
        if {
            "first weight": name == "0.weight",
            "first layer": name.startswith("0."),
            "all": True,
            "all but bias": name != "0.bias",
        }[frozen]:
            parameter.requires_grad_(False)

    def compute() -> list[Tensor]:
        x.grad = None
        return [*step(model, x), *([x.grad] if x.grad is not None else [])]

    assert_unchanged(compute)


def test_retained_graph_and_parts_of_it(policy: None) -> None:
    weight, x = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9, requires_grad=True)
    bias = torch.randn(6, requires_grad=True)

    def compute() -> list[Tensor]:
        out = torch.conv2d(x * 2, weight, bias, padding=1).sin()
        first = torch.autograd.grad(out.sum(), [x, weight, bias], retain_graph=True)
        again = torch.autograd.grad(out.sum(), [x, weight, bias], retain_graph=True)
        parts = [torch.autograd.grad(out.sum(), one, retain_graph=True)[0] for one in (x, weight, bias)]
        return [out.detach(), *first, *again, *parts]

    assert_unchanged(compute)


def test_double_backward(policy: None) -> None:
    weight, x = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9, requires_grad=True)

    def compute() -> list[Tensor]:
        out = torch.conv2d(x, weight, padding=1).sin().sum()
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        return list(torch.autograd.grad(grad.square().sum(), [x, weight]))

    assert_unchanged(compute)


def test_gradients_agree_with_differences(policy: None) -> None:
    weight = torch.randn(4, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    with integration.enabled():
        for _ in range(3):
            assert torch.autograd.gradcheck(
                lambda x, w: torch.conv2d(x, w, stride=2, padding=1, groups=2),
                (x, weight),
                fast_mode=True,
                nondet_tol=1e-12,  # trials of different alternatives follow each other
            )


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool, policy: None) -> None:
    first, second = nn.Conv2d(3, 8, 3), nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model, x = nn.ModuleList([first, second]), torch.randn(2, 3, 12, 12)

    def compute() -> list[Tensor]:
        model.zero_grad()
        out = checkpoint(second, first(x), use_reentrant=reentrant)
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    assert_unchanged(compute)


def test_saved_tensors_that_hooks_replace(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)

    def compute() -> list[Tensor]:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return step(model, x)

    assert_unchanged(compute)


def test_hooks(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    seen: list[Any] = []
    model[2].register_forward_hook(lambda module, args, out: seen.append(out.detach().norm()) or out * 2)
    model[2].register_full_backward_hook(lambda module, into, out: seen.append(out[0].norm()))
    model[0].weight.register_hook(lambda grad: grad * 3)

    def compute() -> list[Tensor]:
        seen.clear()
        return [*step(model, x), *seen]

    assert_unchanged(compute)


def test_layers_that_read_the_same_input(policy: None) -> None:
    branches = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=d, dilation=d) for d in (1, 2, 3))
    twins = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
    model, x = nn.ModuleList([*branches, *twins]), torch.randn(2, 4, 10, 10)

    def compute() -> list[Tensor]:
        model.zero_grad()
        outs = [layer(x) for layer in model]
        for out in (outs[1], outs[0], outs[3], outs[2], outs[4]):
            out.square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    assert_unchanged(compute)
    bestof.use_policy(Prefer("shared im2row"))
    _State.override = None
    assert_unchanged(compute)


def test_an_input_changed_in_place_is_refused_as_ever(policy: None) -> None:
    weight, x = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9)

    def compute() -> str:
        source = x * 1
        out = torch.conv2d(source, weight)
        source.add_(1)
        with pytest.raises(RuntimeError) as caught:
            out.sum().backward()
        return str(caught.value)

    expected = compute()
    with integration.enabled():
        assert [compute() for _ in range(CALLS)] == [expected] * CALLS


def test_memory_that_the_program_rewrites_unseen(policy: None) -> None:
    weight, x = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9)
    start = x.clone()

    def compute() -> list[Tensor]:
        x.data.copy_(start)
        torch.conv2d(x, weight)  # its backward pass never comes
        x.data.mul_(2)  # the version stands still
        return [torch.autograd.grad(torch.conv2d(x, weight).square().sum(), weight)[0]]

    assert_unchanged(compute)


# Inference


def test_without_gradients(policy: None) -> None:
    model, x = net().eval(), torch.randn(4, 3, 16, 16)

    def compute() -> list[Tensor]:
        with torch.no_grad():
            first = model(x)
        with torch.inference_mode():
            second = model(x)
            assert second.is_inference()
        return [first, second.clone(), model(x).detach()]

    assert_unchanged(compute)


SHAPES = {
    "no bias": ((2, 3, 9, 9), (4, 3, 3, 3), False, {}),
    "depthwise": ((2, 6, 9, 9), (6, 1, 3, 3), True, {"groups": 6, "padding": 1}),
    "depthwise, more filters": ((2, 6, 9, 9), (12, 1, 3, 3), True, {"groups": 6}),
    "stride and dilation": ((2, 3, 13, 11), (4, 3, 3, 2), True, {"stride": (2, 3), "dilation": (2, 1)}),
    "1x1": ((2, 8, 7, 7), (4, 8, 1, 1), True, {}),
    "padding same, even kernel": ((2, 3, 9, 9), (4, 3, 4, 2), True, {"padding": "same"}),
    "padding valid": ((2, 3, 9, 9), (4, 3, 3, 3), True, {"padding": "valid"}),
    "an image without a batch": ((3, 9, 9), (4, 3, 3, 3), True, {"padding": 1}),
    "empty batch": ((0, 3, 9, 9), (4, 3, 3, 3), True, {}),
    "1-D": ((2, 3, 15), (4, 3, 3), True, {"padding": 1}),
    "3-D": ((2, 3, 5, 6, 7), (4, 3, 3, 3, 3), True, {"padding": 1}),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", list(SHAPES))
def test_every_kind_of_convolution(name: str, policy: None) -> None:
    shape, kernel, has_bias, options = SHAPES[name]
    convolution = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[len(kernel) - 2]
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(kernel, requires_grad=True)
    tensors = [x, weight, torch.randn(kernel[0], requires_grad=True)] if has_bias else [x, weight]

    def compute() -> list[Tensor]:
        out = convolution(*tensors, **options)
        return [out.detach(), *torch.autograd.grad(out.sin().sum(), tensors)]

    assert_unchanged(compute)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_transposed_convolutions(dimensions: int, policy: None) -> None:
    model = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1](3, 4, 3, stride=2)
    x = torch.randn(2, 3, *(5,) * dimensions)
    assert_unchanged(lambda: step(model, x))


INPUTS: dict[str, Callable[[], Tensor]] = {
    "expanded images": lambda: torch.randn(1, 3, 9, 9).expand(4, -1, -1, -1),
    "expanded channels": lambda: torch.randn(2, 1, 9, 9).expand(-1, 3, -1, -1),
    "one number": lambda: torch.ones(()).expand(2, 3, 9, 9),
    "every other row": lambda: torch.randn(2, 3, 18, 9)[:, :, ::2],
    "turned": lambda: torch.randn(2, 9, 3, 9).permute(0, 2, 3, 1).transpose(2, 3),
    "inside a larger one": lambda: torch.randn(4, 5, 11, 11)[1:3, 1:4, 1:10, 1:10],
    "overlapping windows": lambda: torch.randn(200).as_strided((2, 3, 9, 9), (40, 20, 5, 1)),
    "a piece of channels last": lambda: torch.randn(2, 6, 9, 9).contiguous(memory_format=torch.channels_last)[:, 2:5],
}


@pytest.mark.parametrize("name", list(INPUTS))
def test_inputs_with_strides_of_their_own(name: str, policy: None) -> None:
    x, weight = INPUTS[name](), torch.randn(4, 3, 3, 3, requires_grad=True)
    before = x.clone()

    def compute() -> list[Tensor]:
        image = x.detach().requires_grad_(True)
        out = torch.conv2d(image, weight, padding=1)
        # the sum's gradient is one number, expanded
        return [out.detach(), *torch.autograd.grad(out.sum(), [image, weight])]

    assert_unchanged(compute)
    assert torch.equal(x, before)


def test_results_are_the_programs_own(policy: None) -> None:
    x, weight = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 1, 1)
    with integration.enabled():
        for _ in range(CALLS):
            out = torch.conv2d(x, weight)
            assert out.untyped_storage().data_ptr() not in {t.untyped_storage().data_ptr() for t in (x, weight)}
            out.zero_()
            assert out._version == 1
    assert x.abs().sum() > 0
    assert weight.abs().sum() > 0


def test_complex_and_meta_and_fake(policy: None) -> None:
    weight = torch.randn(4, 3, 3, 3, dtype=torch.complex64, requires_grad=True)
    x = torch.randn(2, 3, 9, 9, dtype=torch.complex64)

    def compute() -> list[Tensor]:
        out = torch.conv2d(x, weight)
        return [out.detach(), torch.autograd.grad(out.abs().sum(), weight)[0]]

    assert_unchanged(compute)
    with integration.enabled():
        out = torch.conv2d(torch.empty(2, 3, 9, 9, device="meta"), torch.empty(4, 3, 3, 3, device="meta"))
        assert out.shape == (2, 4, 7, 7)
        with FakeTensorMode():
            out = torch.conv2d(torch.empty(2, 3, 9, 9), torch.empty(4, 3, 3, 3))
        assert out.shape == (2, 4, 7, 7)


WRONG: dict[str, Callable[[], object]] = {
    "channels": lambda: torch.conv2d(torch.ones(1, 2, 9, 9), torch.ones(4, 3, 3, 3)),
    "groups": lambda: torch.conv2d(torch.ones(1, 4, 9, 9), torch.ones(3, 2, 3, 3), groups=2),
    "no groups": lambda: torch.conv2d(torch.ones(1, 4, 9, 9), torch.ones(4, 4, 3, 3), groups=0),
    "kernel too large": lambda: torch.conv2d(torch.ones(1, 3, 2, 2), torch.ones(4, 3, 3, 3)),
    "stride": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), stride=0),
    "dilation": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), dilation=0),
    "padding": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), padding=-1),
    "three strides": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), stride=(1, 1, 1)),
    "short bias": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), torch.ones(1)),
    "bias of two dimensions": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), torch.ones(4, 1)),
    "dtypes": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3).double()),
    "bias dtype": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), torch.ones(4).double()),
    "integers": lambda: torch.conv2d(torch.ones(1, 3, 9, 9).int(), torch.ones(4, 3, 3, 3).double()),
    "rank": lambda: torch.conv2d(torch.ones(9, 9), torch.ones(4, 3, 3, 3)),
    "no channels": lambda: torch.conv2d(torch.ones(1, 0, 9, 9), torch.ones(4, 0, 3, 3)),
    "no filters": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(0, 3, 3, 3)),
    "empty kernel": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 0, 3)),
    "meta weight": lambda: torch.conv2d(torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3, device="meta")),
    "sparse": lambda: torch.conv2d(torch.ones(1, 3, 9, 9).to_sparse(), torch.ones(4, 3, 3, 3)),
    "gradient": lambda: torch.ops.aten.convolution_backward(
        torch.ones(1, 4, 6, 6), torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3), [4], [1, 1], [0, 0], [1, 1], False,
        [0, 0], 1, [True, True, True],
    ),
}  # fmt: skip


def outcome(call: Callable[[], object]) -> object:
    """What a call gives, or the type and text of its error without PyTorch's stack of C++ functions."""
    try:
        result = call()
    except Exception as error:
        return type(error), str(error).split("\nException raised from")[0]
    return result.shape if isinstance(result, Tensor) else None


@pytest.mark.parametrize("name", list(WRONG))
def test_errors_are_pytorchs_own(name: str, policy: None) -> None:
    expected = outcome(WRONG[name])
    with integration.enabled():
        assert [outcome(WRONG[name]) for _ in range(3)] == [expected] * 3


# Programs


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
        loader = torch.utils.data.DataLoader(Convolved(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        values = torch.cat(list(loader))
    assert torch.equal(values, torch.arange(6.0).reshape(6, 1, 1, 1).expand(6, 2, 4, 4) * 9)


def test_compiled(policy: None) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), torch.randn(2, 3, 12, 12)
    expected = step(model, x)
    torch._dynamo.reset()
    with integration.enabled():
        compiled = torch.compile(model, backend="aot_eager")
        for _ in range(4):
            assert_same(step(compiled, x), expected)
    assert calls_seen() > 0
    assert_same(step(compiled, x), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit says that it is old
def test_traced(policy: None) -> None:
    model, x = net().eval(), torch.randn(2, 3, 16, 16)
    expected = model(x)
    with integration.enabled():
        traced = torch.jit.trace(model, x)
        for _ in range(3):
            assert_same(traced(x).detach(), expected.detach())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.func.jvp uses torch.jit.script, which says so
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


class Marked(Tensor):
    """A tensor that marks the results of what it goes through."""


def test_tensor_subclasses(policy: None) -> None:
    weight, x = torch.randn(4, 3, 3, 3, requires_grad=True), torch.randn(2, 3, 9, 9).as_subclass(Marked)

    def compute() -> Any:
        out = torch.conv2d(x, weight)
        return [out.detach(), torch.autograd.grad(out.square().sum(), weight)[0]]

    expected = compute()
    with integration.enabled():
        for _ in range(3):
            got = compute()
            assert [type(one) for one in got] == [type(one) for one in expected]
            assert_same([one.as_subclass(Tensor) for one in got], [one.as_subclass(Tensor) for one in expected])


def test_deterministic_mode_is_obeyed(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    torch.use_deterministic_algorithms(True)
    try:
        expected = step(model, x)
        with integration.enabled():
            for _ in range(3):
                assert all(torch.equal(*pair) for pair in zip(step(model, x), expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)
    assert calls_seen() == 0


# What is chosen, and what is kept


def test_each_pass_is_chosen_by_itself_below_the_layer() -> None:
    x, weight = torch.randn(4, 8, 12, 12, requires_grad=True), torch.randn(8, 8, 3, 3, requires_grad=True)
    go = torch.randn(4, 8, 10, 10)
    with integration.enabled():
        for _ in range(1000):
            torch.conv2d(x, weight).backward(go)
            override = convolution_override()
            assert override is not None
            if all(problem.settled for problem in override.layer.layer.report().problems):
                break
    (problem,) = override.layer.layer.report().problems
    assert problem.settled
    children = {child for alternative in problem.alternatives for child, _ in alternative.children}
    assert children == {"convolution forward", "convolution input gradient", "convolution weight gradient"}
    for selector, _ in override.layer.passes:
        assert [one.settled for one in selector.report().problems] == [True]


@pytest.fixture
def sharing(own_process: None) -> Iterator[Any]:
    bestof.use_policy(Prefer("shared im2row"))
    with integration.enabled():
        override = convolution_override()
        assert override is not None
        yield override.layer.kept


def test_what_is_shared_is_freed_by_its_backward_pass(sharing: Any) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    loss = model(x).square().sum()
    assert len(sharing) == 3
    loss.backward()
    assert len(sharing) == 0


def test_what_is_shared_is_freed_with_the_graph(sharing: Any) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    for _ in range(3):
        loss = model(x * 1).square().sum()
        assert len(sharing) == 3
        del loss
        gc.collect()
        assert len(sharing) == 0


def test_evaluation_over_a_living_dataset_keeps_nothing(sharing: Any) -> None:
    model, dataset = net(), torch.randn(32, 3, 16, 16)
    for start in range(0, 32, 4):
        model(dataset[start : start + 4])
    gc.collect()
    assert len(sharing) == 0


def test_disable_frees_what_is_shared(sharing: Any) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    loss = model(x).square().sum()
    integration.disable()
    assert len(sharing) == 0
    loss.backward()


def test_enabled_between_forward_and_backward(policy: None) -> None:
    model, x = net(), torch.randn(4, 3, 16, 16)
    expected = step(model, x)
    for first in (True, False):
        for _ in range(4):
            model.zero_grad()
            if first:
                with integration.enabled():
                    out = model(x)
                out.square().mean().backward()
            else:
                out = model(x)
                with integration.enabled():
                    out.square().mean().backward()
            assert_same([out.detach(), *(p.grad for p in model.parameters())], expected)

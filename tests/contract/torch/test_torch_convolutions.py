"""Every convolution that PyTorch accepts, or refuses, acts as before while tuning is on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from tuned_program import CALLS, assert_unchanged, net, step

import bestof.torch as integration


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
    "stride and dilation": (
        (2, 3, 13, 11),
        (4, 3, 3, 2),
        True,
        {"stride": (2, 3), "dilation": (2, 1)},
    ),
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
    model = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dimensions - 1](
        3, 4, 3, stride=2
    )
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
    "a piece of channels last": lambda: torch.randn(2, 6, 9, 9).contiguous(
        memory_format=torch.channels_last
    )[:, 2:5],
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
            assert out.untyped_storage().data_ptr() not in {
                t.untyped_storage().data_ptr() for t in (x, weight)
            }
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
        out = torch.conv2d(
            torch.empty(2, 3, 9, 9, device="meta"), torch.empty(4, 3, 3, 3, device="meta")
        )
        assert out.shape == (2, 4, 7, 7)
        with FakeTensorMode():
            out = torch.conv2d(torch.empty(2, 3, 9, 9), torch.empty(4, 3, 3, 3))
        assert out.shape == (2, 4, 7, 7)


X, W = torch.ones(1, 3, 9, 9), torch.ones(4, 3, 3, 3)

WRONG: dict[str, Callable[[], object]] = {
    "channels": lambda: torch.conv2d(torch.ones(1, 2, 9, 9), W),
    "groups": lambda: torch.conv2d(torch.ones(1, 4, 9, 9), torch.ones(3, 2, 3, 3), groups=2),
    "no groups": lambda: torch.conv2d(torch.ones(1, 4, 9, 9), torch.ones(4, 4, 3, 3), groups=0),
    "kernel too large": lambda: torch.conv2d(torch.ones(1, 3, 2, 2), W),
    "stride": lambda: torch.conv2d(X, W, stride=0),
    "dilation": lambda: torch.conv2d(X, W, dilation=0),
    "padding": lambda: torch.conv2d(X, W, padding=-1),
    "three strides": lambda: torch.conv2d(X, W, stride=(1, 1, 1)),
    "short bias": lambda: torch.conv2d(X, W, torch.ones(1)),
    "bias of two dimensions": lambda: torch.conv2d(X, W, torch.ones(4, 1)),
    "dtypes": lambda: torch.conv2d(X, W.double()),
    "bias dtype": lambda: torch.conv2d(X, W, torch.ones(4).double()),
    "integers": lambda: torch.conv2d(X.int(), W.double()),
    "rank": lambda: torch.conv2d(torch.ones(9, 9), W),
    "no channels": lambda: torch.conv2d(torch.ones(1, 0, 9, 9), torch.ones(4, 0, 3, 3)),
    "no filters": lambda: torch.conv2d(X, torch.ones(0, 3, 3, 3)),
    "empty kernel": lambda: torch.conv2d(X, torch.ones(4, 3, 0, 3)),
    "meta weight": lambda: torch.conv2d(X, torch.ones(4, 3, 3, 3, device="meta")),
    "sparse": lambda: torch.conv2d(X.to_sparse(), W),
    "gradient": lambda: torch.ops.aten.convolution_backward(
        *(torch.ones(1, 4, 6, 6), X, W, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        [True, True, True],
    ),
}


def outcome(call: Callable[[], object]) -> object:
    """What a call gives, or the type and text of its error without PyTorch's stack of C++
    functions."""
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

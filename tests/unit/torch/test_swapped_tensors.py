"""bestof holds no weak reference to a tensor of the program, for `torch.utils.swap_tensors`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.dispatch.overrides import convolution_override, operation_override
from bestof.torch.ops.attention.attention import Attention
from bestof.torch.ops.product.product import Product

NAMES = (
    "native winograd4",
    "native blocked packed",
    "native",
    "native transposition",
    "shared im2row",
    "independent",
)


class Order:
    def start(self, alternatives: Sequence[str]) -> Search:
        name = next((one for one in NAMES if one in alternatives), alternatives[0])
        return Fixed(name).start(alternatives)


class Model(nn.Module):
    """A convolution, an attention and linear layers, whose weights are packed in inference."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 64, 3, padding=1)
        self.project = nn.Linear(64, 3 * 64)
        self.back = nn.Linear(64, 64)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.convolution(images).flatten(2).transpose(1, 2)
        q, k, v = self.project(tokens).unflatten(-1, (3, 4, 16)).transpose(1, 3).unbind(2)
        joined = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.back(joined)  # type: ignore[no-any-return]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Tensor]:
    """A model whose weights are packed, and its input."""
    monkeypatch.setattr(Product, "least", 2**17)
    monkeypatch.setattr(Attention, "least", 1)
    use_policy(Order())
    bt.enable()
    model, images = Model().eval(), torch.randn(2, 8, 12, 12)
    with torch.no_grad():
        for _ in range(6):
            model(images)
    convolutions, products = convolution_override(), operation_override("product")
    assert convolutions is not None
    assert products is not None
    assert isinstance(products.operation, Product)
    assert len(convolutions.originals.packed) == 1
    assert len(products.operation.packed) == 2
    return model, images


def hold(model: nn.Module, images: Tensor) -> None:
    """What bestof computes is what PyTorch computes, for six calls."""
    with torch.no_grad():
        got = [model(images) for _ in range(6)]
        bt.disable()
        expected = model(images)
        bt.enable()
    for one in got:
        torch.testing.assert_close(one, expected, rtol=1e-3, atol=1e-4)


def test_no_tensor_of_the_program_has_a_weak_reference(packed: tuple[Model, Tensor]) -> None:
    model, images = packed
    plan = bt.optimize(model, images, tune=False)
    plan(images)
    trained = nn.Parameter(images.clone())
    model(trained).sum().backward()
    waiting = model(trained)  # a matrix is kept for its backward pass
    override = convolution_override()
    assert override is not None
    assert len(override.layer.kept) == 1
    for one in (images, trained, *model.parameters()):
        assert weakref.getweakrefs(one) == []
    del waiting
    assert len(override.layer.kept) == 1  # as long as its input
    del trained
    model.zero_grad()
    assert len(override.layer.kept) == 0


def test_memory_of_the_program_may_be_freed(packed: tuple[Model, Tensor]) -> None:
    """As FSDP does; a NumPy array of a tensor would forbid that."""
    model, images = packed
    pooled = torch.randn(2, 64, 96, 96)
    functional.max_pool2d(pooled, 2)
    bt.optimize(model, images, tune=False)(images)
    for one in (images, pooled, *model.parameters()):
        one.untyped_storage().resize_(0)


SWAPS: dict[str, Callable[[Model], object]] = {
    "swap_tensors": lambda model: [
        torch.utils.swap_tensors(one, nn.Parameter(0.1 * torch.randn_like(one)))
        for one in model.parameters()
    ],
    "load_state_dict": lambda model: model.load_state_dict(Model().state_dict()),
    "there and back": lambda model: model.double().float(),
    "half": lambda model: model.bfloat16(),
    "to": lambda model: model.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", SWAPS)
def test_packed_weights_may_be_swapped(
    name: str, planned: bool, packed: tuple[Model, Tensor]
) -> None:
    model, images = packed
    plan = bt.optimize(model, images, tune=False) if planned else None
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        SWAPS[name](model)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    if name == "half":
        images = images.bfloat16()
        model.float()
        model.bfloat16()
        with torch.no_grad():
            assert model(images).isfinite().all()
    else:
        hold(model, images)
    if plan is not None and name == "load_state_dict":
        with pytest.raises(TorchError, match="again"):
            plan(images)

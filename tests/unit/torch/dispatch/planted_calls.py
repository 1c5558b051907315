"""A small call of each operation, and rows of which the fast one is planted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.row import Row
from bestof.torch.ops.table import named

aten: Any = torch.ops.aten
SLOW = 0.02  # seconds that the first row takes longer


def _convolutions(*image: int) -> dict[str, tuple[Any, ...]]:
    sides = len(image)
    x, w = random(2, 16, *image), random(16, 16, *[3] * sides, seed=1)
    geometry = ([1] * sides, [1] * sides, [1] * sides, False, [0] * sides, 1)
    backward = aten.convolution_backward
    for one in (x, w):
        one.requires_grad_(sides == 2)
    # One gradient alone: both together would be chosen as a whole.
    return {
        "forward": (aten.convolution, x.detach(), w.detach(), None, *geometry),
        "input gradient": (backward, x.detach(), x, w, None, *geometry, [True, False, False]),
        "weight gradient": (backward, x.detach(), x, w, None, *geometry, [False, True, False]),
    }


def _asked(name: str) -> Callable[..., Any]:
    """Return the function that an operation without an operator of PyTorch is called by."""

    def asked(*arguments: Any) -> Any:
        override = operation_override(name)
        if override is None:
            found = named(name, "test")
            call = found.call("float32", *arguments)
            assert call is not None
            return found.rows[0].function(None, call.problem, *call.operands)
        call = override.call(*arguments)
        assert call is not None
        return override.answer(call)

    return asked


def _seeded_draw(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return Bernoulli numbers from one state, and the state afterwards. The seed is not drawn."""
    torch.default_generator.manual_seed(0)
    return x.clone().bernoulli_(0.5), torch.default_generator.get_state()


def small_calls() -> dict[str, tuple[Any, ...]]:
    """Return the operator of PyTorch and its arguments, by the name of the operation."""
    x, g = random(1024, 512), random(1024, 512, seed=1)
    weight, bias = random(512, seed=2), random(512, seed=3)
    image = random(8, 16, 64, 64)
    normed, mean, rstd = aten.native_layer_norm(x, [512], weight, bias, 1e-5)
    _, means, rstds = aten.native_group_norm(image, weight[:16], bias[:16], 8, 16, 4096, 2, 1e-5)
    last = image.contiguous(memory_format=torch.channels_last)
    pool = ([2, 2], [2, 2], [0, 0])
    maxima, indices = aten.max_pool2d_with_indices(image, *pool)
    q, k, v = (random(4, 4, 128, 32, seed=seed) for seed in range(3))
    attention = aten._scaled_dot_product_flash_attention_for_cpu
    out, logsumexp = attention(q, k, v)
    planes, volumes = _convolutions(16, 16), _convolutions(8, 8, 8)
    return {
        **{one.name: planes[one.direction] for one in PASSES},
        **{f"convolution 3d {name}".removesuffix(" forward"): volumes[name] for name in volumes},
        "product": (aten.mm, x[:, :64], g[:64]),
        "attention": (attention, q, k, v),
        "attention_backward": (
            aten._scaled_dot_product_flash_attention_for_cpu_backward,
            *(random(4, 4, 128, 32, seed=4), q, k, v, out, logsumexp, 0.0, False),
        ),
        "max pooling": (aten.max_pool2d_with_indices, image, *pool),
        "max pooling backward": (
            aten.max_pool2d_with_indices_backward,
            *(maxima, image, *pool, [1, 1], False, indices),
        ),
        "average pooling": (aten.avg_pool2d, image, *pool),
        "average pooling backward": (
            aten.avg_pool2d_backward,
            *(maxima, image, *pool, False, True, None),
        ),
        "layer norm": (aten.native_layer_norm, x, [512], weight, bias, 1e-5),
        "layer norm backward": (
            aten.native_layer_norm_backward,
            *(normed, x, [512], mean, rstd, weight, bias, [True] * 3),
        ),
        "group norm backward": (
            aten.native_group_norm_backward,
            *(last.flip(0), last, means, rstds, weight[:16], 8, 16, 4096, 2, [True] * 3),
        ),
        "bernoulli": (_seeded_draw, x),
        "softmax": (aten._softmax, x, -1, False),
        "gelu": (aten.gelu, x),
        "gelu backward": (aten.gelu_backward, g, x),
        "silu": (aten.silu, x),
        "silu backward": (aten.silu_backward, g, x),
        "rotary": (_asked("rotary"), q, k[0, 0], v[0, 0]),
        "frozen norm": (
            _asked("frozen norm"),
            *(image, weight[:16], weight[:16].abs(), weight[:16], bias[:16], 1e-5, True),
        ),
        "frozen norm backward": (
            _asked("frozen norm backward"),
            *(image, image.flip(0).relu(), weight[:16].abs(), weight[:16], 1e-5),
        ),
        "focal loss": (_asked("focal loss"), x[:32], g[:32].sigmoid(), 0.25, 2.0, "sum", True),
    }


def plant(operation: Operation[Any], fault: Callable[[Tensor], Tensor]) -> None:
    """Give an operation two rows: PyTorch's own, made slow, and a planted one with this fault."""
    first = operation.rows[0]
    bound = next((row.bound for row in operation.rows if row.bound is not None), None)
    dtypes = next((row.dtypes for row in operation.rows if row.dtypes is not None), None)

    def slow(*arguments: Any) -> Any:
        time.sleep(SLOW)
        return first.function(*arguments)

    def planted(*arguments: Any) -> Any:
        found = first.function(*arguments)
        if isinstance(found, Tensor):
            return fault(found)
        return (fault(found[0]), *found[1:])

    operation.rows = (
        Row(first.name, slow),
        Row("planted", planted, bound=bound, dtypes=dtypes),
    )

"""What a file of a plan may not say, though its checksum be right."""

from __future__ import annotations

import collections
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.file import _digest

Content = dict[str, Any]


def stored() -> dict[str, Any]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5), nn.Softplus()
    ).eval()
    file = io.BytesIO()
    bt.optimize(model, torch.randn(2, 3, 8, 8)).save(file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def loaded(content: dict[str, Any]) -> bt.OptimizedModel:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return bt.load(file)


def node(content: Content, target: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in content["programs"][0]["nodes"] if one.get("target") == target
    )
    return found


def _output_shape(target: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        node(content, target)["val"] = {"tensor": [[1, 1, 1, 1], [1, 1, 1, 1], "torch.float32"]}

    return change


def _operator(content: Content) -> None:
    softplus = node(content, "aten.softplus.default")
    softplus["target"], softplus["args"] = "aten.from_file.default", ["a file", True, 4]


def _mutable(content: Content) -> None:
    node(content, "aten.softplus.default")["target"] = "aten.relu_.default"


def _decision(content: Content) -> None:
    content["programs"][0]["decisions"]["nothing"] = "direct"


def _structure(content: Content) -> None:
    content["programs"][0]["structure"] = ["collections.defaultdict", [["a", None]]]


def _input_shape(content: Content) -> None:
    content["programs"][0]["inputs"] = [{"tensor": [[1, 1, 1, 1], [1, 1, 1, 1], "torch.float32"]}]


_CHANGES = [
    *map(_output_shape, ("bestof.convolution", "bestof.pooling")),
    *(_operator, _mutable, _decision, _structure, _input_shape),
]


@pytest.mark.parametrize("change", _CHANGES)
def test_a_file_that_no_plan_has_written(change: Callable[[Content], None]) -> None:
    file = stored()
    content = json.loads(file["content"])
    change(content)
    file["content"] = json.dumps(content)
    file["sha256"] = _digest(file["content"], file["tensors"])
    with pytest.raises(TorchError, match="cannot be read here"):
        loaded(file)


def test_a_bias_that_is_too_short() -> None:
    file = stored()
    file["tensors"] = [one[:2] if one.shape == (8,) else one for one in file["tensors"]]
    file["sha256"] = _digest(file["content"], file["tensors"])
    with pytest.raises(TorchError, match="bias"):
        loaded(file)


def test_a_weight_that_changed_in_the_file() -> None:
    file = stored()
    assert loaded(file)
    file["tensors"][0].view(-1)[0] += 1
    with pytest.raises(TorchError, match="checksum"):
        loaded(file)


def test_outputs_that_nest_in_a_type_of_their_own() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return collections.OrderedDict(a=torch.sin(x))

    plan = bt.optimize(Named().eval(), torch.randn(3))
    with pytest.raises(TorchError, match="OrderedDict"):
        plan.save(io.BytesIO())

"""Plan files that were made to run code, or to make kernels leave their memory."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.algorithms.algorithm import PlacedLayer
from bestof.torch.plan.file.container import read, write
from bestof.torch.plan.file.operators import target_of
from bestof.torch.plan.layers.window import MAX_2X2, pooling_runner
from bestof.torch.plan.memory.arena import Arena, Buffer
from bestof.torch.plan.run.program import Program

Content = dict[str, Any]


class _Block(nn.Module):
    """A linear layer, a rotary embedding, a sum that PyTorch computes, and parts of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 16)
        self.register_buffer("cos", torch.linspace(-1, 1, 5 * 8).reshape(5, 8))

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.linear(x)).view(1, 5, 2, 8).transpose(1, 2)
        y = y * self.cos + torch.cat((-y[..., 4:], y[..., :4]), -1) * self.cos
        return y.cumsum(-1), y.softmax(-1)


X = torch.linspace(-1, 1, 40).reshape(1, 5, 8)


def _stored(model: nn.Module, x: Tensor) -> tuple[Content, list[Tensor]]:
    file = io.BytesIO()
    bt.optimize(model.eval(), x, tune=False).save(file)
    file.seek(0)
    return read(file)


@pytest.fixture(scope="module")
def stored() -> bytes:
    file = io.BytesIO()
    content, tensors = _stored(_Block(), X)
    write(file, content, tensors)
    return file.getvalue()


def _read(stored: bytes) -> tuple[Content, list[Tensor], list[dict[str, Any]]]:
    content, tensors = read(io.BytesIO(stored))
    return content, tensors, content["programs"][0]["nodes"]


def _load(content: Content, tensors: list[Tensor]) -> bt.OptimizedModel:
    file = io.BytesIO()
    write(file, content, tensors)
    file.seek(0)
    return bt.load(file)


def _node(nodes: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(
        one
        for one in nodes
        if name in (one.get("target"), one["op"], one.get("operation", {}).get("name"))
    )


def test_the_plan_computes_what_the_model_does(stored: bytes) -> None:
    content, tensors, nodes = _read(stored)
    assert {"rotary", "linear"} <= {one.get("operation", {}).get("name") for one in nodes}
    expected = _Block().double()(X.double())
    for found, right in zip(_load(content, tensors)(X), expected, strict=True):
        # Products of 8 terms of at most 1, then two products and a sum of 8 numbers below 4.
        bound = (8 + 2 + 8) * 2.0**-24 * 8 * 4
        assert (found.double() - right).abs().max() <= bound


@pytest.mark.parametrize(
    "code",
    [
        "__import__('pathlib').Path('{mark}').touch()",
        "x=__import__('pathlib').Path('{mark}').touch()",
        "x: __import__('pathlib').Path('{mark}').touch() = None",
        "x):\n    open('{mark}', 'w')\ndef f(x",
    ],
)
@pytest.mark.parametrize("place", ["input", "name", "label", "keyword", "node", "text", "target"])
def test_no_text_of_a_file_is_run(code: str, place: str, stored: bytes, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = code.replace("{mark}", str(mark))
    content, tensors, nodes = _read(stored)
    placeholder, cumsum = _node(nodes, "placeholder"), _node(nodes, "aten.cumsum.default")
    if place == "input":
        old, placeholder["name"] = placeholder["name"], code
        for one in nodes:
            if one.get("args") == [{"node": old}]:
                one["args"] = [{"node": code}]
    elif place == "name":
        cumsum["name"] = code
    elif place == "label":
        _node(nodes, "linear")["label"] = code
    elif place == "keyword":
        cumsum["kwargs"] = {"dict": {code: 1}}
    elif place == "node":
        cumsum["args"][0] = {"node": code}
    elif place == "text":
        cumsum["args"][1] = code
    else:
        cumsum["target"] = code
    with pytest.raises(TorchError, match="cannot be read here") as raised:
        _load(content, tensors)
    assert "\n" not in str(raised.value)
    assert not mark.exists()


def test_a_graph_is_not_compiled(stored: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("FX writes code for the graph of a file")

    monkeypatch.setattr(torch.fx.Graph, "python_code", refused)
    content, tensors, _ = _read(stored)
    assert _load(content, tensors)(X)[0].shape == (1, 2, 5, 8)


@pytest.mark.parametrize(
    "name",
    [
        *("save.default", "manual_seed.default", "_print.default", "set_grad_enabled.default"),
        *("from_file.default", "warn.default", "randn.default", "bernoulli.p", "rand_like.default"),
        *("set_.source_Tensor", "resize_.default", "add_.Tensor", "add.out", "set_data.default"),
        *("_fft_c2r.default", "embedding_renorm_.default", "_embedding_bag.default"),
        *("__class__.default", "add.__class__", "name.x", "_dir.x"),
    ],
)
def test_operators_that_do_more_than_compute_cannot_be_named(name: str) -> None:
    with pytest.raises(ValueError, match="no operator that a plan may hold"):
        target_of(f"aten.{name}")


@pytest.mark.parametrize(
    "name",
    [
        *("aten", "aten.add", "os.system", "builtins.eval.x", "prims.add.default", "torch.ops.x"),
        *(
            "mkldnn._convolution_pointwise.default",
            "aten.add.Tensor.x",
            "aten..x",
            "\ud800",
            3,
            None,
        ),
    ],
)
def test_nothing_else_can_be_named(name: Any) -> None:
    with pytest.raises(ValueError, match="operator"):
        target_of(name)


def _changed(name: str, **fields: Any) -> Callable[[list[dict[str, Any]]], None]:
    def change(nodes: list[dict[str, Any]]) -> None:
        one = _node(nodes, name)
        one.get("operation", one).update(fields)

    return change


def _fewer(name: str, place: int) -> Callable[[list[dict[str, Any]]], None]:
    def change(nodes: list[dict[str, Any]]) -> None:
        del _node(nodes, name)["args"][place]

    return change


def _value(name: str, shape: list[int]) -> Callable[[list[dict[str, Any]]], None]:
    def change(nodes: list[dict[str, Any]]) -> None:
        strides = [1] * len(shape)
        _node(nodes, name)["val"] = {"tensor": [shape, strides, "torch.float32"]}

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(_changed("linear", padding=[0, 3]), _changed("linear", padding=[3, 0])),
        *(_changed("linear", stride=[2, 1]), _changed("linear", dilation=[1, 2])),
        *(_changed("linear", groups=2), _changed("linear", linear=False)),
        *(_changed("linear", pooled=True), _changed("linear", gated=True)),
        *(_changed("linear", slope=10**399), _changed("linear", weights=7)),
        *(_fewer("rotary", 0), _fewer("rotary", 1), _fewer("rotary", 2), _fewer("linear", 0)),
        *(_value("rotary", [1, 2, 5, 6]), _value("linear", [1, 5, 8]), _value("get_attr", [9, 8])),
        *(_value("aten.cumsum.default", [1, 2, 5, 9]), _value("aten.softmax.int", [2**40])),
        _changed("aten.softmax.int", args=[{"node": "x"}, 10**399]),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    change: Callable[[list[dict[str, Any]]], None], stored: bytes
) -> None:
    content, tensors, nodes = _read(stored)
    change(nodes)
    with pytest.raises(TorchError, match="cannot be read here"):
        _load(content, tensors)


class _Updating(nn.Module):
    def forward(self, x: Tensor, values: Tensor, place: Tensor) -> Tensor:
        values.index_copy_(0, place, x)
        return values.chunk(2, 1)[0].cumsum(0)


def _stored_updates() -> tuple[Content, list[Tensor], list[dict[str, Any]]]:
    file = io.BytesIO()
    inputs = torch.ones(1, 4), torch.zeros(3, 4), torch.tensor([1])
    bt.optimize(_Updating().eval(), inputs, tune=False, accuracy="exact").save(file)
    file.seek(0)
    content, tensors = read(file)
    return content, tensors, content["programs"][0]["nodes"]


def test_only_inputs_are_changed() -> None:
    content, tensors, nodes = _stored_updates()
    _load(content, tensors)
    update = _node(nodes, "aten.index_copy_.default")
    pure = {**copy.deepcopy(update), "target": "aten.index_copy.default", "name": "y"}
    nodes.insert(nodes.index(update), pure)
    update["args"][0] = {"node": "y"}
    with pytest.raises(TorchError, match=r"what index_copy__?.* changes"):
        _load(content, tensors)


@pytest.mark.parametrize("parts", [2**20, 10**12, 0, -1])
def test_a_value_is_not_divided_into_more_parts_than_can_be_listed(parts: int) -> None:
    content, tensors, nodes = _stored_updates()
    split = _node(nodes, "aten.split.Tensor")
    split["target"], split["args"] = "aten.chunk.default", [split["args"][0], parts, 1]
    with pytest.raises(TorchError, match="cannot be read here"):
        _load(content, tensors)


def test_a_truth_value_of_other_bits_is_refused() -> None:
    """PyTorch counts such values wrongly, and an index of them leaves its memory."""
    file = io.BytesIO()
    write(file, {}, [torch.tensor([0, 1, 200], dtype=torch.uint8).view(torch.bool)])
    file.seek(0)
    with pytest.raises(TorchError, match="truth value"):
        read(file)


def test_a_parameter_that_is_expanded_beyond_memory_is_refused() -> None:
    file = io.BytesIO()
    write(file, {}, [torch.ones(1).expand(2**30, 2**10)])
    file.seek(0)
    with pytest.raises(TorchError, match="more memory than this machine has left"):
        read(file, 2**30)


def _site(plan: bt.OptimizedModel) -> PlacedLayer:
    program: Program = next(iter(plan._programs.values())).program
    (step,) = [one for one in program.borrow().steps if one.convolution is not None]
    assert step.convolution is not None
    return step.convolution.placed


@pytest.mark.parametrize("operand", ["x", "out", "aside", "residual", "layer"])
def test_a_layer_checks_its_operands_when_it_is_bound(operand: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU()).eval()
    placed = _site(bt.optimize(model, torch.randn(2, 3, 9, 9), tune=False))
    placed.check()
    fields = {name: getattr(placed, name) for name in placed.__dataclass_fields__}
    if operand == "layer":
        fields["problem"] = placed.problem._replace(
            convolution=placed.problem.convolution._replace(padding=(1, 1))
        )
        with pytest.raises(TorchError, match="do not fit"):
            PlacedLayer(**fields).check()
        return
    rows = torch.zeros(2, 4, 4, 4).to(memory_format=torch.channels_last)
    wrong = rows[:, :, :3], rows[:, :2], rows.bfloat16(), rows.contiguous()
    for one in wrong:
        with pytest.raises(TorchError, match="do not fit"):
            PlacedLayer(**{**fields, operand: one}).check()


def test_a_pooling_checks_types_and_layouts() -> None:
    x = torch.zeros(1, 4, 6, 6).to(memory_format=torch.channels_last)
    out = torch.zeros(1, 4, 3, 3).to(memory_format=torch.channels_last)
    pooling_runner(MAX_2X2, x, out)
    for given, made in ((x, out.bfloat16()), (x.contiguous(), out), (x, out.contiguous())):
        with pytest.raises(TorchError, match="make the plan anew"):
            pooling_runner(MAX_2X2, given, made)


def test_an_operator_cannot_resize_the_arena() -> None:
    """`out=` of another shape resizes: that moved the memory whose addresses kernels have."""
    arena = Arena(64)
    view = arena.view(Buffer(16, 0, 0), [16], channels_last=False)
    with pytest.raises(RuntimeError, match="resizable"):
        torch.add(torch.zeros(4096), 1.0, out=view)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU | nn.RNN], **options: bool) -> None:
        super().__init__()
        self.network = kind(4, 6, num_layers=2, **options)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(x)[0]
        return found


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_weights_of_recurrent_networks_are_as_large_as_the_state_says(
    kind: type[nn.LSTM | nn.GRU | nn.RNN], options: dict[str, bool]
) -> None:
    """oneDNN reads as many numbers, and ended the process."""
    x, file = torch.linspace(-1, 1, 60).reshape(5, 3, 4), io.BytesIO()
    plan = bt.optimize(_Recurrent(kind, **options).eval(), x, tune=False)
    plan.save(file)
    content, tensors, nodes = _read(file.getvalue())
    assert torch.equal(_load(content, tensors)(x), plan(x))
    for node in nodes:
        if node["op"] == "get_attr" and tensors[node["tensor"]].dim() == 2:
            changed = list(tensors)
            changed[node["tensor"]] = torch.ones(1, 1)
            old, node["val"] = node["val"], {"tensor": [[1, 1], [1, 1], "torch.float32"]}
            with pytest.raises(TorchError, match="does not fit the rest"):
                _load(content, changed)
            node["val"] = old

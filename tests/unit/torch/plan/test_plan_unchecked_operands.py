"""Files of plans with operators whose kernels do not check their operands."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, weight_norm
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.file.container import read, write
from bestof.torch.plan.run.unchecked_operands import checked


class _Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, **self.options)


class _Padded(nn.Module):
    """A layer of a transformer that is told which tokens are padding."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer, self.options = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), options

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        found: Tensor = self.layer(x, src_key_padding_mask=padding)
        return found


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _heads(heads: int = 2, tokens: int = 5) -> Tensor:
    return _drawn(2, heads, tokens, 4)


def _three(made: Callable[[], Tensor]) -> tuple[Tensor, ...]:
    """Return three tensors: an exact plan of a file refuses one in several places."""
    return made(), made(), made()


_TOKENS = _drawn(2, 5, 8)
_STEPS = _drawn(5, 3, 4)
_LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16}
_PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
_MASK = torch.ones(5, 6, dtype=torch.bool).tril(1)
_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "layer": (lambda: nn.TransformerEncoderLayer(**_LAYER, batch_first=True), (_TOKENS,)),
    "layer, padded": (_Padded, (_TOKENS, _PADDING)),
    "attention, causal": (lambda: _Attention(is_causal=True, scale=0.3), _three(_heads)),
    "attention, shared": (lambda: _Attention(enable_gqa=True), (_heads(4), _heads(), _heads())),
    "attention, masked": (_Attention, (_heads(), _heads(tokens=6), _heads(tokens=6), _MASK)),
    "attention, bfloat16": (_Attention, _three(lambda: _heads().bfloat16())),
    "lstm": (lambda: nn.LSTM(4, 6, 2), (_STEPS,)),
    "lstm, projected": (lambda: nn.LSTM(4, 6, 2, proj_size=3, bidirectional=True), (_STEPS,)),
    "weight norm": (lambda: weight_norm(nn.Linear(4, 3)), (_drawn(2, 4),)),
    "weight norm, all": (lambda: weight_norm(nn.Linear(4, 3), dim=None), (_drawn(2, 4),)),
    "orthogonal": (lambda: orthogonal(nn.Linear(4, 4)), (_drawn(2, 4),)),
}
_FUSED = "lstm, projected", "weight norm, all", "orthogonal"


def _planned(name: str, accuracy: Any, grad: bool = False) -> tuple[Any, Any, tuple[Tensor, ...]]:
    """Return a model, its plan, and its inputs."""
    make, inputs = _MODELS[name]
    torch.manual_seed(0)
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported")
        model = make().eval()
        return model, bt.optimize(model, inputs, accuracy=accuracy, tune=False), inputs


def _saved(plan: bt.OptimizedModel) -> io.BytesIO:
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", [name for name in _MODELS if name not in _FUSED])
def test_a_file_holds_the_models_own_bits(name: str) -> None:
    model, plan, inputs = _planned(name, "exact")
    loaded = bt.load(_saved(plan))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            right, got = pytree.tree_leaves(model(*inputs)), pytree.tree_leaves(loaded(*inputs))
        for one, other in zip(right, got, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", _FUSED)
def test_a_file_holds_a_fused_plan(name: str) -> None:
    _, plan, inputs = _planned(name, "float32")
    loaded = bt.load(_saved(plan))
    for one, other in zip(
        *(pytree.tree_leaves(each(*inputs)) for each in (plan, loaded)), strict=True
    ):
        assert torch.equal(one, other)


def _stored(name: str, target: str) -> tuple[Any, list[Tensor], list[dict[str, Any]]]:
    """Return the content of a file, its tensors, and the weights that an operator reads."""
    _, plan, _ = _planned(name, "exact")
    content, tensors = read(_saved(plan))
    for program in content["programs"]:
        nodes = program["nodes"]
        for node in nodes:
            if node.get("target") == f"aten.{target}.default":
                read_by = [one.get("node") for one in node["args"] if isinstance(one, dict)]
                held = [one for one in nodes if one["op"] == "get_attr"]
                return content, tensors, [one for one in held if one["name"] in read_by]
    raise AssertionError("no such operator in the plan")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("layer", "_transformer_encoder_layer_fwd"),
        ("lstm", "mkldnn_rnn_layer"),
        ("weight norm", "_weight_norm_interface"),
    ],
)
def test_weights_of_other_sizes_are_refused(name: str, target: str) -> None:
    content, tensors, weights = _stored(name, target)
    assert weights
    for place, one in enumerate(weights):
        old, whole = one["val"], tensors[one["tensor"]]
        replaced = whole.double() if place % 3 == 2 else torch.ones([2] * whole.dim())
        described = [list(replaced.shape), list(replaced.stride()), str(replaced.dtype)]
        changed, one["val"] = list(tensors), {"tensor": described}
        changed[one["tensor"]] = replaced
        file = io.BytesIO()
        write(file, content, changed)
        file.seek(0)
        with pytest.raises(TorchError, match="cannot be read here"):
            bt.load(file)
        one["val"] = old


def _call(target: str, *args: Any, **kwargs: Any) -> Any:
    return checked(getattr(torch.ops.aten, target).default)(*args, **kwargs)


def _of_attention(q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Any:
    return _call("_scaled_dot_product_flash_attention_for_cpu", q, k, v, **kwargs)


@pytest.mark.parametrize(
    ("key", "value", "mask"),
    [
        (_heads(), _drawn(1, 2, 5, 4), None),
        (_drawn(1, 2, 5, 4), _drawn(1, 2, 5, 4), None),
        (_heads(3), _heads(3), None),
        (_heads(), _heads(tokens=6), None),
        (_heads().double(), _heads(), None),
        (_heads(), _heads()[..., :1].expand(2, 2, 5, 4), None),
        (_heads(), _heads().transpose(-1, -2).contiguous().transpose(-1, -2), None),
        (_heads(), _heads(), _drawn(4, 5)),
        (_heads(), _heads(), _drawn(5, 4)),
        (_heads(), _heads(), _drawn(3, 2, 5, 5)),
        (_heads(), _heads(), _drawn(5, 5).double()),
        (_heads(), _heads(), torch.ones(5, 5, dtype=torch.bool)),
        (_heads(tokens=0), _heads(tokens=0), None),
    ],
)
def test_attention_checks_its_operands(key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    with pytest.raises(TorchError, match="make the plan anew"):
        _of_attention(_heads(), key, value, attn_mask=mask)


def test_attention_with_operands_that_fit_is_computed() -> None:
    q, mask = _heads(), _drawn(2, 1, 5, 1)
    found = _of_attention(q, q, q, attn_mask=mask)[0]
    right = F.scaled_dot_product_attention(*[q.double()] * 3, attn_mask=mask.double())
    # Sums of 4 products and of 5, of numbers below 5; the exponential errs by a few roundings.
    assert (found.double() - right).abs().max() <= 16 * 2.0**-24 * 5 * 5


def _of_lstm(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "input": _drawn(5, 3, 4),
        **{
            f"weight{place}": _drawn(*shape)
            for place, shape in enumerate([(24, 4), (24, 6), (24,), (24,)])
        },
        **{"hx_": _drawn(3, 6), "cx_": _drawn(3, 6), "reverse": False, "batch_sizes": []},
        **{"mode": 2, "hidden_size": 6, "num_layers": 1, "has_biases": True},
        **{"bidirectional": False, "batch_first": False, "train": False},
    }
    return _call("mkldnn_rnn_layer", **given | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"input": _drawn(5, 4, 3).transpose(1, 2)},
        {"input": _drawn(5, 1, 4).expand(5, 3, 4)},
        {"input": _drawn(5, 3, 3)},
        {"input": _drawn(5, 3, 4).double()},
        {"weight0": _drawn(1, 4).expand(24, 4)},
        *({f"weight{place}": _drawn(1)} for place in range(4)),
        *({name: _drawn(2, 6)} for name in ("hx_", "cx_")),
        {"cx_": _drawn(3, 6).bfloat16()},
        {"hidden_size": 7},
        {"mode": 3},
        {"batch_sizes": [3, 2]},
        {"train": True},
    ],
)
def test_an_lstm_checks_its_operands(changed: dict[str, Any]) -> None:
    """oneDNN reads a transposed input as if it were dense."""
    assert _of_lstm()[0].shape == (5, 3, 6)
    with pytest.raises(TorchError, match="make the plan anew"):
        _of_lstm(**changed)


@pytest.mark.parametrize(
    ("whole", "scale", "dim"),
    [
        (_drawn(4, 3), _drawn(3, 1), 0),
        (_drawn(4, 3), _drawn(4, 1), 1),
        (_drawn(4, 3, 2), _drawn(1, 3, 1), 1),
        (_drawn(3, 4).t(), _drawn(4, 1), 0),
        (_drawn(4, 3), _drawn(1, 1).expand(4, 1), 0),
        (_drawn(4, 3), _drawn(4, 1).double(), 0),
    ],
)
def test_a_weight_norm_checks_its_operands(whole: Tensor, scale: Tensor, dim: int) -> None:
    with pytest.raises(TorchError, match="make the plan anew"):
        _call("_weight_norm_interface", whole, scale, dim)


def test_operands_are_compared_in_the_first_call_only() -> None:
    """Later calls of a step have operands of the same shapes, types and strides."""
    step = checked(torch.ops.aten._weight_norm_interface.default)
    whole, scale = _drawn(4, 3), _drawn(4, 1)
    step(whole, scale)
    compared: list[str] = []
    step._target = lambda *_, **__: compared.append("called")
    step(whole, scale)
    assert compared == ["called"]
    assert checked(torch.ops.aten.add.Tensor) is torch.ops.aten.add.Tensor

"""The operands of operators whose kernels read as much memory as some of the operands say.

PyTorch's dispatcher, or a module, checks the operands before such an operator is called. A file
that names the operator avoids both checks. Each check here is made when a plan is read, by what the
file says of the values, and again by the values themselves when a step of the plan first runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.torch.ops.dtypes import SHORT
from bestof.torch.plan.operations.checks import expect

Given = dict[str, Any]  # the arguments of a call by name, defaults included
Check = Callable[[Given], bool]

_COMPUTED = torch.float32, torch.float64, *SHORT
# The gates of recurrent networks, whose weights lie one below the other.
_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}
_LSTM = 2  # the number of LSTMs among the modes of a recurrent network


def expect_operands(target: Any, given: Given, what: str) -> None:
    """Raise ValueError if the kernel of an operator would not check these operands, and must."""
    check = _CHECKS.get(_packet(target))
    expect(check is None or check(given), what)


class CheckedOperator:
    """An operator whose kernel checks too little. The first call compares the operands.

    Later calls of a step have operands of the same shapes, types and strides.
    """

    def __init__(self, target: torch._ops.OpOverload) -> None:
        self._target, self._fits = target, False

    def __str__(self) -> str:
        """Return the name of the operator."""
        return str(self._target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator. TorchError if its operands do not fit each other."""
        if not self._fits:
            if not _CHECKS[_packet(self._target)](arguments_of(self._target, args, kwargs)):
                raise TorchError(
                    f"optimize: {self._target}: an operand has other sizes, another type or "
                    "layout than the others ask for: make the plan anew"
                )
            self._fits = True
        return self._target(*args, **kwargs)


def checked(target: Any) -> Any:
    """Return an operator with a check of its operands, if the kernel has no check."""
    return CheckedOperator(target) if _packet(target) in _CHECKS else target


def arguments_of(target: Any, args: Any, kwargs: Given) -> Given:
    """Return the arguments of a call by name, defaults included."""
    named = {one.name: one.default_value for one in target._schema.arguments}
    return named | dict(zip(named, args, strict=False)) | kwargs


def _packet(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name).removeprefix("aten::")


def _are(values: Given, dtype: torch.dtype, **shapes: list[int]) -> bool:
    """Return whether tensors are dense, of a type, and of these shapes."""
    return all(
        isinstance(values[name], Tensor)
        and list(values[name].shape) == shape
        and values[name].dtype is dtype
        and values[name].is_contiguous()
        for name, shape in shapes.items()
    )


def _attends(given: Given) -> bool:
    """Check attention: the kernel takes batch, heads and length of the query for the others."""
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    operands = query, key, value
    if not all(isinstance(one, Tensor) and one.dim() == 4 for one in operands):
        return False
    batch, heads, length, size = query.shape
    shared, tokens = key.shape[1:3]
    if key.shape != value.shape or key.shape != (batch, shared, tokens, size):
        return False
    if not (shared and heads % shared == 0 and length and tokens and size):
        return False
    # Rows are read as if their elements lay side by side.
    dense = all(one.stride(3) == 1 or size == 1 for one in operands)
    same = query.dtype in _COMPUTED and key.dtype is query.dtype is value.dtype
    return dense and same and (mask is None or _masks(mask, query, tokens))


def _masks(mask: Tensor, query: Tensor, tokens: int) -> bool:
    """Return whether a mask fits a query, of which each axis may be one element."""
    batch, heads, length, _ = query.shape
    wide = query.dtype in SHORT and mask.dtype is torch.float32
    kinds = mask.dtype is query.dtype or wide
    extents = zip(reversed(mask.shape), (tokens, length, heads, batch), strict=False)
    return kinds and mask.dim() in (2, 4) and all(one in (1, whole) for one, whole in extents)


def _attends_to_itself(given: Given) -> bool:
    """Check the attention of a whole module, and its weights."""
    query, whole, heads = given["query"], given["embed_dim"], given["num_head"]
    if not (isinstance(query, Tensor) and query.dim() == 3 and query.shape[2] == whole):
        return False
    if not (type(heads) is int and heads > 0 and whole > 0 and whole % heads == 0):
        return False
    alike = all(
        isinstance(one, Tensor) and one.shape == query.shape and one.dtype is query.dtype
        for one in (given["key"], given["value"])
    )
    shapes = {
        "qkv_weight": [3 * whole, whole],
        "qkv_bias": [3 * whole],
        "proj_weight": [whole, whole],
        "proj_bias": [whole],
    }
    known = query.dtype in _COMPUTED and query.numel() > 0
    return alike and known and _are(given, query.dtype, **shapes) and _is_marked(given, query)


def _is_marked(given: Given, query: Tensor) -> bool:
    """Return whether a mask of tokens is as large as its kind says."""
    mask, kind = given["mask"], given["mask_type"]
    if mask is None:
        return kind is None or kind in (0, 1, 2)
    batch, tokens = query.shape[:2]
    heads = given["num_head"]
    shapes = {0: [tokens, tokens], 1: [batch, tokens], 2: [batch, heads, tokens, tokens]}
    if type(kind) is not int or list(mask.shape) != shapes.get(kind):
        return False
    # PyTorch makes the mask dense itself: `nn.Transformer` expands one for all heads.
    return mask.dtype in (torch.bool, query.dtype)


def _encodes(given: Given) -> bool:
    """Check a whole layer of a transformer."""
    src, whole = given["src"], given["embed_dim"]
    inner = given["ffn_weight_1"]
    if not (isinstance(inner, Tensor) and inner.dim() == 2):
        return False
    named = given | {"query": src, "key": src, "value": src, "num_head": given["num_heads"]}
    if not _attends_to_itself(named):
        return False
    width = inner.shape[0]
    norms = {f"norm_{part}_{place}": [whole] for part in ("weight", "bias") for place in (1, 2)}
    layers = {
        "ffn_weight_1": [width, whole],
        "ffn_bias_1": [width],
        "ffn_weight_2": [whole, width],
        "ffn_bias_2": [whole],
    }
    return width > 0 and _are(given, src.dtype, **norms, **layers)


def _steps(given: Given) -> bool:
    """Check a layer of an LSTM by oneDNN, which is given nothing but addresses."""
    x, hidden, mode = given["input"], given["hidden_size"], given["mode"]
    if not (isinstance(x, Tensor) and x.dim() == 3 and x.numel() and mode == _LSTM):
        return False
    if not (type(hidden) is int and hidden > 0 and not given["batch_sizes"] and not given["train"]):
        return False
    steps, batch, size = x.shape
    shapes = {
        "input": [steps, batch, size],
        "weight0": [4 * hidden, size],
        "weight1": [4 * hidden, hidden],
        "weight2": [4 * hidden],
        "weight3": [4 * hidden],
    }
    if not given["has_biases"]:  # what stands for them is not read
        del shapes["weight2"], shapes["weight3"]
    state = given["hx_"]
    leading = list(state.shape[:-2]) if isinstance(state, Tensor) else [0]
    shapes["hx_"] = shapes["cx_"] = [*leading, batch, hidden]
    layers = given["num_layers"]
    return (
        leading in ([], [1])
        and type(layers) is int
        and layers > 0
        and x.dtype in (torch.float32, torch.bfloat16)
        and _are(given, x.dtype, **shapes)
    )


def _recurs(gates: int) -> Check:
    """Return the check of a recurrent network, which reads as many numbers as its state says."""

    def check(given: Given) -> bool:
        states = given["hx"] if isinstance(given["hx"], list | tuple) else [given["hx"]]
        sizes = [_extents(one) for one in states]
        if not all(len(one) == 3 and one[:2] == sizes[0][:2] for one in sizes):
            return False
        # The state that an LSTM shows may be a projection of the one that it keeps.
        shown, hidden = sizes[0][2], sizes[-1][2]
        both = 2 if given["bidirectional"] else 1
        width, batch_first = _extents(given["input"])[-1], given["batch_first"]
        batch = _extents(given["input"])[0 if batch_first else 1]
        layers, params = given["num_layers"], given["params"]
        if type(layers) is not int or sizes[0][:2] != [layers * both, batch]:
            return False
        if layers > len(params):
            return False
        expected: list[list[int]] = []
        for layer in range(layers):
            inner = width if layer == 0 else both * shown
            weights = [[gates * hidden, inner], [gates * hidden, shown]]
            biases = [[gates * hidden]] * 2 if given["has_biases"] else []
            projected = [[shown, hidden]] if shown != hidden else []
            expected += (weights + biases + projected) * both
        return [_extents(one) for one in params] == expected

    return check


def _scales(given: Given) -> bool:
    """Check a weight norm: a scale for each part along an axis, or one for all (axis -1)."""
    whole, scale, dim = _extents(given["v"]), _extents(given["g"]), given["dim"]
    if type(dim) is not int or not whole or given["v"].dtype is not given["g"].dtype:
        return False
    kept = [one if place == dim else 1 for place, one in enumerate(whole)]
    return scale == kept or (dim == -1 and scale == [])


def _scales_rows(given: Given) -> bool:
    """Check a weight norm by its kernel, which takes the first or the last axis of dense values."""
    whole, dense = given["v"], (given["v"], given["g"])
    if not _scales(given) or given["dim"] not in (0, whole.dim() - 1):
        return False
    return whole.dtype in _COMPUTED and all(one.is_contiguous() and one.numel() for one in dense)


def _extents(value: Any) -> list[int]:
    return list(value.shape) if isinstance(value, Tensor) else []


_CHECKS: dict[str, Check] = {
    "_native_multi_head_attention": _attends_to_itself,
    "_scaled_dot_product_flash_attention_for_cpu": _attends,
    "_transformer_encoder_layer_fwd": _encodes,
    "_weight_norm": _scales,
    "_weight_norm_interface": _scales_rows,
    "mkldnn_rnn_layer": _steps,
    **{name: _recurs(gates) for name, gates in _GATES.items()},
}

UNCHECKED = frozenset(_CHECKS)
"""The operators, by their names without `aten`."""

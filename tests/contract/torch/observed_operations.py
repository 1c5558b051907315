"""Operations that bestof answers, and the ways in which a program observes or transforms a call.

An observer calls an operation within a state of PyTorch, such as a trace or a mode, and returns
what the program sees: tensors, names, or the type of the error. Without bestof it sees the same.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Function = Callable[..., Tensor]
Operands = tuple[Tensor, ...]


class Operation(NamedTuple):
    """A function of float32 tensors, their shapes, and the operator that bestof answers."""

    run: Function
    shapes: Sequence[tuple[int, ...]]
    operator: str

    def operands(self, seed: int = 0) -> Operands:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator) for shape in self.shapes)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


OPERATIONS = {
    "convolution": Operation(
        lambda x, w, b: torch.conv2d(x, w, b, padding=1),
        [(2, 8, 12, 12), (16, 8, 3, 3), (16,)],
        "aten::convolution",
    ),
    "1-D convolution": Operation(
        lambda x, w, b: torch.conv1d(x, w, b, padding=1),
        [(2, 8, 24), (16, 8, 3), (16,)],
        "aten::convolution",
    ),
    "transposed convolution": Operation(
        lambda x, w, b: torch.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1),
        [(2, 16, 6, 6), (16, 8, 3, 3), (8,)],
        "aten::convolution",
    ),
    "3-D convolution": Operation(
        lambda x, w, b: torch.conv3d(x, w, b, padding=1),
        [(2, 8, 5, 6, 6), (16, 8, 3, 3, 3), (16,)],
        "aten::convolution",
    ),
    "mm": Operation(torch.mm, [(96, 96), (96, 72)], "aten::mm"),
    "addmm": Operation(functional.linear, [(96, 96), (72, 96), (72,)], "aten::addmm"),
    "bmm": Operation(_bmm, [(3, 64, 64), (3, 64, 64)], "aten::bmm"),
    "baddbmm": Operation(torch.baddbmm, [(64,), (3, 64, 64), (3, 64, 64)], "aten::baddbmm"),
    "attention": Operation(
        functional.scaled_dot_product_attention,
        [(2, 4, 20, 16), (2, 4, 33, 16), (2, 4, 33, 16)],
        "aten::_scaled_dot_product_flash_attention_for_cpu",
    ),
    "pooling": Operation(
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        [(2, 8, 24, 24)],
        "aten::max_pool2d_with_indices",
    ),
    "average pooling": Operation(
        lambda x: functional.avg_pool2d(x, 3, 2, 1), [(2, 8, 24, 24)], "aten::avg_pool2d"
    ),
    "layer norm": Operation(
        lambda x, w, b: functional.layer_norm(x, (33,), w, b),
        [(6, 5, 33), (33,), (33,)],
        "aten::native_layer_norm",
    ),
    "group norm": Operation(
        lambda x, w, b: functional.group_norm(
            x.contiguous(memory_format=torch.channels_last), 4, w, b
        ),
        [(2, 12, 7, 5), (12,), (12,)],
        "aten::native_group_norm",
    ),
    "softmax": Operation(lambda x: torch.softmax(x, -1), [(6, 5, 33)], "aten::_softmax"),
    "gelu": Operation(functional.gelu, [(6, 5, 33)], "aten::gelu"),
    "silu": Operation(functional.silu, [(6, 5, 33)], "aten::silu"),
}


def _gradients(run: Function, operands: Operands) -> Operands:
    leaves = [one.clone().requires_grad_() for one in operands]
    return torch.autograd.grad(run(*leaves).square().sum(), leaves)


class _Module(torch.nn.Module):
    def __init__(self, run: Function) -> None:
        super().__init__()
        self._run = run

    def forward(self, *operands: Tensor) -> Tensor:
        return self._run(*operands)


def _others(operands: Operands) -> Operands:
    return tuple(one.flip(0) + 0.5 for one in operands)


def _traced(run: Function, operands: Operands) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(run, operands, check_trace=False)  # type: ignore[no-untyped-call]
        kinds = sorted(node.kind() for node in traced.inlined_graph.nodes())
        return [one for one in kinds if one != "prim::Constant"], traced(*_others(operands))


def _traced_with_gradients(run: Function, operands: Operands) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(run, operands, check_trace=False)  # type: ignore[no-untyped-call]
        return _gradients(traced, _others(operands))


def _exported_to_onnx(run: Function, operands: Operands) -> Any:
    from torch.onnx import utils  # noqa: PLC0415 - imports much

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, _, _ = utils._model_to_graph(_Module(run).eval(), operands)
    return sorted(node.kind() for node in graph.nodes() if node.kind() != "onnx::Constant")


def _exported(run: Function, operands: Operands) -> Any:
    with torch.no_grad():
        program = torch.export.export(_Module(run).eval(), operands)
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return names, program.module()(*_others(operands))


def _saved(run: Function, operands: Operands) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = io.BytesIO()
        traced = torch.jit.trace(run, operands)  # type: ignore[no-untyped-call]  # checks the trace
        torch.jit.save(traced, file)  # type: ignore[no-untyped-call]
        file.seek(0)
        return torch.jit.load(file)(*_others(operands))  # type: ignore[no-untyped-call]


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class _Called(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def _in_mode(kind: type[Any]) -> Callable[[Function, Operands], Any]:
    def observe(run: Function, operands: Operands) -> Any:
        with kind() as mode:
            results = run(*operands), _gradients(run, operands)
        return mode.names, results

    return observe


class _Counted(Tensor):
    """A subclass that sees the functions it is given to."""

    met: list[str] = []  # noqa: RUF012 - reset by each observation

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _Counted.met.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


def _of_a_subclass(run: Function, operands: Operands) -> Any:
    _Counted.met.clear()
    result = run(operands[0].as_subclass(_Counted), *operands[1:])
    return type(result).__name__, list(_Counted.met), result.as_subclass(Tensor)


class _Wrapped(Tensor):
    """A subclass that holds a tensor, and sees the operators."""

    met: list[str] = []  # noqa: RUF012 - reset by each observation
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> _Wrapped:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        _Wrapped.met.append(str(function))
        held = pytree.tree_map(
            lambda one: one.held if isinstance(one, _Wrapped) else one, (args, kwargs or {})
        )
        results = function(*held[0], **held[1])
        return pytree.tree_map(
            lambda one: _Wrapped(one) if isinstance(one, Tensor) else one, results
        )


def _of_a_wrapper(run: Function, operands: Operands) -> Any:
    _Wrapped.met.clear()
    result = run(*(_Wrapped(one) for one in operands))
    return type(result).__name__, list(_Wrapped.met), result.held  # type: ignore[attr-defined]


def _profiled(operator: str) -> Callable[[Function, Operands], Any]:
    def observe(run: Function, operands: Operands) -> Any:
        with torch.autograd.profiler.profile(record_shapes=True) as found:  # type: ignore[no-untyped-call]
            run(*operands)
        events = [one for one in found.function_events if one.name == operator]
        return [(one.name, one.input_shapes) for one in events]

    return observe


def _forward_differentiated(run: Function, operands: Operands) -> Any:
    with forward_ad.dual_level():  # type: ignore[no-untyped-call]
        duals = [forward_ad.make_dual(one, one.flip(0)) for one in operands]
        return tuple(forward_ad.unpack_dual(run(*duals)))  # type: ignore[no-untyped-call]


def _with_saved_tensor_hooks(run: Function, operands: Operands) -> Any:
    kept: list[tuple[int, ...]] = []

    def pack(one: Tensor) -> Tensor:
        kept.append(tuple(one.shape))
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        return kept, _gradients(run, operands)


def _fake(run: Function, operands: Operands) -> Any:
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415 - imports much

    with FakeTensorMode() as mode:
        result = run(*map(mode.from_tensor, operands))
    return type(result).__name__, tuple(result.shape), result.stride(), result.dtype


def _meta(run: Function, operands: Operands) -> Any:
    result = run(*(one.to("meta") for one in operands))
    return result.device, tuple(result.shape), result.stride(), result.dtype


def _graph_of(run: Function, operands: Operands) -> Any:
    traced = make_fx(run)(*operands)
    names = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    return names, traced(*_others(operands))


def _attributes(run: Function, operands: Operands) -> Any:
    result = run(*operands), run(operands[0].clone().requires_grad_(), *operands[1:])
    return [
        (one.requires_grad, type(one.grad_fn).__name__, one.stride(), one.is_inference())
        for one in result
    ]


def _in(state: Callable[[], Any]) -> Callable[[Function, Operands], Any]:
    def observe(run: Function, operands: Operands) -> Any:
        with state():
            result = run(*operands)
            return result.dtype, result.is_inference(), result.stride(), result

    return observe


def _compiled(backend: str) -> Callable[[Function, Operands], Any]:
    def observe(run: Function, operands: Operands) -> Any:
        torch._dynamo.reset()  # type: ignore[no-untyped-call]
        compiled = torch.compile(lambda *given: run(*given), backend=backend, fullgraph=True)
        return compiled(*operands), _gradients(compiled, operands)

    return observe


def _double_backward(run: Function, operands: Operands) -> Any:
    leaves = [one.clone().requires_grad_() for one in operands]
    (first,) = torch.autograd.grad(run(*leaves).square().sum(), leaves[:1], create_graph=True)
    return torch.autograd.grad(first.square().sum(), leaves, allow_unused=True)


def observers(operation: Operation) -> dict[str, Callable[[Function, Operands], Any]]:
    """Return all observers; those that import or compile much come last, behind a `*`."""
    return {
        "a call": lambda run, operands: run(*operands),
        "gradients": _gradients,
        "attributes": _attributes,
        "no_grad": _in(torch.no_grad),
        "inference_mode": _in(torch.inference_mode),
        "autocast": _in(lambda: torch.autocast("cpu", torch.bfloat16)),
        "a default device": _in(lambda: torch.device("meta")),
        "the python dispatcher": _in(torch._dispatch.python.enable_python_dispatcher),
        "a trace": _traced,
        "the gradients of a trace": _traced_with_gradients,
        "a saved trace": _saved,
        "a graph": _graph_of,
        "a dispatch mode": _in_mode(_Dispatched),
        "a function mode": _in_mode(_Called),
        "a subclass": _of_a_subclass,
        "a wrapper": _of_a_wrapper,
        "a profiler": _profiled(operation.operator),
        "forward differentiation": _forward_differentiated,
        "vmap": lambda run, operands: torch.vmap(run)(*(torch.stack([x, x + 1]) for x in operands)),
        "func.grad": lambda run, operands: torch.func.grad(lambda *x: run(*x).square().sum())(
            *operands
        ),
        "func.jvp": lambda run, operands: torch.func.jvp(run, operands, _others(operands)),
        "func.jacrev": lambda run, operands: torch.func.vmap(
            torch.func.grad(lambda *x: run(*x).square().sum())
        )(*(torch.stack([x, x + 1]) for x in operands)),
        "double backward": _double_backward,
        "saved tensor hooks": _with_saved_tensor_hooks,
        "a checkpoint": lambda run, operands: _gradients(
            lambda *x: checkpoint(run, *x, use_reentrant=False), operands
        ),
        "meta tensors": _meta,
        "a negative bit": lambda run, operands: run(torch._neg_view(operands[0]), *operands[1:]),
        "a tensor of zeros": lambda run, operands: run(
            torch._efficientzerotensor(operands[0].shape), *operands[1:]
        ),
        "fake tensors*": _fake,
        "an export to ONNX*": _exported_to_onnx,
        "an export*": _exported,
        "a compiler*": _compiled("eager"),
        "a compiler of graphs*": _compiled("aot_eager"),
    }

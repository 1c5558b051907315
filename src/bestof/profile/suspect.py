"""Finds suspects: parts of a profile that usually have a cheaper form.

Each suspect has a reason and a remedy. One function finds one kind of suspect, and one row of
`_RULES` names the function. A suspect shows the time that is at stake, not the time that the remedy
saves. A projection or a second profile shows that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from bestof.profile.profile import Profile
from bestof.profile.span import Span
from bestof.profile.steady import Steady, steady_of


@dataclass(frozen=True, slots=True)
class Suspect:
    """One suspect. `seconds` of a step are at stake."""

    name: str
    seconds: float
    reason: str
    remedy: str


# Suspects with a smaller share of a step are not reported.
_SHARE = 0.01

_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        *("add", "add_", "sub", "mul", "mul_", "div", "div_", "pow", "exp", "log", "log1p", "neg"),
        *("sigmoid", "tanh", "rsub", "clamp", "clamp_min", "relu", "where", "abs", "sqrt", "rsqrt"),
        *(
            "binary_cross_entropy_with_logits",
            "softplus",
            "addcmul",
            "lerp",
            "reciprocal",
            "square",
        ),
    )
)
_SLOW_CONVOLUTIONS = ("aten::_slow_conv2d_forward", "aten::_slow_conv2d_backward")
# The place of the weight among the arguments of the operations that reorder it.
_WEIGHTS = {"aten::mkldnn_convolution": 1, "aten::convolution_backward": 2}
_NORMS = ("native_batch_norm", "batch_norm", "native_layer_norm", "native_group_norm", "layer_norm")
# Of these, the dtype is that of the operand.
_CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::copy_")
_FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


def suspects_of(profile: Profile) -> list[Suspect]:
    """Return the suspects of one profile, the most expensive first."""
    steady = steady_of(profile)
    found = [one for rule in _RULES for one in rule(steady)]
    found += _threads(profile, steady)
    worth = [one for one in found if one.seconds >= _SHARE * steady.wall]
    return sorted(worth, key=lambda one: -one.seconds)


def suspects_between(first: Steady, second: Steady) -> list[Suspect]:
    """Return suspects of the second profile in comparison with the first, the most expensive
    first."""
    found = [*_weight_gradients(first, second), *_fallen_back(first, second)]
    return sorted(found, key=lambda one: -one.seconds)


def _reorders(steady: Steady) -> Iterator[Suspect]:
    convolutions = [span for span in steady.spans if span.name == "convolution"]
    weights: list[Span] = []
    images: list[Span] = []
    sizes = 0
    for span in steady.spans:
        if span.kind == "operation" and span.name in _WEIGHTS:
            sizes = _weight_size(span)
        elif span.name == "reorder" and "conv" in span.operation:
            (weights if _elements(span.problem) == sizes else images).append(span)
    if not convolutions or len(weights) + len(images) < len(convolutions):
        return
    counts = f"{len(weights)} of weights and {len(images)} of images, for {len(convolutions)} "
    counts += "passes of convolutions: they change the layout at each call"
    if _seconds(images) >= _seconds(weights):
        remedy = (
            "bring model and input into memory_format=torch.channels_last; or "
            "bestof.torch.enable(), whose kernels read both layouts"
        )
    else:
        remedy = (
            "larger batches or images, as weights take the same time with any number of images; "
            "or bestof.torch.enable(), which tries weight gradients without a reorder"
        )
    yield Suspect(
        "reorders around every convolution",
        _seconds(weights) + _seconds(images),
        f"{len(weights) + len(images)} reorders, {counts}",
        f"{remedy}; for inference bestof.torch.optimize(), which packs the weights once",
    )


def _weight_size(operation: Span) -> int:
    """Return the elements of the weight of an operation, by the shapes of its arguments."""
    shapes = operation.problem.split(":")
    place = _WEIGHTS[operation.name]
    return _elements(shapes[place]) if place < len(shapes) else 0


def _elements(shape: str) -> int:
    """Return the elements of a shape as a reorder prints it: `8x16x3x3`. 0 for other text."""
    axes = shape.split("x")
    return prod(map(int, axes)) if all(one.isdecimal() for one in axes) else 0


def _references(steady: Steady) -> Iterator[Suspect]:
    by_name: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in steady.spans:
        implementation = span.implementation.split(":")
        if span.kind == "line" and any(
            word in ("ref", "ref_int8", "gemm_ref") for word in implementation
        ):
            by_name[span.name, span.module].append(span)
    for (name, module), spans in by_name.items():
        yield Suspect(
            "reference implementation",
            _seconds(spans),
            f"oneDNN runs {name} of {module or 'no module'} ({spans[0].problem}) by "
            f"{spans[0].implementation}, which is not optimized",
            "ONEDNN_VERBOSE=dispatch shows why the others refused; change the layout, the type "
            "or the pads",
        )


def _unfolded(steady: Steady) -> Iterator[Suspect]:
    spans = [span for span in steady.spans if span.operation in _SLOW_CONVOLUTIONS]
    calls = sum(span.kind == "operation" for span in spans)
    if calls:
        yield Suspect(
            "convolutions outside of oneDNN",
            _seconds(spans),
            f"PyTorch computes {calls} passes of convolutions by copying patches into a matrix "
            "and a product of MKL",
            "bestof.torch.enable(), which tries its own kernels for them; PyTorch calls oneDNN if "
            "batches are larger or there is more than one thread",
        )


def _norms(steady: Steady) -> Iterator[Suspect]:
    by_module: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in steady.spans:
        if "Norm" in span.module_class:
            by_module[span.module, span.module_class].append(span)
    apart = {
        key: spans
        for key, spans in by_module.items()
        if {"aten::mul", "aten::add"} <= {span.name for span in spans}
        and not any(word in span.name for span in spans for word in _NORMS)
    }
    if apart:
        (_, kind), _ = next(iter(apart.items()))
        yield Suspect(
            "norm that fell apart",
            sum(_seconds(spans) for spans in apart.values()),
            f"{len(apart)} modules of class {kind} run as separate multiplications and additions",
            "bestof.torch.frozen_batch_norm computes a frozen norm and its ReLU in one pass; for "
            "inference bestof.torch.optimize folds it into the convolution before it",
        )


def _half_loss(steady: Steady) -> Iterator[Suspect]:
    spans = [
        span
        for span in steady.spans
        if span.phase == "loss" and span.dtype in ("bf16", "f16") and span.name not in _CONVERSIONS
    ]
    if spans:
        yield Suspect(
            "loss in half precision",
            # This is about accuracy, not time, so it is reported however short the loss is.
            max(_seconds(spans), _SHARE * steady.wall),
            f"{len(spans)} operations of the loss compute in {spans[0].dtype}",
            "compute the loss from logits.float(), outside of autocast",
        )


def _optimizer(steady: Steady) -> Iterator[Suspect]:
    spans = [span for span in steady.spans if span.phase == "optimizer"]
    if len(spans) > 8 and not any("_fused_" in span.name for span in spans):
        yield Suspect(
            "optimizer without fused=True",
            _seconds(spans),
            f"the optimizer runs {len(spans)} operations a step, each over all of a parameter",
            f"pass fused=True ({', '.join(_FUSED)} have it on the processor); for large batches "
            "bestof.torch.optim.LAMB, which updates a tensor by one native kernel",
        )


def _chains(steady: Steady) -> Iterator[Suspect]:
    """Yield runs of elementwise operations of one module and phase. Each accesses memory again."""
    chain: list[Span] = []
    chains: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in [*steady.spans, None]:
        if span is not None and span.self_seconds == 0.0:
            continue
        fits = span is not None and span.name in _ELEMENTWISE and span.phase in ("forward", "loss")
        if chain and (not fits or span is None or _place(span) != _place(chain[0])):
            if len(chain) >= 4:
                chains[_place(chain[0])] += chain
            chain = []
        if fits and span is not None:
            chain.append(span)
    for (module, phase), spans in chains.items():
        focal = phase == "loss" and any(
            "sigmoid" in span.name or "pow" in span.name for span in spans
        )
        yield Suspect(
            "chain bound by memory",
            _seconds(spans),
            f"{len(spans)} elementwise operations in a row ({module or phase}), each of which "
            "reads and writes its tensors",
            "bestof.torch.sigmoid_focal_loss computes a sigmoid focal loss and its gradient in "
            "one pass"
            if focal
            else "torch.compile fuses such chains",
        )


def _place(span: Span) -> tuple[str, str]:
    return span.module, span.phase


def _threads(profile: Profile, steady: Steady) -> Iterator[Suspect]:
    threads, processors = (profile.host.get(name, "") for name in ("threads", "processors"))
    if threads.isdecimal() and processors.isdecimal() and int(threads) > int(processors):
        yield Suspect(
            "more threads than processors",
            steady.wall,
            f"PyTorch runs {threads} threads on {processors} processors: they wait for each other",
            f"torch.set_num_threads({processors}), or OMP_NUM_THREADS={processors}",
        )


def _weight_gradients(first: Steady, second: Steady) -> Iterator[Suspect]:
    """Yield layers that have a weight gradient in the second profile only."""
    sides = [_modules_with(one, "backward_weights") for one in (first, second)]
    forward = _modules_with(first, "forward")
    extra = {
        name: spans for name, spans in sides[1].items() if name in forward and name not in sides[0]
    }
    if extra:
        names = sorted(extra)
        yield Suspect(
            "weight gradient of a frozen layer",
            sum(_seconds(spans) for spans in extra.values()),
            f"{len(names)} modules get a weight gradient in B and none in A: "
            f"{', '.join(names[:5])}",
            "where they are frozen, parameter.requires_grad_(False) before the forward pass",
        )


def _modules_with(steady: Steady, direction: str) -> Mapping[str, Sequence[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for span in steady.spans:
        if span.kind == "line" and direction in span.direction and span.module:
            found[span.module].append(span)
    return found


def _fallen_back(first: Steady, second: Steady) -> Iterator[Suspect]:
    """Yield layers that compute in a half type in the first profile, and in float32 in the
    second."""
    dtypes: list[dict[tuple[str, str], Span]] = [{}, {}]
    for side, steady in zip(dtypes, (first, second), strict=True):
        for span in steady.spans:
            if span.kind == "line" and span.name in ("convolution", "matmul", "inner_product"):
                side[span.module, span.direction] = span
    back = [
        span
        for key, span in dtypes[1].items()
        if span.dtype.startswith("f32")
        and dtypes[0].get(key, span).dtype.startswith(("bf16", "f16"))
    ]
    if back:
        yield Suspect(
            "type that fell back to float32",
            _seconds(back),
            f"{len(back)} calls that compute in a half type in A compute in float32 in B, as in "
            f"{back[0].module}",
            "look for an operation before them that returns float32, or that stands outside of "
            "autocast",
        )


def _seconds(spans: Sequence[Span]) -> float:
    return sum(span.self_seconds for span in spans)


_RULES: tuple[Callable[[Steady], Iterator[Suspect]], ...] = (
    _reorders,
    _references,
    _unfolded,
    _norms,
    _half_loss,
    _optimizer,
    _chains,
)

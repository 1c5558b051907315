"""A plan of accuracy "exact" has the model's own bits, with gradients on and off."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.ops.distance import are_equal
from bestof.torch.plan.trace import traced as trace
from bestof.torch.plan.verify import verification

Given = tuple[Any, ...]


class Of(nn.Module):
    """A function of inputs, as a module; `parts` are parameters, buffers or modules."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *given: Any) -> Any:
        return self._function(self, *given)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape)


def mha(bias: bool = True, batch_first: bool = True, **options: Any) -> nn.Module:
    return nn.MultiheadAttention(32, 4, bias=bias, batch_first=batch_first, **options)


def self_attention(module: nn.Module, **options: Any) -> nn.Module:
    return Of(lambda one, x: one.module(x, x, x, **options), module=module)


def encoder(layers: int = 1, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 48, **{"batch_first": True, **options})
    return layer if layers == 1 else nn.TransformerEncoder(layer, layers)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(normal(*shape))


def convolutional(*layers: nn.Module) -> tuple[nn.Module, Given]:
    return nn.Sequential(*layers), (normal(2, 6, 13, 11),)


def tokens() -> Tensor:
    return normal(2, 9, 32)


LAYERS: dict[str, Callable[[], tuple[nn.Module, Given]]] = {
    # transformers, whose fast paths run where no gradient is wanted
    "encoder layer": lambda: (encoder(), (tokens(),)),
    "encoder layer, gelu": lambda: (encoder(activation="gelu"), (tokens(),)),
    "encoder layer, norm first": lambda: (encoder(norm_first=True), (tokens(),)),
    "encoder layer, no bias": lambda: (encoder(bias=False), (tokens(),)),
    "encoder layer, batch second": lambda: (encoder(batch_first=False), (tokens(),)),
    "encoder": lambda: (encoder(3), (tokens(),)),
    "encoder, masked": lambda: (
        Of(lambda one, x, mask: one.module(x, mask=mask, is_causal=True), module=encoder(2)),
        (tokens(), nn.Transformer.generate_square_subsequent_mask(9)),
    ),
    "encoder, padded": lambda: (
        Of(lambda one, x, pad: one.module(x, src_key_padding_mask=pad), module=encoder()),
        (tokens(), torch.arange(9).expand(2, 9) > 6),
    ),
    "decoder layer": lambda: (
        nn.TransformerDecoderLayer(32, 4, 48, batch_first=True),
        (tokens(), tokens()),
    ),
    "transformer": lambda: (
        nn.Transformer(32, 4, 1, 1, 48, batch_first=True),
        (tokens(), tokens()),
    ),
    "attention, weights": lambda: (self_attention(mha()), (tokens(),)),
    "attention": lambda: (self_attention(mha(), need_weights=False), (tokens(),)),
    "attention, odd heads": lambda: (
        self_attention(nn.MultiheadAttention(33, 3, batch_first=True)),
        (normal(2, 9, 33),),
    ),
    "attention, each head": lambda: (
        self_attention(mha(), average_attn_weights=False),
        (tokens(),),
    ),
    "attention, batch second": lambda: (self_attention(mha(batch_first=False)), (tokens(),)),
    "attention, keys": lambda: (
        mha(kdim=16, vdim=24),
        (tokens(), normal(2, 5, 16), normal(2, 5, 24)),
    ),
    "attention, others": lambda: (
        mha(add_bias_kv=True),
        (tokens(), normal(2, 5, 32), normal(2, 5, 32)),
    ),
    "dot product": lambda: (
        Of(
            lambda one, q, k: F.scaled_dot_product_attention(q * one.w, k, k, is_causal=True),
            w=parameter(16),
        ),
        (normal(2, 2, 40, 16), normal(2, 2, 40, 16)),
    ),
    "dot product, mask": lambda: (
        Of(lambda _, q, mask: F.scaled_dot_product_attention(q, q, q, mask)),
        (normal(2, 2, 40, 16), normal(40, 40)),
    ),
    # products, which fold axes by strides and by whether a weight requires a gradient
    "linear": lambda: (nn.Linear(32, 17), (tokens(),)),
    "linear, transposed": lambda: (nn.Linear(9, 17), (tokens().transpose(1, 2),)),
    "linear, four axes": lambda: (nn.Linear(16, 17), (normal(2, 3, 5, 32)[..., ::2],)),
    "linear, one row": lambda: (nn.Linear(32, 17, bias=False), (normal(32),)),
    "bilinear": lambda: (nn.Bilinear(7, 5, 9), (normal(4, 7), normal(4, 5))),
    "matmul": lambda: (Of(lambda one, x: x @ one.w, w=parameter(32, 8)), (tokens(),)),
    "matmul, transposed": lambda: (
        Of(lambda one, x: x.transpose(0, 1) @ one.w, w=parameter(32, 8)),
        (tokens(),),
    ),
    "matmul, on the left": lambda: (
        Of(lambda one, x: one.w @ x, w=parameter(3, 8, 9)),
        (normal(9, 7),),
    ),
    "matmul, vector": lambda: (Of(lambda one, x: one.w @ x, w=parameter(5, 8, 32)), (normal(32),)),
    "matmul, of inputs": lambda: (Of(lambda _, x, y: x @ y), (normal(4, 9, 8), normal(8, 6))),
    "einsum": lambda: (
        Of(lambda one, x: torch.einsum("bnd,de->bne", x, one.w), w=parameter(32, 8)),
        (tokens(),),
    ),
    "einsum, outer": lambda: (Of(lambda _, x: torch.einsum("bnd,bmd->bnm", x, x)), (tokens(),)),
    "tensordot": lambda: (
        Of(lambda one, x: torch.tensordot(x, one.w, dims=([2, 1], [0, 1])), w=parameter(32, 9, 4)),
        (tokens(),),
    ),
    "addmm": lambda: (
        Of(
            lambda one, x: torch.addmm(one.b, x, one.w, beta=0.5), w=parameter(6, 7), b=parameter(7)
        ),
        (normal(5, 6),),
    ),
    "cosine": lambda: (
        Of(lambda one, x: F.cosine_similarity(x, one.w, dim=-1), w=parameter(32)),
        (tokens(),),
    ),
    "cdist": lambda: (
        Of(lambda one, x: torch.cdist(x, one.w), w=parameter(30, 32)),
        (normal(2, 30, 32),),
    ),
    # recurrent layers, which train with another kernel
    "lstm": lambda: (nn.LSTM(12, 16, 2, batch_first=True), (normal(2, 7, 12),)),
    "lstm, both ways": lambda: (nn.LSTM(12, 16, bidirectional=True), (normal(2, 7, 12),)),
    "lstm, projected": lambda: (nn.LSTM(12, 16, proj_size=8), (normal(2, 7, 12),)),
    "gru": lambda: (nn.GRU(12, 24, 2, batch_first=True), (normal(2, 7, 12),)),
    "rnn": lambda: (nn.RNN(12, 16, nonlinearity="relu"), (normal(2, 7, 12),)),
    "lstm cell": lambda: (nn.LSTMCell(12, 16), (normal(2, 12),)),
    "gru cell": lambda: (nn.GRUCell(12, 16), (normal(2, 12),)),
    # convolutions, norms, poolings, activations, sizes
    "convolution": lambda: convolutional(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
    "convolution, strided": lambda: convolutional(
        nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.SiLU(inplace=True)
    ),
    "convolution, grouped": lambda: convolutional(nn.Conv2d(6, 12, 3, groups=3, padding="same")),
    "convolution, depthwise": lambda: convolutional(nn.Conv2d(6, 6, 5, groups=6, dilation=2)),
    "convolution, 1x1": lambda: convolutional(nn.Conv2d(6, 16, 1), nn.GELU(), nn.Conv2d(16, 6, 1)),
    "convolution, reflected": lambda: convolutional(
        nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect")
    ),
    "convolution, transposed": lambda: convolutional(nn.ConvTranspose2d(6, 8, 3, 2, 1)),
    "convolution, 1-D": lambda: (nn.Conv1d(6, 8, 3), (normal(2, 6, 31),)),
    "convolution, 3-D": lambda: (nn.Conv3d(3, 4, 3), (normal(2, 3, 6, 7, 8),)),
    "group norm": lambda: convolutional(nn.GroupNorm(3, 6)),
    "instance norm": lambda: convolutional(nn.InstanceNorm2d(6, affine=True)),
    "layer norm": lambda: (nn.LayerNorm(32), (tokens(),)),
    "rms norm": lambda: (nn.RMSNorm(32), (tokens(),)),
    "batch norm, 1-D": lambda: (nn.BatchNorm1d(9), (tokens(),)),
    "response norm": lambda: convolutional(nn.LocalResponseNorm(3)),
    "weight norm": lambda: (
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(32, 8)),
        (tokens(),),
    ),
    "max pooling": lambda: convolutional(nn.MaxPool2d(3, 2, 1)),
    "average pooling": lambda: convolutional(nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "adaptive pooling": lambda: convolutional(
        nn.AdaptiveAvgPool2d((3, 4)), nn.AdaptiveMaxPool2d(2)
    ),
    "power pooling": lambda: convolutional(nn.LPPool2d(2.0, 3)),
    "global pooling": lambda: convolutional(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)),
    "bilinear sizes": lambda: convolutional(nn.Upsample(scale_factor=1.7, mode="bilinear")),
    "bicubic sizes": lambda: convolutional(
        nn.Upsample(size=(9, 20), mode="bicubic", align_corners=True)
    ),
    "smooth sizes": lambda: (
        Of(lambda _, x: F.interpolate(x, size=(5, 6), mode="bilinear", antialias=True)),
        (normal(2, 6, 13, 11),),
    ),
    "pixels": lambda: (
        nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
        (normal(2, 8, 6, 6),),
    ),
    "folds": lambda: convolutional(nn.Unfold(3), nn.Fold((13, 11), 3)),
    "grid": lambda: (
        Of(lambda _, x, grid: F.grid_sample(x, grid, align_corners=False)),
        (normal(2, 6, 13, 11), torch.rand(2, 5, 5, 2) * 2 - 1),
    ),
    "activations": lambda: convolutional(
        *(nn.ELU(), nn.SELU(), nn.CELU(), nn.Mish(), nn.Hardswish(), nn.Softplus(), nn.Softsign()),
        *(nn.PReLU(6), nn.GELU("tanh"), nn.Tanhshrink(), nn.LogSigmoid(), nn.Softmax2d()),
    ),
    "gates": lambda: (nn.GLU(), (tokens(),)),
    "softmax": lambda: (
        nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(1), nn.Softmin(0)),
        (tokens(),),
    ),
    "embedding": lambda: (nn.Embedding(30, 16, padding_idx=0), (torch.arange(12).view(3, 4),)),
    "embedding bag": lambda: (nn.EmbeddingBag(30, 16, mode="mean"), (torch.arange(12).view(3, 4),)),
    "statistics": lambda: (
        Of(
            lambda _, x: (x.mean(1), x.var(1), x.std(2), x.logsumexp(2), x.cumsum(1), x.norm(dim=2))
        ),
        (tokens(),),
    ),
    "changes in place": lambda: (
        Of(lambda one, x, cache: cache.mul_(0.5).add_(one.linear(x)) + x, linear=nn.Linear(8, 8)),
        (normal(3, 8), normal(3, 8)),
    ),
    "without gradients inside": lambda: (
        Of(
            lambda one, x: one.outer(torch.no_grad()(one.inner)(x)),
            inner=nn.Linear(32, 32),
            outer=nn.Linear(32, 8),
        ),
        (tokens().transpose(0, 1),),
    ),
    "bfloat16": lambda: (encoder().bfloat16(), (tokens().bfloat16(),)),
    "float64": lambda: (encoder().double(), (tokens().double(),)),
}


# Their operators take sizes and weights without a check, and so a file may not name them.
NOT_IN_FILES = {"embedding bag", "bilinear"}


def results(run: Callable[..., Any], given: Given) -> list[Tensor]:
    """The outputs, and the inputs as they are left."""
    copies = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
              if 0 not in x.stride() else x for x in given]  # fmt: skip
    leaves = [one for one in pytree.tree_leaves(run(*copies)) if isinstance(one, Tensor)]
    return [one.detach() for one in (*leaves, *copies)]


def check(plan: Callable[..., Any], model: nn.Module, given: Given, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        rights, found = results(model, given), results(plan, given)
    for got, right in zip(found, rights, strict=True):
        assert got.stride() == right.stride()
        assert are_equal(got, right)


def made(name: str) -> tuple[nn.Module, Given]:
    torch.manual_seed(0)
    model, given = LAYERS[name]()
    for one in model.modules():
        if isinstance(one, nn.modules.batchnorm._NormBase) and one.running_mean is not None:
            one.running_mean.normal_()
            one.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model.eval(), given


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_has_the_models_bits(name: str) -> None:
    model, given = made(name)
    plan = bt.optimize(model, given, accuracy="exact")
    for grad in (True, False):
        check(plan, model, given, grad)
        check(plan, model, tuple(x.clone() if x.is_floating_point() else x for x in given), grad)
    with torch.inference_mode():
        check(plan, model, given, grad=False)
    file = io.BytesIO()
    if name in NOT_IN_FILES:
        with pytest.raises(TorchError, match="which a file cannot name"):
            plan.save(file)
        return
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    for grad in (True, False):
        check(loaded, model, given, grad)


@pytest.mark.long(every=8)
@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_has_the_models_bits_on_two_threads(name: str) -> None:
    model, given = made(name)
    torch.set_num_threads(2)
    last = tuple(
        x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in given
    )
    plan = bt.optimize(model, last, accuracy="exact", tune=False)
    for grad in (True, False):
        check(plan, model, last, grad)


def _split(y: Tensor) -> Tensor:
    one, other, last = y.unsafe_chunk(3, 1)
    one.add_(other).sigmoid_()
    return last.exp_().add_(one).tanh_()


def _chunked(y: Tensor) -> Tensor:
    one, other, last = y.chunk(3, 1)
    one.add_(other).sigmoid_()
    return one * other.tanh_() + last.exp()


def _sliced(y: Tensor) -> Tensor:
    y[:, :24].add_(1).sigmoid_()
    return y[:, :24].tanh() * y[:, 24:48]


def _transposed(y: Tensor) -> Tensor:
    return y.t()[3:27].add_(1).sigmoid_().mul_(3).tanh_().exp()


def _split_and_read_by_another_name(y: Tensor) -> Tensor:
    one, other, _ = y.unsafe_chunk(3, 1)
    again = other[:]
    other.add_(1).sigmoid_()
    return one.sigmoid_().tanh() * again


def _viewed(y: Tensor) -> Tensor:
    part = y.view(2, 3, 24)[:, 1]
    part.add_(1).sigmoid_()
    return part.tanh() + y[:, 24:48]


CHANGES = [_split, _split_and_read_by_another_name, _chunked, _sliced, _transposed, _viewed]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("grad", [True, False])
def test_changes_of_parts_have_the_models_bits(
    change: Callable[[Tensor], Tensor], grad: bool
) -> None:
    """Rows with gaps between them: PyTorch has another kernel for rows in one piece.

    Inputs are many: an example alone may have the same bits by both.
    """
    if grad and change is _chunked:
        pytest.skip("autograd refuses changes of what chunk returns")
    torch.manual_seed(0)
    model = Of(lambda one, x: change(one.linear(x)), linear=nn.Linear(12, 72)).eval()
    with torch.set_grad_enabled(grad):
        plan = bt.optimize(model, normal(2, 12), accuracy="exact")
    for _ in range(20):
        check(plan, model, (normal(2, 12),), grad)


def test_changes_of_inputs_with_gaps_have_the_models_bits() -> None:
    torch.manual_seed(0)
    model = Of(lambda _, x: x.add_(1).sigmoid_().tanh()).eval()
    plan = bt.optimize(model, normal(2, 72)[:, :24], accuracy="exact")
    for _ in range(20):
        check(plan, model, (normal(2, 72)[:, :24],), grad=False)


@pytest.mark.parametrize("grad", [True, False])
def test_shapes_that_are_not_planned_have_the_models_bits(grad: bool) -> None:
    model, (x,) = made("encoder layer")
    plan = bt.optimize(model, x, accuracy="exact")
    for length in (4, 5, 4):
        check(plan, model, (normal(2, length, 32),), grad)


def test_a_plan_with_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is off by one unit."""
    by_fx = trace._by_fx
    more = Of(lambda _, x: x * (1 + 2**-23))

    def wrong(model: nn.Module, *given: Any) -> Any:
        return by_fx(nn.Sequential(model, more), *given)

    monkeypatch.setattr(trace, "_by_fx", wrong)
    with pytest.raises(TorchError, match="differ in some bits"):
        bt.optimize(nn.Linear(8, 8).eval(), normal(2, 8), accuracy="exact")


def test_equal_results_may_hold_nan() -> None:
    one = torch.tensor([1.0, float("nan"), float("inf")])
    assert verification.same_bits([one, 3], [one.clone(), 3])
    for other in (torch.tensor([1.0, 2.0, float("inf")]), one.double(), one[:2], -one):
        assert not verification.same_bits([one], [other])
        assert not verification.same_bits([other], [one])


@pytest.mark.parametrize("grad", [False, True])
def test_one_tensor_in_several_places_has_the_bits_of_the_model(grad: bool) -> None:
    model, x = mha().eval(), normal(2, 5, 32)
    with torch.set_grad_enabled(grad):
        plan = bt.optimize(model, (x, x, x), accuracy="exact")
        for given in ((x, x, x), (x, x.clone(), x.clone()), (x, x, x)):
            expected = [one.detach() for one in model(*given)]
            assert all(map(torch.equal, plan(*given), expected))
        file = io.BytesIO()
        plan.save(file)
        file.seek(0)
        loaded = bt.load(file)
        with pytest.raises(TorchError, match="one tensor in two places"):
            loaded(x, x, x)
        assert all(
            map(torch.equal, loaded(x, x.clone(), x.clone()), model(x, x.clone(), x.clone()))
        )

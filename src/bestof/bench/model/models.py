"""The models of `bestof bench model`: one row each, from other packages, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from bestof.errors import InvalidArgument, TorchError

Size = tuple[int, int]
"""Rows and columns of the images."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model. `function` of `module` builds it for a size, at full width or narrow.

    `package` is the package that defines the model. `size` is the default size of the images;
    `narrow_size` goes with the narrow form, in which tests run the same architecture in
    milliseconds. `dense`: the model labels every pixel instead of the image. `text`: the model
    reads tokens instead of images; their size is 1 x length.
    """

    name: str
    package: str
    module: str
    function: str
    size: Size = (224, 224)
    narrow_size: Size = (64, 64)
    dense: bool = False
    text: bool = False

    def check_size(self, size: Size) -> None:
        """Raise InvalidArgument for a size that the model does not take."""
        if self.text:
            if size[0] != 1 or not 1 <= size[1] <= _LONGEST:
                raise InvalidArgument(
                    f"model {self.name}: expected 1x1 to 1x{_LONGEST} tokens; "
                    f"got {size[0]}x{size[1]}"
                )
        elif min(size) < 32 or size[0] % 32 or size[1] % 32:
            raise InvalidArgument(
                f"model {self.name}: expected images of multiples of 32; got {size[0]}x{size[1]}"
            )

    def inputs(self, batch: int, size: Size | None = None, *, narrow: bool = False) -> Tensor:
        """Return random images (batch, 3, rows, columns), or tokens (batch, length); always the
        same ones.
        """
        rows, columns = size or (self.narrow_size if narrow else self.size)
        generator = torch.Generator().manual_seed(0)
        if self.text:
            return torch.randint(0, _TOKENS, (batch, columns), generator=generator)
        return torch.randn(batch, 3, rows, columns, generator=generator)

    def build(self, size: Size | None = None, *, narrow: bool = False) -> nn.Module:
        """Return a module from images (N, 3, rows, columns), or tokens (N, length), to logits.

        It is in training mode. Equal arguments give equal weights. Raises TorchError if the package
        is missing, InvalidArgument for a size that the model does not take.
        """
        if find_spec(self.package) is None:
            raise TorchError(
                f"model {self.name}: the package {self.package} is not installed; install it"
            )
        function: Any = getattr(import_module(self.module), self.function)
        size = size or (self.narrow_size if narrow else self.size)
        self.check_size(size)
        torch.manual_seed(0)
        model: nn.Module = function(size, narrow)
        _normalize(model, size)
        return model


# The pixels of four images of 224x224. Small images leave few values for the variances of the last
# layers, so more of them are used.
_PIXELS = 4 * 224 * 224


def _normalize(model: nn.Module, size: Size) -> None:
    """Set the statistics of the batch norms to those of random images.

    Untrained norms divide by one. The logits of a MobileNetV2 would be near 1e-26 then, and an
    error in its first layers would never show.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if not norms:
        return
    images = max(4, _PIXELS // (size[0] * size[1]))
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(images, 3, *size))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


# BERT has as many positions.
_LONGEST = 512
# All vocabularies, those of the narrow models too, are at least as large.
_TOKENS = 80

_CV = "bestof.bench.model.pytorchcv"
_HF = "bestof.bench.model.transformers"
_TEXT = "bestof.bench.model.language"

MODELS = (
    Model("vgg16", "pytorchcv", _CV, "vgg16"),
    Model("vgg16-cifar", "pytorchcv", _CV, "vgg16_cifar", size=(32, 32), narrow_size=(32, 32)),
    Model("resnet18", "pytorchcv", _CV, "resnet18"),
    Model("resnet34", "pytorchcv", _CV, "resnet34"),
    Model("resnet50", "pytorchcv", _CV, "resnet50"),
    Model("densenet121", "pytorchcv", _CV, "densenet121"),
    Model("mobilenet_v2", "pytorchcv", _CV, "mobilenet_v2"),
    Model("mobilenet_v3", "pytorchcv", _CV, "mobilenet_v3"),
    Model("efficientnet_b0", "pytorchcv", _CV, "efficientnet_b0"),
    Model("shufflenet_v2", "pytorchcv", _CV, "shufflenet_v2"),
    Model("regnetx_400mf", "pytorchcv", _CV, "regnetx_400mf"),
    Model("resnext50", "pytorchcv", _CV, "resnext50"),
    Model("se_resnet50", "pytorchcv", _CV, "se_resnet50"),
    Model("squeezenet", "pytorchcv", _CV, "squeezenet"),
    Model("unet", "pytorchcv", _CV, "unet", size=(256, 256), dense=True),
    Model("resnet50-hf", "transformers", _HF, "resnet50"),
    Model("mobilenet_v2-hf", "transformers", _HF, "mobilenet_v2"),
    Model("convnext", "transformers", _HF, "convnext"),
    Model("vit", "transformers", _HF, "vit"),
    Model("vit-b", "transformers", _HF, "vit_b"),
    Model("segformer", "transformers", _HF, "segformer", size=(256, 256), dense=True),
    Model("bert-base", "transformers", _TEXT, "bert_base", (1, 128), (1, 16), text=True),
    Model("gpt2", "transformers", _TEXT, "gpt2", (1, 128), (1, 16), text=True),
    Model("llama", "transformers", _TEXT, "llama", (1, 128), (1, 16), text=True),
)


def find_model(name: str) -> Model:
    """Return the row of this name. Raises InvalidArgument."""
    found = next((model for model in MODELS if model.name == name), None)
    if found is None:
        known = ", ".join(model.name for model in MODELS)
        raise InvalidArgument(f"there is no model {name!r}; the models are {known}")
    return found

"""Models of transformers with random weights, for any size of images, at full width or narrow."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    ViTConfig,
    ViTForImageClassification,
)

from bestof.bench.model.models import Size

# The classes of ImageNet. Errors are compared with the root mean square of the logits. That of two
# logits, which is the default, may be near zero: for one image by ViT in bfloat16, no peer passed.
_FULL = {"num_labels": 1000}


class Logits(nn.Module):
    """A model of transformers that returns its logits only."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (N, 3, rows, columns): (N, classes) or (N, classes, rows,
        columns).
        """
        return self.model(pixel_values=images).logits  # type: ignore[no-any-return]


def resnet50(_size: Size, narrow: bool) -> nn.Module:
    """Return ResNet50 with bottleneck blocks."""
    options = {
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 2, 1, 1],
        "num_labels": 10,
    }
    return Logits(ResNetForImageClassification(ResNetConfig(**(options if narrow else _FULL))))


def mobilenet_v2(_size: Size, narrow: bool) -> nn.Module:
    """Return MobileNetV2: depthwise convolutions between 1x1, padded as TensorFlow pads."""
    options = {"depth_multiplier": 0.25, "num_labels": 10}
    return Logits(
        MobileNetV2ForImageClassification(MobileNetV2Config(**(options if narrow else _FULL)))
    )


def convnext(_size: Size, narrow: bool) -> nn.Module:
    """Return ConvNeXt: depthwise 7x7 convolutions, and linear layers over the channels."""
    options = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": 10}
    return Logits(ConvNextForImageClassification(ConvNextConfig(**(options if narrow else _FULL))))


def vit(size: Size, narrow: bool) -> nn.Module:
    """Return a Transformer over patches of 16x16, in its small form (384 wide, 12 layers)."""
    options = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, **_FULL}
    if narrow:
        options = {
            "hidden_size": 48,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
        }
    return Logits(ViTForImageClassification(ViTConfig(image_size=list(size), **options)))


def vit_b(size: Size, narrow: bool) -> nn.Module:
    """Return a Transformer over patches of 16x16, in its base form (768 wide, 12 layers)."""
    if narrow:
        return vit(size, narrow)
    return Logits(ViTForImageClassification(ViTConfig(image_size=list(size), **_FULL)))


def segformer(_size: Size, narrow: bool) -> nn.Module:
    """Return SegFormer b0: a Transformer of four scales with convolutions, a label for every 4x4
    pixels.
    """
    options: dict[str, Any] = {"num_labels": 19}
    if narrow:
        options = {
            "hidden_sizes": [16, 32, 40, 64],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 48,
            "num_labels": 5,
        }
    return Logits(SegformerForSemanticSegmentation(SegformerConfig(**options)))

"""Models of transformers with random weights; each is built for a size of the images, at full width or narrow."""

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


class Logits(nn.Module):
    """A model of transformers that gives its logits alone, as every other model here does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, rows, columns) to (N, classes), or (N, classes, rows, columns)."""
        return self.model(pixel_values=images).logits  # type: ignore[no-any-return]


def resnet50(_size: Size, narrow: bool) -> nn.Module:
    """Bottleneck blocks."""
    options = {
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 2, 1, 1],
        "num_labels": 10,
    }
    return Logits(ResNetForImageClassification(ResNetConfig(**(options if narrow else {}))))


def mobilenet_v2(_size: Size, narrow: bool) -> nn.Module:
    """Depthwise convolutions between 1x1; padded as TensorFlow pads."""
    options = {"depth_multiplier": 0.25, "num_labels": 10}
    return Logits(
        MobileNetV2ForImageClassification(MobileNetV2Config(**(options if narrow else {})))
    )


def convnext(_size: Size, narrow: bool) -> nn.Module:
    """Depthwise 7x7 convolutions, and linear layers over the channels."""
    options = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": 10}
    return Logits(ConvNextForImageClassification(ConvNextConfig(**(options if narrow else {}))))


def vit(size: Size, narrow: bool) -> nn.Module:
    """A Transformer over patches of 16x16; its small form (384 wide, 12 layers)."""
    options = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    if narrow:
        options = {
            "hidden_size": 48,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
        }
    return Logits(ViTForImageClassification(ViTConfig(image_size=list(size), **options)))


def segformer(_size: Size, narrow: bool) -> nn.Module:
    """A Transformer of four scales with convolutions inside, a label for every 4x4 pixels: its form b0."""
    options: dict[str, Any] = {"num_labels": 19}
    if narrow:
        options = {
            "hidden_sizes": [16, 32, 40, 64],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 48,
            "num_labels": 5,
        }
    return Logits(SegformerForSemanticSegmentation(SegformerConfig(**options)))

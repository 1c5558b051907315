"""Models of pytorchcv with random weights, for any size of images, at full width or narrow."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from pytorchcv.models.densenet import DenseNet
from pytorchcv.models.densenet import densenet121 as _densenet121
from pytorchcv.models.efficientnet import EfficientNet
from pytorchcv.models.efficientnet import efficientnet_b0 as _efficientnet_b0
from pytorchcv.models.mobilenetv2 import mobilenetv2_w1, mobilenetv2_wd4
from pytorchcv.models.mobilenetv3 import mobilenetv3_large_w1, mobilenetv3_small_w7d20
from pytorchcv.models.regnet import RegNet, regnetx004
from pytorchcv.models.resnet import ResNet
from pytorchcv.models.resnet import resnet18 as _resnet18
from pytorchcv.models.resnet import resnet34 as _resnet34
from pytorchcv.models.resnet import resnet50 as _resnet50
from pytorchcv.models.resnext import ResNeXt, resnext50_32x4d
from pytorchcv.models.seresnet import SEResNet, seresnet50
from pytorchcv.models.shufflenetv2 import ShuffleNetV2, shufflenetv2_w1
from pytorchcv.models.squeezenet import SqueezeNet, squeezenet_v1_1
from pytorchcv.models.unet import UNet, unet_cityscapes
from pytorchcv.models.vgg import VGG, VGGOutputBlock
from torch import nn

from bestof.bench.model.models import Size

_FULL = (224, 224)
_STAGES = (2, 2, 3, 3, 3)
"""VGG16's convolutions between two poolings."""


def vgg16(size: Size, narrow: bool) -> nn.Module:
    """Return VGG16 with a head that fits the size: 4,096 hidden units, or 64 if narrow."""
    model = _vgg(narrow)
    if size == _FULL and not narrow:
        return _flattened(model)
    inputs = (64 if narrow else 512) * (size[0] // 32) * (size[1] // 32)
    model.output = (
        _head(inputs, 64, 10) if narrow else VGGOutputBlock(in_channels=inputs, classes=1000)
    )
    return _flattened(model)


def vgg16_cifar(size: Size, narrow: bool) -> nn.Module:
    """Return VGG16 with the usual head for images of 32x32: 512 hidden units, ten classes, no
    dropout.
    """
    model = _vgg(narrow)
    model.output = _head(
        (64 if narrow else 512) * (size[0] // 32) * (size[1] // 32), 64 if narrow else 512, 10
    )
    return _flattened(model)


def resnet18(size: Size, narrow: bool) -> nn.Module:
    """Return ResNet18: basic blocks, two a stage."""
    return _pooled(_residual((2, 2, 2, 2), False) if narrow else _resnet18(), size)


def resnet34(size: Size, narrow: bool) -> nn.Module:
    """Return ResNet34: basic blocks; the narrow form has fewer in its later stages."""
    return _pooled(_residual((3, 2, 2, 1), False) if narrow else _resnet34(), size)


def resnet50(size: Size, narrow: bool) -> nn.Module:
    """Return ResNet50: bottleneck blocks; the narrow form has one or two a stage."""
    return _pooled(_residual((2, 2, 1, 1), True) if narrow else _resnet50(), size)


def densenet121(size: Size, narrow: bool) -> nn.Module:
    """Return DenseNet121: every layer reads all before it. The narrow form grows by 8 channels, not
    32.
    """
    if not narrow:
        return _pooled(_densenet121(), size)
    return _pooled(
        DenseNet([[24, 32], [24, 32], [24, 32]], init_block_channels=16, num_classes=10), size
    )


def mobilenet_v2(size: Size, narrow: bool) -> nn.Module:
    """Return MobileNetV2: depthwise convolutions between 1x1. The narrow form has a quarter of the
    width.
    """
    return _pooled(mobilenetv2_wd4(num_classes=10) if narrow else mobilenetv2_w1(), size)


def mobilenet_v3(size: Size, narrow: bool) -> nn.Module:
    """Return MobileNetV3, large: hard swish, and squeeze and excitation. The narrow form is the
    small one of 0.35 of the width.
    """
    return _pooled(
        mobilenetv3_small_w7d20(num_classes=10) if narrow else mobilenetv3_large_w1(), size
    )


def efficientnet_b0(size: Size, narrow: bool) -> nn.Module:
    """Return EfficientNet-B0: SiLU, squeeze and excitation, kernels of 3x3 and 5x5."""
    if not narrow:
        return _pooled(_efficientnet_b0(), size)
    return _pooled(
        EfficientNet(
            [[8], [16, 16], [24]],
            init_block_channels=8,
            final_block_channels=48,
            kernel_sizes=[[3], [3, 3], [5]],
            strides_per_stage=[1, 2, 2],
            expansion_factors=[[1], [6, 6], [6]],
            num_classes=10,
        ),
        size,
    )


def shufflenet_v2(size: Size, narrow: bool) -> nn.Module:
    """Return ShuffleNetV2: half of the channels pass by, the others are shuffled among them."""
    if not narrow:
        return _pooled(shufflenetv2_w1(), size)
    return _pooled(
        ShuffleNetV2(
            [[24] * 2, [32] * 2, [48] * 2],
            init_block_channels=16,
            final_block_channels=64,
            num_classes=10,
        ),
        size,
    )


def regnetx_400mf(size: Size, narrow: bool) -> nn.Module:
    """Return RegNetX of 400 million products: grouped convolutions of 16 channels a group."""
    if not narrow:
        return _pooled(regnetx004(), size)
    channels = [[16], [32, 32], [48]]
    return _pooled(RegNet(channels, 16, [2, 2, 3], use_se=False, num_classes=10), size)


def resnext50(size: Size, narrow: bool) -> nn.Module:
    """Return ResNeXt50 of 32 groups of 4 channels; the narrow form has 4."""
    if not narrow:
        return _pooled(resnext50_32x4d(), size)
    return _pooled(ResNeXt([[64, 64], [96], [128]], 16, 4, 16, num_classes=10), size)


def se_resnet50(size: Size, narrow: bool) -> nn.Module:
    """Return SE-ResNet50: bottleneck blocks with squeeze and excitation."""
    if not narrow:
        return _pooled(seresnet50(), size)
    channels = [[32, 32], [48], [64]]
    made = SEResNet(channels, 16, bottleneck=True, conv1_stride=False, num_classes=10)
    return _pooled(made, size)


def squeezenet(_size: Size, narrow: bool) -> nn.Module:
    """Return SqueezeNet 1.1: 1x1 and 3x3 convolutions whose results are joined."""
    model = (
        SqueezeNet([[16, 16], [32, 32]], None, 3, 16, num_classes=10)
        if narrow
        else squeezenet_v1_1()
    )
    model.output.final_pool = nn.AdaptiveAvgPool2d(1)
    return model  # type: ignore[no-any-return]


def unet(size: Size, narrow: bool) -> nn.Module:
    """Return U-Net: the decoder's maps are joined to the encoder's; 19 classes a pixel, 5 if
    narrow.
    """
    if not narrow:
        return unet_cityscapes(in_size=size)  # type: ignore[no-any-return]
    channels = [[16, 32, 48, 48], [48, 32, 16, 8]]
    narrow_unet: nn.Module = UNet(channels, init_block_channels=8, in_size=size, num_classes=5)
    return narrow_unet


def _vgg(narrow: bool) -> Any:
    widths = (8, 16, 32, 64, 64) if narrow else (64, 128, 256, 512, 512)
    return VGG([[width] * count for width, count in zip(widths, _STAGES, strict=True)])


def _flattened(model: Any) -> nn.Module:
    """Return the same layers under the same names, with a flatten before the head.

    pytorchcv flattens by `view`, which refuses channels last.
    """
    layers = OrderedDict(features=model.features, flatten=nn.Flatten(), output=model.output)
    return nn.Sequential(layers)


def _head(inputs: int, hidden: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _residual(blocks: tuple[int, ...], bottleneck: bool) -> nn.Module:
    widths = (16, 32, 48, 64)
    channels = [[width] * count for width, count in zip(widths, blocks, strict=True)]
    made = ResNet(channels, 16, bottleneck=bottleneck, conv1_stride=False, num_classes=10)
    return made  # type: ignore[no-any-return]


def _pooled(model: Any, size: Size) -> nn.Module:
    """Make the last pooling a mean over the whole map; pytorchcv's is over 7x7, right for 224x224
    only.
    """
    if size != _FULL:
        model.features.final_pool = nn.AdaptiveAvgPool2d(1)
    return model  # type: ignore[no-any-return]

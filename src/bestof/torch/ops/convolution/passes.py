"""The operations of the three passes of 2-D convolutions on the processor."""

from __future__ import annotations

from bestof.torch.backends.device import CPU, Device
from bestof.torch.ops.convolution.conv2d import Conv2d
from bestof.torch.ops.convolution.conv2d_input_gradient import Conv2dInputGradient
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.conv2d_weight_gradient import Conv2dWeightGradient


def passes_on(device: Device) -> tuple[Conv2dPass, Conv2dPass, Conv2dPass]:
    """Return new operations of the forward pass, the input gradient and the weight gradient."""
    return Conv2d(device), Conv2dInputGradient(device), Conv2dWeightGradient(device)


FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = PASSES = passes_on(CPU)

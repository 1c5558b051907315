"""The layers of an enabled process."""

from __future__ import annotations

import pytest

import bestof.torch as integration
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer
from bestof.torch.dispatch.overrides import convolution_override


@pytest.fixture
def layer() -> ConvolutionLayer:
    integration.enable()
    override = convolution_override()
    assert override is not None
    return override.layer

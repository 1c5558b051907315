"""Scripted and traced modules, made and called with bestof enabled, with and without gradients."""

import warnings

import torch
from networks import assert_close, images, network

import bestof.torch as bt

warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch.jit is deprecated by PyTorch
model, image = network(), images()
expected = model(image)
expected.sum().backward()
gradient = model[0].weight.grad.clone()
with bt.enabled():
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, image)
    for module in (scripted, traced, torch.jit.freeze(torch.jit.script(network().eval()))):
        for _ in range(40):
            with torch.no_grad():
                assert_close(module(image), expected)
    for module in (scripted, traced):
        for _ in range(20):
            model.zero_grad()
            module(image).sum().backward()
            assert_close(model[0].weight.grad, gradient)
    with torch.device("meta"):
        for _ in range(20):
            scripted(image)
for _ in range(5):
    assert_close(scripted(image), expected)
print("ok")

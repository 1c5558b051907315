"""Transforms of functions with bestof enabled: vmap, grad, jacrev, and functional_call of a
network."""

import torch
import torch.nn.functional as F
from networks import assert_close, images, network
from torch.func import functional_call, grad, jacrev, vmap

import bestof.torch as bt

model = network()
image = images(4)
weight = torch.randn(6, 3, 3, 3, generator=torch.Generator().manual_seed(1))
weights = torch.stack([weight, 2 * weight])
parameters = dict(model.named_parameters())


def run(values, one):
    """Apply the network to one image."""
    return functional_call(model, values, (one[None],))[0]


def loss(values, one):
    """Reduce the result to a number."""
    return run(values, one).square().sum()


def results():
    """Return what every transform gives."""
    yield vmap(lambda w: F.conv2d(image, w))(weights)
    yield vmap(lambda x: F.conv2d(x[None], weight)[0])(image)
    yield vmap(lambda x: run(parameters, x))(image)
    yield vmap(grad(loss), (None, 0))(parameters, image)["0.weight"]
    yield grad(lambda w: F.conv2d(image, w).square().sum())(weight)
    yield jacrev(lambda x: F.conv2d(x, weight[:1, :, :1, :1]))(image[:1, :, :2, :2])


expected = list(results())
with bt.enabled():
    for _ in range(15):
        for got, want in zip(results(), expected, strict=True):
            assert_close(got, want)
print("ok")

"""Training and inference under autocast to bfloat16, with bestof enabled."""

import torch
from networks import assert_close, images, network

import bestof.torch as bt

model, image = network(), images()


def step():
    """Return the output and the gradient of the first weight."""
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(image)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    return output.detach().float(), model[0].weight.grad.clone()


expected = step()
with bt.enabled():
    for _ in range(60):
        for got, want in zip(step(), expected, strict=True):
            assert got.dtype == want.dtype
            assert_close(got, want, 0.05)  # bfloat16 has 8 bits; sums in another order
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(20):
            assert model(image).dtype == torch.bfloat16
    for _ in range(10):
        model(image)
print("ok")

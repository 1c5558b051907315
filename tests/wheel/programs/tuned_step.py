"""Trains a small model under `enable()` until every pass has its decision."""

import torch
from torch import nn

import bestof.torch as bt

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
)  # fmt: skip
images, classes = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
loss = nn.CrossEntropyLoss()
expected = loss(model(images), classes).item()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
bt.enable()
for step in range(1, 1001):
    optimizer.zero_grad()
    found = loss(model(images), classes)
    found.backward()
    optimizer.step()
    if step == 1:
        # The sums of 144 products of layer 2 err by less than 1e-5 of the loss, which is near 2.3.
        assert abs(found.item() - expected) <= 1e-4, (found.item(), expected)
    passes = bt.summary().passes
    if passes and all(one.chosen for one in passes):
        break
else:
    raise AssertionError(f"not settled after {step} steps: {passes}")
assert found.item() < expected
print(f"step {step} is the first tuned one; {bt.summary().trials} trials")
for one in passes:
    print(f"  {one.name} {one.problem}: {one.chosen}")

"""Programs that ended, or trained on garbage, by oneDNN's kernels for channels last."""

from __future__ import annotations

import sys
import tempfile

import torch
from torch import nn

import bestof.torch as bt
from bestof.torch.ops.memory_format import in_format
from bestof.torch.plan.run import torch_step
from bestof.torch.process.layout.interception import layout_lines, tune_layouts


def strided_points() -> None:
    """Train a 1x1 convolution with strides and few channels, as RepVGG's blocks have."""
    torch.set_num_threads(2)
    convolution = nn.Conv2d(4, 8, 1, stride=2)
    x = torch.randn(16, 4, 32, 32, generator=torch.Generator().manual_seed(0))
    exact = nn.Conv2d(4, 8, 1, stride=2).double()
    exact.load_state_dict(convolution.state_dict())
    exact(x.double()).square().sum().backward()
    bt.enable({"kernel": {"accuracy": "relaxed"}})
    for _ in range(150):
        convolution.zero_grad()
        convolution(x).square().sum().backward()
        assert convolution.weight.grad is not None
        # Where a kernel rounds the weights to 8 bits, all terms of a gradient move alike. So its
        # error is relative to the largest gradients, by 2^-9.
        off = convolution.weight.grad.double() - exact.weight.grad
        assert off.norm() <= 1e-2 * exact.weight.grad.norm(), off


def thin_images() -> None:
    """Run and train a convolution, some of whose results read padding alone."""
    convolution = nn.Conv2d(8, 8, (3, 1), stride=2, padding=1, dilation=2)
    x = torch.randn(2, 8, 14, 1, generator=torch.Generator().manual_seed(0))
    expected = convolution(x).detach()
    with torch.no_grad():
        plan = bt.optimize(convolution.eval(), (x,))
        torch.testing.assert_close(plan(x), expected)
    bt.enable()
    for _ in range(150):
        y = convolution(x)
        y.sum().backward()
        torch.testing.assert_close(y, expected)


def thin_behind_others() -> None:
    """Run convolutions that a plan leaves to PyTorch, behind one that it computes."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(8, 8, 1)
            self.weight = nn.Parameter(torch.randn(8, 8, 3, 1))
            self.up = nn.ConvTranspose2d(8, 5, (3, 1), stride=(2, 3), padding=(1, 0), dilation=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            y = nn.functional.conv2d(x, self.weight * x.mean(), None, 2, 1, 2)
            return self.up(y)

    read: list[tuple[int, ...]] = []

    def watched(input: torch.Tensor, channels_last: bool) -> torch.Tensor:
        found = in_format(input, channels_last)
        read.append(found.stride())
        return found

    torch_step.in_format = watched
    net, x = Net().eval(), torch.randn(2, 8, 14, 1)
    with torch.no_grad():
        plan = bt.optimize(net, (x,))
        for _ in range(20):
            torch.testing.assert_close(plan(x), net(x), rtol=1e-4, atol=1e-4)
        assert set(read) == {(112, 14, 1, 1), (96, 12, 2, 1)}, read
        read.clear()
        with tempfile.TemporaryDirectory() as folder:
            plan.save(f"{folder}/plan")
            loaded = bt.load(f"{folder}/plan")
        torch.testing.assert_close(loaded(x), net(x), rtol=1e-4, atol=1e-4)
        assert set(read) == {(112, 14, 1, 1), (96, 12, 2, 1)}, read


def layouts() -> None:
    """Tune the layout of a model whose convolution must not run in channels last."""
    net = nn.Sequential(nn.Conv2d(8, 8, (3, 1), stride=2, padding=1, dilation=2), nn.ReLU())
    tune_layouts(True, fixed=True)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        net(torch.randn(2, 8, 14, 1)).sum().backward()
        optimizer.step()
    assert net[0].weight.is_contiguous()
    assert "oneDNN is not known" in layout_lines()[0], layout_lines()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("well")

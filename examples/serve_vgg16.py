"""Serve VGG16 for 224x224 images: the model beside its plan, and where the plan's time goes.

python examples/serve_vgg16.py
python examples/serve_vgg16.py --batch 8 --accuracy relaxed
"""

import argparse
import time
from statistics import median

import torch
from torch import nn
from train_vgg16 import FILTERS

import bestof.torch as bt


def vgg16(classes):
    """The network of the paper, with random weights."""
    layers, channels = [], 3
    for filters in FILTERS:
        if filters == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(inplace=True)]
            channels = filters
    sizes = [(512 * 7 * 7, 4096), (4096, 4096), (4096, classes)]
    dense = [
        layer for ins, outs in sizes for layer in (nn.Linear(ins, outs), nn.ReLU(inplace=True))
    ]
    return nn.Sequential(*layers, nn.Flatten(), *dense[:-1])


def milliseconds(run, images):
    """One call."""
    start = time.perf_counter()
    run(images)
    return 1000 * (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--accuracy", choices=("exact", "float32", "relaxed"), default="float32")
    parser.add_argument("--calls", type=int, default=10)
    options = parser.parse_args()

    model = vgg16(1000).eval()
    images = torch.randn(options.batch, 3, 224, 224)
    start = time.perf_counter()
    plan = bt.optimize(model, images, accuracy=options.accuracy)
    print(f"planned and tuned in {time.perf_counter() - start:.1f} s")

    with torch.no_grad():
        # In turn, so that a machine that slows down slows both.
        pairs = [
            (milliseconds(model, images), milliseconds(plan, images)) for _ in range(options.calls)
        ]
        difference = (model(images) - plan(images)).abs().max()
    before, after = (median(times) for times in zip(*pairs, strict=True))
    print(
        f"model {before:.1f} ms, plan {after:.1f} ms: {before / after:.2f} times; "
        f"largest difference {difference:.1e}"
    )
    print(plan.explain(images))


if __name__ == "__main__":
    main()

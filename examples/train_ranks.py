"""Train one of four networks on one or several ranks. It does not use bestof.

    python examples/train_ranks.py --model mlp
    torchrun --standalone --nproc-per-node 2 examples/train_ranks.py --model vgg16
    torchrun --standalone --nproc-per-node 2 -m bestof run examples/train_ranks.py --model vgg16
    bestof scale --batch 64 examples/train_ranks.py --steps 100000 --batch {batch}

Several ranks use DistributedDataParallel over Gloo. Each rank draws the same samples of the global
batch, and takes its own part of them. So any number of ranks trains on the same samples. The images
are scikit-learn's handwritten digits, enlarged. The Transformer reverses lists of numbers.
"""

import argparse
import gc
import os
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from train_transformer import Reverser

MODELS = ("mlp", "vgg16", "resnet34", "transformer")
LENGTH, NUMBERS = 12, 16  # of the lists


def mlp(width):
    layers, inputs = [nn.Flatten()], 3 * 32 * 32
    for outputs in (8 * width, 8 * width, 4 * width):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def vgg16(width):
    layers, channels = [], 3
    for filters, convolutions in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(convolutions):
            convolution = nn.Conv2d(channels, filters * width, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, nn.ReLU()]
            channels = filters * width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, 1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, 1, 1, bias=False),
            nn.BatchNorm2d(filters),
        )
        nn.init.zeros_(self.body[4].weight)  # at first, a block adds nothing
        self.around = nn.Identity()
        if stride > 1 or channels != filters:
            self.around = nn.Sequential(
                nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters)
            )

    def forward(self, images):
        return torch.relu(self.body(images) + self.around(images))


def resnet34(width):
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            filters, stride = width << stage, 2 if stage and not block else 1
            layers.append(Block(channels, filters, stride))
            channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def build(name, width):
    """Return a model whose layers grow with `width`."""
    if name == "transformer":
        return Reverser(NUMBERS, LENGTH, 2 * width, heads=2, layers=2)
    return {"mlp": mlp, "vgg16": vgg16, "resnet34": resnet34}[name](width)


def samples(name):
    """Return a function of (generator, count) that draws inputs and labels."""
    if name == "transformer":

        def lists(generator, count):
            drawn = torch.randint(NUMBERS, (count, LENGTH), generator=generator)
            return drawn, drawn.flip(1)

        return lists
    digits = load_digits()
    enlarged = np.kron(digits.images, np.ones((4, 4))).astype(np.float32) / 8 - 1
    images = torch.from_numpy(enlarged)[:, None].expand(-1, 3, -1, -1)
    labels = torch.from_numpy(digits.target)

    def scans(generator, count):
        chosen = torch.randint(len(labels), (count,), generator=generator)
        return images[chosen], labels[chosen]

    return scans


def train(name, width, batch, steps, rate, seed=0):
    """Train for some steps of `batch` samples a rank. Return the losses of all ranks' samples."""
    ranks, rank = 1, 0
    if distributed.is_initialized():
        ranks, rank = distributed.get_world_size(), distributed.get_rank()
    torch.manual_seed(seed)
    model = build(name, width)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    draw, generator = samples(name), torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        inputs, labels = (part[rank::ranks] for part in draw(generator, batch * ranks))
        optimizer.zero_grad()
        scores = model(inputs)
        loss = nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        whole = loss.detach() / ranks
        if ranks > 1:
            distributed.all_reduce(whole)
        losses.append(whole.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description="Train a network on one or several ranks.")
    parser.add_argument("--model", choices=MODELS, default="vgg16")
    parser.add_argument("--width", type=int, default=64, help="8 for a quick look")
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank's step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    parser.add_argument("--losses", help="write the loss of every step to this file, one a line")
    args = parser.parse_args()

    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    losses = train(args.model, args.width, args.batch, args.steps, args.rate)
    if os.environ.get("RANK", "0") == "0":
        print(f"{args.model}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
        if args.losses:
            Path(args.losses).write_text("".join(f"{loss:.9g}\n" for loss in losses))
    if distributed.is_initialized():
        gc.collect()  # PyTorch 2.13 may abort if it frees the model after the group
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Train a detector like RetinaNet, as it is usually written, or with some of the changes that a
profile of it leads to (docs/case_study.md).

    python examples/train_detector.py                       as it is usually written
    python examples/train_detector.py --change all
    bestof profile examples/train_detector.py --steps 3     where its time goes

The backbone is a ResNeXt50 whose norms, first convolution and first stage are frozen. The images
are photographs of scikit-learn and scikit-image. Pieces of other photographs are pasted into them.
The detector learns their boxes, and which photograph they are from. It needs pytorchcv,
scikit-learn and scikit-image.
"""

import argparse
import math
import random

import torch
from pytorchcv.models.resnext import ResNeXt
from skimage import data
from sklearn.datasets import load_sample_images
from torch import nn
from torch.nn import functional

import bestof.torch as bt

CHANGES = (
    "frozen gradients",
    "frozen norm",
    "focal loss",
    "optimizer",
    "bfloat16",
    "channels last",
    "enable",
)
CLASSES = 90
ANCHORS = [
    (2 ** (octave / 3) * math.sqrt(ratio), 2 ** (octave / 3) / math.sqrt(ratio))
    for octave in range(3)
    for ratio in (0.5, 1.0, 2.0)
]


class UsualNorm(nn.Module):
    """A frozen batch norm of separate operations, as detectors usually have it."""

    def __init__(self, norm):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach().clone())
        self.eps = norm.eps

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


class OnePassNorm(UsualNorm):
    """The same in one pass, in the memory of the convolution's result, with the ReLU after it."""

    relu = False

    def forward(self, x):
        return bt.frozen_batch_norm(
            *(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps),
            relu=self.relu,
            inplace=True,
        )


def freeze_norms(module, kind):
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            norm = kind(child)
            setattr(module, name, norm)
            if kind is OnePassNorm and isinstance(getattr(module, "activ", None), nn.ReLU):
                norm.relu, module.activ = True, nn.Identity()
        else:
            freeze_norms(child, kind)


class UsualLoss(nn.Module):
    """The focal loss as torchvision has it, summed."""

    def forward(self, x, targets):
        p = torch.sigmoid(x)
        ce = functional.binary_cross_entropy_with_logits(x, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        return ((0.25 * targets + 0.75 * (1 - targets)) * ce * (1 - p_t) ** 2).sum()


class OnePassLoss(nn.Module):
    def forward(self, x, targets):
        return bt.sigmoid_focal_loss(x, targets, reduction="sum")


def tower(width, results, bias=0.0):
    layers = []
    for _ in range(4):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)]
    last = nn.Conv2d(width, results, 3, padding=1)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.constant_(last.bias, bias)
    return nn.Sequential(*layers, last)


class Detector(nn.Module):
    """Backbone, feature pyramid, and one tower each for classes and boxes."""

    def __init__(self, channels, first, cardinality, bottleneck, width, norm):
        super().__init__()
        features = ResNeXt(channels, first, cardinality, bottleneck).features
        freeze_norms(features, norm)
        self.frozen = nn.Sequential(features.init_block, features.stage1)
        self.stages = nn.ModuleList([features.stage2, features.stage3, features.stage4])
        ends = [stage[-1] for stage in channels[1:]]
        self.lateral = nn.ModuleList(nn.Conv2d(end, width, 1) for end in ends)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in ends)
        self.coarse = nn.ModuleList(
            nn.Conv2d(begin, width, 3, stride=2, padding=1) for begin in (ends[-1], width)
        )
        self.classes = tower(width, len(ANCHORS) * CLASSES, bias=-math.log(99))
        self.boxes = tower(width, len(ANCHORS) * 4)

    def forward(self, images):
        x, maps = self.frozen(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [lateral(one) for lateral, one in zip(self.lateral, maps, strict=True)]
        for fine in (1, 0):
            size = levels[fine].shape[-2:]
            levels[fine] = levels[fine] + functional.interpolate(levels[fine + 1], size=size)
        levels = [smooth(one) for smooth, one in zip(self.smooth, levels, strict=True)]
        levels.append(self.coarse[0](maps[-1]))
        levels.append(self.coarse[1](functional.relu(levels[-1])))
        return tuple(
            torch.cat([flat(tower(one), numbers) for one in levels], dim=1)
            for tower, numbers in ((self.classes, CLASSES), (self.boxes, 4))
        )


def flat(results, numbers):
    """[N, A * numbers, H, W] as [N, H * W * A, numbers]."""
    n, _, h, w = results.shape
    return results.permute(0, 2, 3, 1).reshape(n, h * w * len(ANCHORS), numbers)


def anchors_of(size):
    """Centres and sides of all anchors, [A, 4], for square images."""
    found = []
    for level in range(3, 8):
        stride, cells = 2**level, -(-size // 2**level)
        for y in range(cells):
            for x in range(cells):
                centre = [(x + 0.5) * stride, (y + 0.5) * stride]
                found += [[*centre, 4 * stride * w, 4 * stride * h] for w, h in ANCHORS]
    return torch.tensor(found)


def overlaps(one, other):
    """Intersection over union of boxes of centres and sides, [len(one), len(other)]."""
    low, high = ([b[:, :2] + sign * b[:, 2:] / 2 for b in (one, other)] for sign in (-1, 1))
    sides = torch.minimum(high[0][:, None], high[1]) - torch.maximum(low[0][:, None], low[1])
    common = sides.clamp(min=0).prod(2)
    return common / (one[:, 2:].prod(1)[:, None] + other[:, 2:].prod(1) - common)


def targets_of(anchors, boxes, labels):
    """The class targets of all anchors, which of them have a box, and the offsets of these."""
    shared = overlaps(anchors, boxes)
    best, index = shared.max(1)
    best[shared.argmax(0)] = 1.0  # every box has an anchor
    index[shared.argmax(0)] = torch.arange(len(boxes))
    positive = best >= 0.5
    classes = torch.zeros(len(anchors), CLASSES)
    classes[positive, labels[index[positive]]] = 1.0
    box, anchor = boxes[index[positive]], anchors[positive]
    offsets = [(box[:, :2] - anchor[:, :2]) / anchor[:, 2:], (box[:, 2:] / anchor[:, 2:]).log()]
    return classes, positive, torch.cat(offsets, 1)


def photographs():
    arrays = [*load_sample_images().images, data.astronaut(), data.coffee(), data.chelsea()]
    return [torch.from_numpy(one.copy()).permute(2, 0, 1).float() / 255 for one in arrays]


def scene(pictures, size, chance):
    """An image with pieces of other photographs in it, their boxes, and their classes."""
    resized = [functional.interpolate(one[None], size=(size, size))[0] for one in pictures]
    image, boxes, labels = chance.choice(resized).clone(), [], []
    for _ in range(chance.randint(1, 5)):
        label = chance.randrange(len(pictures))
        w, h = (chance.randint(size // 8, size // 2) for _ in range(2))
        x, y = chance.randint(0, size - w), chance.randint(0, size - h)
        image[:, y : y + h, x : x + w] = functional.interpolate(resized[label][None], size=(h, w))
        boxes.append([x + w / 2, y + h / 2, w, h])
        labels.append(label)
    return image, torch.tensor(boxes), torch.tensor(labels)


class Training:
    """A detector with its data. Each call is one step, and returns the loss."""

    def __init__(self, changes=(), small=False, size=256, batch=2):
        torch.manual_seed(1)
        self.changes, chance = frozenset(changes), random.Random(1)
        norm = OnePassNorm if "frozen norm" in self.changes else UsualNorm
        if small:
            self.model = Detector([[32], [64], [128], [256]], 8, 4, 16, 16, norm)
        else:
            stages = [[256] * 3, [512] * 4, [1024] * 6, [2048] * 3]
            self.model = Detector(stages, 64, 32, 4, 256, norm)
        trained = [p for name, p in self.model.named_parameters() if not name.startswith("frozen.")]
        if "frozen gradients" in self.changes:
            self.model.frozen.requires_grad_(False)
        self.loss = OnePassLoss() if "focal loss" in self.changes else UsualLoss()
        fused = "optimizer" in self.changes
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=fused)
        self.format = torch.contiguous_format
        if "channels last" in self.changes:
            self.format = torch.channels_last
            self.model.to(memory_format=self.format)
        anchors, pictures = anchors_of(size), photographs()
        self.batches = []
        for _ in range(4):
            scenes = [scene(pictures, size, chance) for _ in range(batch)]
            images = torch.stack([one[0] for one in scenes]).contiguous(memory_format=self.format)
            targets = zip(*(targets_of(anchors, *one[1:]) for one in scenes), strict=True)
            classes, positive, offsets = targets
            self.batches.append(
                (images, torch.stack(classes), torch.stack(positive), torch.cat(offsets))
            )
        self.steps = 0
        if "enable" in self.changes:
            bt.enable()  # the whole process

    def __call__(self):
        images, classes, positive, offsets = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        half = "bfloat16" in self.changes
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits, boxes = self.model(images)
        # The loss stays in float32.
        loss = self.loss(logits.float(), classes)
        loss = loss + functional.smooth_l1_loss(boxes.float()[positive], offsets, reduction="sum")
        (loss / positive.sum()).backward()
        self.optimizer.step()
        return loss.item() / positive.sum().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--change", nargs="+", default=[], choices=["all", *CHANGES])
    parser.add_argument("--small", action="store_true", help="a small network of this structure")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    changes = CHANGES if "all" in options.change else options.change
    step = Training(changes, options.small, options.size, options.batch)
    for number in range(options.steps):
        print(f"step {number + 1}: loss {step():.3f}")


if __name__ == "__main__":
    main()

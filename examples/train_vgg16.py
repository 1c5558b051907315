"""Train VGG16 on 32x32 images: an ordinary PyTorch program that does not use bestof.

    python examples/train_vgg16.py              without bestof
    bestof run examples/train_vgg16.py          the same, with tuning on
    bestof run examples/train_vgg16.py --data cifar-10-batches-py

The images are CIFAR-10 if --data names the folder of its Python batches. Else they are
scikit-learn's handwritten digits: 1,797 real scans of 8x8 points, enlarged four times.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

FILTERS = (
    64,
    64,
    "pool",
    128,
    128,
    "pool",
    256,
    256,
    256,
    "pool",
    512,
    512,
    512,
    "pool",
    512,
    512,
    512,
    "pool",
)


def vgg16(classes):
    layers, channels = [], 3
    for filters in FILTERS:
        if filters == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            convolution = nn.Conv2d(channels, filters, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)
            layers += [convolution, nn.ReLU(inplace=True)]
            channels = filters
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, classes),
    )


class BatchUnpickler(pickle.Unpickler):
    """Reads the arrays and plain values of a CIFAR-10 batch; runs no other code from a file."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"a CIFAR-10 batch does not contain {module}.{name}")
        return super().find_class(module, name)


def read_cifar10(folder):
    """Return images (N, 3, 32, 32) of uint8 and labels (N,) of the five training batches."""
    files = sorted(Path(folder).glob("data_batch_*"))
    if not files:
        raise SystemExit(
            f"{folder}: no file data_batch_1 ... data_batch_5 of CIFAR-10's Python version is there"
        )
    images, labels = [], []
    for file in files:
        with file.open("rb") as stream:
            batch = BatchUnpickler(stream, encoding="bytes").load()
        images.append(np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32))
        labels.append(np.asarray(batch[b"labels"], np.int64))
    return np.concatenate(images), np.concatenate(labels)


def read_digits():
    """Return the same of scikit-learn's digits: 8x8 grey of 0 to 16, enlarged, on three
    channels."""
    digits = load_digits()
    images = np.kron(digits.images, np.ones((4, 4))) * (255 / 16)
    return np.repeat(images.astype(np.uint8)[:, None], 3, axis=1), digits.target.astype(np.int64)


def numbers(images):
    """Return images of uint8 as a tensor of numbers from -1 to 1."""
    return torch.from_numpy(images).float().div_(127.5).sub_(1.0)


def main():
    parser = argparse.ArgumentParser(description="Train VGG16 on 32x32 images.")
    parser.add_argument(
        "--data", help="folder of CIFAR-10's Python batches (default: scikit-learn's digits)"
    )
    parser.add_argument(
        "--steps", type=int, default=240, help="training steps (default: %(default)s)"
    )
    parser.add_argument(
        "--batch", type=int, default=64, help="images a step (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=0.0002, help="learning rate (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--losses", help="write the loss of every step to this file, a number a line"
    )
    args = parser.parse_args()

    images, labels = read_cifar10(args.data) if args.data else read_digits()
    order = np.random.default_rng(0).permutation(len(images))
    held, trained = order[: len(order) // 8][:1000], order[len(order) // 8 :]
    print(f"{len(trained)} images to train on, batches of {args.batch}")
    torch.manual_seed(args.seed)
    model = vgg16(classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate)
    rng = np.random.default_rng(args.seed)

    losses = []
    progress = tqdm(range(args.steps), unit="step")
    for _ in progress:
        chosen = rng.choice(trained, args.batch)
        x, y = numbers(images[chosen]), torch.from_numpy(labels[chosen])
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        progress.set_postfix(loss=f"{losses[-1]:.3f}")
    last = losses[-10:]
    print(
        f"loss: {losses[0]:.3f} at first, "
        f"{sum(last) / len(last):.3f} over the last {len(last)} steps"
    )
    with torch.no_grad():
        parts = [model(numbers(images[part])).argmax(1) for part in np.array_split(held, 8)]
    right = (torch.cat(parts).numpy() == labels[held]).mean()
    print(f"{right:.0%} of {len(held)} other images are told right")
    if args.losses:
        Path(args.losses).write_text("".join(f"{loss:.9g}\n" for loss in losses))


if __name__ == "__main__":
    main()

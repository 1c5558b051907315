"""Train a network on handwritten digits until it reaches an accuracy. It does not use bestof.

    python examples/digits_to_accuracy.py                 without bestof
    bestof run examples/digits_to_accuracy.py             with chosen kernels
    bestof tune --recipe digits.json examples/digits_to_accuracy.py
    bestof run --recipe digits.json examples/digits_to_accuracy.py

It prints the steps and the seconds that it took. Tuning changes the seconds; the steps stay nearly
the same, since results differ in the last bits only. The images are scikit-learn's: 1,797 real
scans of 8x8 points. Every fifth one is for the test.
"""

import argparse
from time import perf_counter

import torch
from sklearn.datasets import load_digits
from torch import nn


def digits(scale):
    """Return images (N, 1, 8 * scale, 8 * scale) from -1 to 1, and labels (N,)."""
    data = load_digits()
    images = torch.from_numpy(data.images).float().div_(8).sub_(1)[:, None]
    images = images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    return images, torch.from_numpy(data.target).long()


def network(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(description="Train on digits until an accuracy is reached.")
    parser.add_argument("--accuracy", type=float, default=0.97)
    parser.add_argument("--most-steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=20, help="steps between two tests")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=32, help="filters of the first layers")
    parser.add_argument("--scale", type=int, default=2, help="enlarge the images so many times")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    images, labels = digits(args.scale)
    test = torch.arange(len(images)) % 5 == 0
    model = network(args.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    train_images, train_labels = images[~test], labels[~test]

    began, reached, step = perf_counter(), 0.0, 0
    while reached < args.accuracy and step < args.most_steps:
        chosen = torch.randint(len(train_images), (args.batch,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train_images[chosen]), train_labels[chosen])
        loss.backward()
        optimizer.step()
        step += 1
        if step % args.every == 0:
            reached = accuracy(model, images[test], labels[test])
    seconds = perf_counter() - began
    print(f"accuracy {reached:.3f} after {step} steps in {seconds:.1f} s")


if __name__ == "__main__":
    main()

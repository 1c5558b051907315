"""Train a small Transformer to reverse lists of numbers. It does not use bestof.

    python examples/train_transformer.py               without bestof
    bestof run examples/train_transformer.py           with chosen matrix products
    bestof tune --recipe transformer.json examples/train_transformer.py
    bestof run --recipe transformer.json examples/train_transformer.py

Each example is a list of random numbers. The network returns the list backwards, which it cannot do
without attention.
"""

import argparse

import torch
from torch import nn


class Reverser(nn.Module):
    """An encoder with learned positions: tokens (B, T) to scores (B, T, numbers)."""

    def __init__(self, numbers, length, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(numbers, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, numbers)

    def forward(self, lists):
        return self.scores(self.encoder(self.tokens(lists) + self.positions))


def main():
    parser = argparse.ArgumentParser(description="Train a Transformer to reverse lists.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=24, help="numbers of a list")
    parser.add_argument("--numbers", type=int, default=16, help="how many different numbers")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Reverser(args.numbers, args.length, args.width, args.heads, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    losses = []
    for _ in range(args.steps):
        lists = torch.randint(args.numbers, (args.batch, args.length))
        optimizer.zero_grad()
        scores = model(lists)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), lists.flip(1).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    right = (scores.argmax(2) == lists.flip(1)).float().mean().item()
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last; {right:.1%} right")


if __name__ == "__main__":
    main()

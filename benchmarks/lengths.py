"""Texts of random lengths: a plan of few lengths beside eager calls, and beside padding by hand.

    python benchmarks/lengths.py --threads 2

The encoder has the layers of BERT (`--width 768 --layers 12` for BERT-base). Lengths from 1 to 512
are drawn at random. For each text, three contestants run in turn: the model in eager mode, without
padding; a plan of `bt.Lengths(512)`; and a plan for multiples of 64, with texts padded by hand. The
reaches: 1.5 over eager calls, and never slower than padding by hand.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

import bestof.torch as bt
from bestof.profile.recording.recorder import processor_name

MOST, STEP = 512, 64


class Encoder(nn.Module):
    """The layers of BERT, with a mask of the tokens that count."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.layers(self.table(ids), src_key_padding_mask=mask == 0)
        return states


def text(length: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(1, 1000, (1, length), generator=torch.Generator().manual_seed(length))
    return ids, torch.ones_like(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--texts", type=int, default=150)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = Encoder(options.width, options.layers).eval()
    began = perf_counter()
    plan = bt.optimize(model, text(100), lengths=bt.Lengths(MOST, {0: 0, 1: 0})).prepare()
    planned = perf_counter() - began
    other = bt.optimize(model, text(STEP))
    other.prepare([text(length) for length in range(STEP, MOST + 1, STEP)])

    def by_hand(ids: Tensor, mask: Tensor) -> Tensor:
        more = -ids.shape[1] % STEP
        padded = (functional.pad(one, [0, more]) for one in (ids, mask))
        return other(*padded)[:, : ids.shape[1]]  # type: ignore[no-any-return]

    contestants: dict[str, Callable[..., Tensor]] = {
        "eager": model,
        "plan of lengths": plan,
        "padded by hand": by_hand,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    draw = random.Random(0)
    with torch.no_grad():
        for count in range(options.texts + 5):
            given = text(draw.randint(1, MOST))
            for name, run in contestants.items():
                start = perf_counter()
                run(*given)
                if count >= 5:  # the first texts warm everything up
                    times[name].append(perf_counter() - start)
    print(
        f"{processor_name()}; {options.threads} threads; {options.layers} layers of {options.width}"
    )
    print(f"{len(plan.padding.lengths.planned)} lengths were planned in {planned:.0f} s")  # type: ignore[union-attr]
    ours = times["plan of lengths"]
    for name, taken in times.items():
        ratios = sorted(one / mine for one, mine in zip(taken, ours, strict=True))
        spread = f"{ratios[len(ratios) // 10]:.2f} to {ratios[-len(ratios) // 10]:.2f}"
        print(
            f"{name:<16} {median(taken) * 1e3:7.2f} ms; all texts over ours "
            f"{sum(taken) / sum(ours):.2f}, a text {median(ratios):.2f} ({spread})"
        )


if __name__ == "__main__":
    main()

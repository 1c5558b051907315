"""Does `bt.tune_dataloader` find a setting as fast as the best fixed one, and how long does it
take?

    python benchmarks/data_loading.py [rounds]

A training that is bound by data decodes JPEG photographs; one that is not has its samples in
memory. Every fixed setting runs in turn, in as many rounds as given (3), and its fastest round
counts. Then the found setting runs beside the best fixed one, in turn too, and the ratio is
printed. For the loader that is no bottleneck, the first epoch while it is tuned runs in turn with
one of an untuned loader: the ratio tells what the search costs. Needs Pillow and scikit-learn.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import bestof.torch as bt
from bestof.processors import processors_of_a_rank
from bestof.torch.process.data_loading.interception import tunings
from bestof.torch.process.data_loading.setting import Setting

BATCH = 16
BATCHES = 20  # of an epoch


class Photographs(Dataset[Any]):
    """JPEG files in memory, decoded at each access."""

    def __init__(self, count: int, width: int = 160) -> None:
        self.count = count
        self.files = []
        for image in load_sample_images().images:
            file = io.BytesIO()
            Image.fromarray(image).resize((width, width)).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        return torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1) / 255.0


def training(width: int = 16) -> Callable[[Any], None]:
    """Return a step: forward, backward and optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 5, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(width, width, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(batch: Any) -> None:
        images = batch[0] if isinstance(batch, list) else batch
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()

    return step


def rate(dataset: Dataset[Any], setting: Setting, step: Callable[[Any], None]) -> float:
    """Return the samples a second of one epoch, the start of the workers included."""
    before = torch.get_num_threads()
    torch.set_num_threads(setting.threads)
    loader = DataLoader(
        dataset, BATCH, num_workers=setting.workers, prefetch_factor=setting.prefetch
    )
    began = perf_counter()
    for batch in loader:
        step(batch)
    seconds = perf_counter() - began
    torch.set_num_threads(before)
    return BATCH * BATCHES / seconds


def fixed_settings() -> list[Setting]:
    most = processors_of_a_rank()
    counts = sorted({0, 1, 2, most // 2, most})
    threads = sorted({1, max(1, most // 2), most})
    return [Setting(w, 2 if w else None, t) for w in counts for t in threads if w <= most]


def compare(name: str, dataset: Dataset[Any], rounds: int) -> None:
    step = training()
    step(next(iter(DataLoader(dataset, BATCH))))
    rates: dict[Setting, float] = {}
    for _ in range(rounds):
        for setting in fixed_settings():
            rates[setting] = max(rates.get(setting, 0.0), rate(dataset, setting, step))
    loader = DataLoader(dataset, BATCH)
    began = perf_counter()
    bt.tune_dataloader(loader, step)
    took = perf_counter() - began
    found = tunings()[-1]
    assert found.chosen is not None
    best = max(rates, key=rates.__getitem__)
    pairs = [(rate(dataset, found.chosen, step), rate(dataset, best, step)) for _ in range(rounds)]
    ratio = max(mine for mine, _ in pairs) / max(other for _, other in pairs)
    print(f"\n{name}")
    for setting, samples in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"  {setting!s:<36} {samples:8.0f} samples/s")
    print(f"  found: {found.chosen}, in {took:.1f} s and {len(found.trials)} trials")
    print(f"  found / best fixed: {ratio:.3f}; found / the default: ", end="")
    print(f"{max(mine for mine, _ in pairs) / rates[found.own]:.3f}")
    print("  " + "\n  ".join(found.report().lines()))


def cost(dataset: Dataset[Any], rounds: int) -> None:
    """Print the time of a tuned loader's first epoch over that of an untuned one, in turn."""
    step = training(64)  # with 32, an Intel Xeon with AMX waits for 5 % of the time
    examples: Any = dataset  # PyTorch's type of it wants a length
    sampler = RandomSampler(examples, replacement=True, num_samples=5 * BATCH * BATCHES)
    ratios = []
    for number in range(rounds + 1):
        times = {}
        for tuned in (number % 2 == 0, number % 2 == 1):
            loader = DataLoader(dataset, BATCH, sampler=sampler)
            if tuned:
                bt.tune_dataloader(loader)
            began = perf_counter()
            for batch in loader:
                step(batch)
            times[tuned] = perf_counter() - began
            if tuned:
                report = tunings()[-1].report().lines()[0]
        if number:  # the first round warms up
            ratios.append(times[True] / times[False])
    told = f"{median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f}, {rounds} rounds)"
    print(f"  an epoch of {times[False]:.1f} s with the search / without: {told}")
    print(f"  {report}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(processors_of_a_rank())
    compare("bound by data", Photographs(BATCH * BATCHES), rounds)
    images = torch.rand(BATCH * BATCHES, 3, 96, 96)
    print("\nno bottleneck")
    cost(TensorDataset(images), rounds)


if __name__ == "__main__":
    main()

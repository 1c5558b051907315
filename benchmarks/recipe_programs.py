"""Train one network until it is ended: the programs that `recipes.py` tunes. They do not use
bestof's choices.

    python benchmarks/recipe_programs.py resnet34 --batch 4 --steps 10

The images are random, of 224x224, and the same in each step. `photographs` trains a small network
on JPEG files that its `DataLoader` decodes without workers, so it waits for data. Needs pytorchcv,
or Pillow and scikit-learn.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import count, repeat

from data_loading import BATCH, Photographs, training
from torch.utils.data import DataLoader

from bestof.bench.model.models import find_model
from bestof.bench.model.step import training_step

NETWORKS = ("vgg16", "resnet34", "mobilenet_v2")
EPOCH = 200  # batches of photographs


def losses(program: str, batch: int) -> Iterator[object]:
    """Yield after each step of the training."""
    if program == "photographs":
        step = training()
        loader = DataLoader(Photographs(BATCH * EPOCH), BATCH)
        for _ in count():
            yield from map(step, loader)
    model = find_model(program)
    network = model.build()
    images = model.inputs(batch)
    run = training_step(network, images).on(network, images)
    yield from (run() for _ in repeat(None))


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program", choices=(*NETWORKS, "photographs"))
    parser.add_argument("--batch", type=int, default=4, help="images of a step of a network")
    parser.add_argument("--steps", type=int, default=1000000)
    options = parser.parse_args()
    for _, _ in zip(range(options.steps), losses(options.program, options.batch), strict=False):
        pass


if __name__ == "__main__":
    main()

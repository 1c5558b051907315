"""Does training come to the same while bestof chooses? Losses of transformers, step by step.

Each model is trained twice from the same weights, on the same batches: by PyTorch alone, and while
bestof chooses. The table shows the losses of the first and the last step by PyTorch, and the
largest distance of two losses of the same step. The exit status is 1 if that exceeds the limit.

    python benchmarks/losses.py                          small forms, in a minute or two
    python benchmarks/losses.py bert-base --full         models of their own size
"""

from __future__ import annotations

import argparse
import sys

import torch

from bestof.bench.model.losses import Training, compare_losses
from bestof.bench.model.models import find_model
from bestof.profile.recording.recorder import processor_name

MODELS = ("bert-base", "vit-b", "gpt2", "llama")
LIMIT = 1e-3
# Of SGD, by whether models have their own size. At 1e-2, BERT-base of its own size has losses of
# 50. There, one weight that is the next float32 number moves a loss by 0.1 after 40 steps.
RATES = {False: 1e-2, True: 1e-4}
# Images and texts that are large enough for bestof to choose, at the width of the small forms.
NARROW_SIZES = {True: (1, 128), False: (128, 128)}


def main() -> int:
    """Train and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--full", action="store_true", help="models of their own size")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, help="default: 32, or 4 with --full")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batch = options.batch or (4 if options.full else 32)
    print(f"{processor_name()}, {options.threads} threads")
    print(f"{options.steps} steps of {batch} examples; limit {LIMIT}", flush=True)
    failed = False
    for model in map(find_model, options.models):
        size = None if options.full else NARROW_SIZES[model.text]
        training = Training(
            batch, options.steps, size, narrow=not options.full, rate=RATES[options.full]
        )
        losses = compare_losses(model, training)
        first, last = losses.pytorch[0], losses.pytorch[-1]
        print(f"{model.name:10} {first:8.4f} to {last:8.4f}   apart {losses.apart:.1e}", flush=True)
        failed |= not losses.apart <= LIMIT
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

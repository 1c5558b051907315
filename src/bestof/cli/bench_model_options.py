"""The options of `bestof bench model`."""

from __future__ import annotations

import argparse

from bestof.bench.model.models import MODELS
from bestof.bench.model.peers.table import PEERS
from bestof.bench.model.result import PROMISE
from bestof.cli.options import add_json, add_number, parser_of, seconds

_EPILOG = f"""\
models: {", ".join(model.name for model in MODELS)}
peers:  {", ".join(peer.name for peer in PEERS)}

Each peer runs in its own process, in turn with the others. Its results are compared
with PyTorch's. A star marks the fastest peer.
ms: the median a call; spread: half the distance between the quartiles; least: the
least ms.
ratio: how many times faster than the best peer that is not bestof, the median over
the rounds, and its quartiles.
error: the largest difference from PyTorch, in units of the root mean square.
MB: memory of the peer's process at the peak of a call, PyTorch included, without
what only the preparation took.

  bestof bench model vgg16 resnet50 --peers --batch 1,8 --threads 1,2
  bestof bench model vgg16-cifar --train --steps 60 --png training.png
  bestof bench model bert-base --batch 1,8 --dtype float32,bfloat16 --peers
  bestof bench model mobilenet_v2 --only eager,openvino,optimize --beside 0,1,3
  bestof bench model vgg16-cifar --static --train --threads 1,2 --png static.png
  bestof bench model --reach --keep models.jsonl --png models.png
  bestof bench model --matrix --batch 8 --size 64 --keep matrix.jsonl
  bestof bench model resnet50 --batch 32 --train --device cuda
  bestof bench model --read first.json second.json --png both.png"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "bench model",
        description="Measure whole models, inference or training steps, by bestof and by peers.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="such as vgg16 (the list is below)"
    )
    _add_choice(parser)
    _add_problem(parser)
    _add_effort(parser)
    _add_files(parser)
    return parser


def _add_choice(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--peers", action="store_true", help="every peer (default: PyTorch eager and bestof)")
    add(
        "--static",
        action="store_true",
        help="PyTorch eager, bestof, and each algorithm for all convolutions",
    )
    add("--only", metavar="LIST", help="these peers, separated by commas")
    add("--train", action="store_true", help="training steps instead of inference")
    add(
        "--matrix",
        action="store_true",
        help=f"check that no model runs below {PROMISE} of its speed without bestof",
    )
    add(
        "--reach",
        action="store_true",
        help="every convolutional model with a promise, and the peers that it names",
    )
    add("--layers", action="store_true", help="keep what was measured for each convolution")


def _add_problem(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--batch", default="1", metavar="LIST", help="images a call (default: %(default)s)")
    add("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: %(default)s)")
    add("--threads", metavar="LIST", help="(default: one for each core)")
    add(
        "--dtype",
        default="float32",
        metavar="LIST",
        help="float32, bfloat16 or both; bfloat16 for inference only (default: %(default)s)",
    )
    add(
        "--beside",
        default="0",
        metavar="LIST",
        help="busy processes while peers are timed (default: %(default)s)",
    )
    add(
        "--plans",
        type=int,
        default=1,
        metavar="N",
        help="processes of each peer of bestof, whose choices differ (default: %(default)s)",
    )
    add("--size", metavar="N or RxC", help="rows and columns of the images (default: the model's)")
    add("--narrow", action="store_true", help="the small form of the models, as tests run them")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_number(parser, "--rounds", 7, "rounds")
    add_number(parser, "--seconds", 0.5, "of each peer in each round", seconds)
    add_number(parser, "--settle", 120, "for bestof to end its trials", seconds)
    add("--steps", type=int, default=0, metavar="N", help="keep the times of the first N calls")


def _add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--read",
        nargs="+",
        metavar="FILE",
        help="show what --json printed or --keep wrote before; later files win",
    )
    add(
        "--keep",
        metavar="FILE",
        help="keep each measurement; measure only what the file lacks, of equal effort",
    )
    add_json(parser)
    add("--csv", metavar="FILE", help="also write a line for each model and peer")
    add("--png", metavar="FILE", help="also draw; further pictures extend the name")

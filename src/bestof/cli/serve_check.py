"""`bestof serve-check`: show which of the installed engines runs a model fastest."""

from __future__ import annotations

import argparse
import json
import runpy
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from bestof.accuracy import ACCURACIES, DEFAULT_ACCURACY
from bestof.cli.options import add_json, parser_of, tell
from bestof.errors import BestofWarning, InvalidArgument
from bestof.progress import under_way

if TYPE_CHECKING:
    from torch import nn

_EPILOG = """\
MODEL is a file that torch.export.save has written, or a Python file that defines
`model`, a module in evaluation mode, and `example`, its inputs: a tensor, or a
tuple. Either may be a function without arguments that returns these.

  bestof serve-check model.py
  bestof serve-check model.pt2 --engines plan,onnxruntime

Each engine is measured in a process of its own, in turn with the others, and held
against the model in float64. What the store knows is not measured again; for
that, set BESTOF_STORE=off. In a program, optimize(..., engines="installed") takes
the same choice."""


def call(argv: Sequence[str]) -> int:
    """Parse the arguments, measure, and print a line for each engine."""
    options = make_parser().parse_args(argv)
    # Here, because `bestof completion` reads the parser, and needs no PyTorch.
    import torch  # noqa: PLC0415

    from bestof.torch.plan.engine_model import EngineModel  # noqa: PLC0415
    from bestof.torch.plan.optimize import optimize  # noqa: PLC0415

    model, example = _read(Path(options.model))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    engines = "installed" if options.engines is None else options.engines.split(",")
    tell(f"comparing the engines of {options.model}; if they are new, this takes a minute or two")
    with under_way("compares engines"), warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)  # the lines tell what is out
        plan = optimize(model, example, accuracy=options.accuracy, engines=engines)
    assert isinstance(plan, EngineModel)
    (choice,) = plan.choices
    if options.json:
        print(json.dumps({"engine": choice.engine, **asdict(choice)}, indent=2))
    else:
        print("\n".join(choice.lines()))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "serve-check", "Show which of the installed engines runs a model fastest.", _EPILOG
    )
    parser.add_argument("model", metavar="MODEL", help="such as model.py or model.pt2")
    parser.add_argument(
        "--engines", metavar="LIST", help="some of them, separated by commas (default: all)"
    )
    parser.add_argument(
        "--accuracy",
        metavar="LEVEL",
        choices=ACCURACIES,
        default=DEFAULT_ACCURACY,
        help=f"one of {', '.join(ACCURACIES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--threads", metavar="N", type=_threads, help="of each engine (default: PyTorch's)"
    )
    add_json(parser)
    return parser


def _threads(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1; got {text!r}")
    return int(text)


def _read(file: Path) -> tuple[nn.Module, Any]:
    """Return the model of a file, and its inputs. Raises InvalidArgument."""
    if not file.is_file():
        raise InvalidArgument(f"there is no file {str(file)!r}; name a model.py or a model.pt2")
    if file.suffix != ".py":
        return _exported(file)
    try:
        found = runpy.run_path(str(file))
    except Exception as error:
        raise InvalidArgument(f"{file}: it raised {type(error).__name__}: {error}") from error
    missing = [name for name in ("model", "example") if name not in found]
    if missing:
        raise InvalidArgument(f"{file}: it must define `model` and `example`; {missing[0]} is not")
    from torch import nn  # noqa: PLC0415 - see `call`

    model, example = found["model"], found["example"]
    if not isinstance(model, nn.Module) and callable(model):
        model = model()
    return model, example() if callable(example) else example


def _exported(file: Path) -> tuple[nn.Module, Any]:
    expected = f"{file}: expected a Python file (.py), or what torch.export.save has written"
    if not is_zipfile(file):
        raise InvalidArgument(f"{expected}; it is neither")
    import torch  # noqa: PLC0415 - see `call`

    try:
        exported = torch.export.load(file)
    except Exception as error:  # it raises anything for an archive of another kind
        raise InvalidArgument(f"{expected}: {type(error).__name__}: {error}") from error
    if exported.example_inputs is None or exported.example_inputs[1]:
        raise InvalidArgument(f"{file}: it has no example inputs, or some by name: use a model.py")
    return exported.module(), exported.example_inputs[0]

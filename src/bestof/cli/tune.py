"""`bestof tune`: find the settings that make the step of a script faster."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic

from bestof.accuracy import ACCURACIES, DEFAULT_ACCURACY
from bestof.cli.options import add_number, check_writable, parser_of_script, seconds
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.cli.termination import INTERRUPTED, interrupted_by_termination
from bestof.cli.tune_command import trial_command
from bestof.errors import BestofError, InvalidArgument
from bestof.progress import progress_bar
from bestof.recipe.contestant import Contestant
from bestof.recipe.parts import parts_of
from bestof.recipe.recipe import Recipe, read_recipe
from bestof.recipe.search import Search
from bestof.view.quantity import plural

_EPILOG = """\
The script runs several times, in processes that are ended between two steps.
What it writes to files, these runs write; what it prints is not shown. Each
setting is tried on the script's whole step, in turn with what stood before.
It is kept only if the step is confirmed faster.

  bestof tune --recipe train.json train.py --epochs 3
  bestof run --recipe train.json train.py --epochs 3

The same command again continues where the first one ended or was interrupted.
`--fresh` starts over."""

_VALUED = ("--recipe", "--seconds", "--accuracy")


def call(argv: Sequence[str]) -> int:
    """Parse the arguments, search, and print what each part has gained."""
    own, module, rest = split_arguments(argv, _VALUED)
    options = make_parser().parse_args(own)
    if not rest:
        raise InvalidArgument("nothing to tune; usage: bestof tune [options] script.py [arguments]")
    (find_module if module else find_script)(rest[0], rest[1:])  # an unusable one is refused here
    script = ["-m", *rest] if module else rest
    path = Path(options.recipe)
    check_writable(options.recipe, "the recipe")
    recipe = _begun(path, script, options)
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        print(line, flush=True)

    with progress_bar() as progress:

        def save() -> None:
            if recipe.is_measured:  # or else a recipe of before stays
                recipe.save(path)
            pairs = sum(len(one.ratios) for one in recipe.comparisons)
            progress(f"{plural(pairs, 'pair')} of turns so far", 0, 0)

        search = Search(
            recipe,
            partial(Contestant, command=partial(trial_command, script)),
            deadline=monotonic() + options.seconds,
            save=save,
            tell=tell,
        )
        progress("starts the script", 0, 0)
        return _search(partial(search.run, parts_of(options.accuracy)), recipe, path, told)


def _search(run: Callable[[], None], recipe: Recipe, path: Path, told: list[str]) -> int:
    """Run the search, and print what it has not told itself."""
    status = 0
    try:
        with interrupted_by_termination():
            run()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BestofError as error:
        raise BestofError(f"{' '.join(recipe.script)}: {error}") from error
    print("\n".join(line for line in recipe.lines() if line not in told))
    if recipe.complete:
        print(f"the recipe is in {path}; `bestof run --recipe {path}` applies it")
    elif recipe.is_measured:
        print(f"what was measured is in {path}; the same command continues")
    else:
        advice = "" if status else "; pass a larger --seconds"
        print(f"nothing was measured, so {path} is not written{advice}")
    return status


def _begun(path: Path, script: list[str], options: argparse.Namespace) -> Recipe:
    """Return the recipe to continue, or a new one."""
    if options.fresh or not path.exists() or not path.stat().st_size:
        return Recipe(script, options.accuracy)
    recipe = read_recipe(path, "pass another --recipe, or --fresh to replace it")
    if recipe.script != script or recipe.accuracy != options.accuracy:
        raise InvalidArgument(
            f"{str(path)!r} is the recipe of {' '.join(recipe.script)} with --accuracy "
            f"{recipe.accuracy}; pass another --recipe, or --fresh to replace it"
        )
    return recipe


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of_script(
        "tune",
        "Find the settings that make the step of a PyTorch program faster.",
        _EPILOG,
    )
    add = parser.add_argument
    add(
        "--recipe",
        metavar="FILE",
        default="recipe.json",
        help="write the recipe to FILE (default: %(default)s)",
    )
    add_number(parser, "--seconds", 600.0, "end after S seconds", seconds)
    add(
        "--accuracy",
        metavar="LEVEL",
        choices=ACCURACIES,
        default=DEFAULT_ACCURACY,
        help="what results may become: exact, float32 (default), relaxed",
    )
    add("--fresh", action="store_true", help="replace the recipe instead of continuing it")
    return parser

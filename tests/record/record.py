"""Records what bestof chooses among, for a change that must change nothing of it.

    python tests/record/record.py before.json             on the commit before the change
    python tests/record/record.py --compare before.json   on the commit after it

For each problem that eager calls and plans meet, a record has the name of the selector, the
canonical text of the problem, and the names of the alternatives that apply, in their order. Those
that no search tries are marked. For each call it has sizes, strides and dtypes of the results. If
all of it is the same, a store of the commit before gives no trials after it. The clock changes
nothing of it. Records of two instruction sets, or of two releases of PyTorch, are not compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from math import ceil, prod
from pathlib import Path
from random import Random
from typing import Any

os.environ["BESTOF_STORE"] = "off"
# A layer meets the problems of its passes in trials. Within a budget, a loaded machine makes fewer.
os.environ["BESTOF_BUDGET"] = "off"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # its threads leave the processor to others

import torch
from torch import Tensor, nn
from torch.nn import functional

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "sweep"), str(TESTS / "contract" / "torch")]

import problems  # noqa: E402  sweep/
from plan_models import MODELS  # noqa: E402  contract/torch/

import bestof.torch as bt  # noqa: E402
from bestof import kernels  # noqa: E402
from bestof.selection.identity.problem import problem_text  # noqa: E402
from bestof.selection.state.registry import selectors  # noqa: E402

LEVELS = ("float32", "relaxed")
SIZES = (128, 161, 192, 256, 320, 384)
LEAST_POOLED = 2**17 + 1
"""Elements of an image from which on bestof chooses how it is pooled."""
OF_A_PROCESS = 40
"""The problems of each operation that a process meets, some by several calls at both levels."""
LEFT_OUT = " (left out)"
"""Behind the name of an alternative that could run, and that no search tries."""
SHOWN = 20
"""The most differences that are printed of one kind."""

Record = dict[str, dict[str, list[str]]]
"""By `host`, a selector or `forms`; then by problem or call: names, or what results look like."""

Call = Callable[[], Any]


def form(result: Any) -> list[str]:
    """Return sizes, strides and dtypes of the tensors in a result."""
    return [
        f"{one.dtype} {tuple(one.shape)} {tuple(one.stride())}".removeprefix("torch.")
        for one in _tensors(result)
    ]


def _tensors(result: Any) -> list[Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(result) if isinstance(one, Tensor)]


def _drawn(generator: torch.Generator, shape: tuple[int, ...], dtype: str, layout: str) -> Tensor:
    made = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
    last = layout == "channels_last"
    return made.contiguous(memory_format=torch.channels_last) if last else made


def convolutions(indices: range) -> Iterator[tuple[str, Call]]:
    """Yield convolutions without gradients, and with those that are drawn."""
    for index in indices:
        problem = problems.convolution(0, index)
        torch.set_num_threads(problem.threads)
        generator = torch.Generator().manual_seed(index)
        x = _drawn(generator, problem.input_shape, problem.dtype, problem.input_layout)
        w = _drawn(generator, problem.weight_shape, problem.dtype, problem.weight_layout)
        b = torch.randn(problem.weight_shape[0], generator=generator).to(x.dtype)
        geometry = problem.stride, problem.padding, problem.dilation, problem.groups
        given = x, w, b if problem.bias else None
        trained = [(x, w), (w,), (x,)][index % 3]

        def forward(given: Any = given, geometry: Any = geometry) -> Tensor:
            with torch.no_grad():
                return functional.conv2d(*given, *geometry)

        def backward(
            given: Any = given, geometry: Any = geometry, trained: Any = trained
        ) -> list[Any]:
            for one in trained:
                one.requires_grad_()
            out = functional.conv2d(*given, *geometry)
            found = [out.detach(), *torch.autograd.grad(out, trained, torch.ones_like(out))]
            for one in trained:
                one.requires_grad_(False)
            return found

        yield f"convolution {index}", forward
        yield f"convolution {index}, backward", backward


def products(indices: range) -> Iterator[tuple[str, Call]]:
    """Yield products of matrices, of batches of them, and of weights that are kept."""
    for index in indices:
        drawn, random = problems.product(0, index), Random(index)
        m, k, n = (random.choice(SIZES) for _ in range(3))  # those of the sweep never ask bestof
        drawn = drawn._replace(m=m, k=k, n=n)
        torch.set_num_threads(drawn.threads)
        generator = torch.Generator().manual_seed(index)
        shape = (drawn.k, drawn.m) if drawn.a_columns else (drawn.m, drawn.k)
        a = torch.randn(shape, generator=generator)
        a = a.t() if drawn.a_columns else a
        shape = (drawn.n, drawn.k) if drawn.b_columns else (drawn.k, drawn.n)
        b = torch.randn(shape, generator=generator)
        b = b.t() if drawn.b_columns else b
        bias = torch.randn(drawn.n, generator=generator)
        weight = nn.Parameter(b.t())

        def product(a: Tensor = a, b: Tensor = b, bias: Any = bias if drawn.bias else None) -> Any:
            with torch.no_grad():
                return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)

        def kept(a: Tensor = a, weight: Tensor = weight, bias: Tensor = bias) -> Tensor:
            with torch.no_grad():
                return functional.linear(a, weight, bias)

        def batch(a: Tensor = a, b: Tensor = b) -> Tensor:
            return torch.bmm(torch.stack([a, a]), torch.stack([b, b]))

        yield f"product {index}", product
        yield f"product {index}, weights", kept
        yield f"product {index}, batch", batch


def poolings(indices: range) -> Iterator[tuple[str, Call]]:
    """Yield maximum poolings."""
    for index in indices:
        drawn = problems.pooling(0, index)
        torch.set_num_threads(drawn.threads)
        generator = torch.Generator().manual_seed(index)
        batch = ceil(LEAST_POOLED / prod(drawn.shape[1:]))
        x = _drawn(generator, (batch, *drawn.shape[1:]), drawn.dtype, "channels_first")
        yield (
            f"pooling {index}",
            lambda x=x, geometry=drawn[1:6]: functional.max_pool2d(
                x, *geometry, return_indices=True
            ),
        )


def attentions() -> Iterator[tuple[str, Call]]:
    """Yield attention without and with gradients."""
    torch.set_num_threads(2)
    shapes = [
        (2, 8, 128, 128, 64),
        (1, 12, 197, 197, 64),
        (4, 8, 1, 4096, 80),
        (2, 4, 160, 384, 48),
    ]
    for dtype in (torch.float32, torch.bfloat16):
        for batch, heads, queries, keys, size in shapes:
            for causal in (False, True):
                generator = torch.Generator().manual_seed(queries)
                q, k, v = (
                    torch.randn(batch, heads, length, size, generator=generator).to(dtype)
                    for length in (queries, keys, keys)
                )

                def run(
                    q: Tensor = q, k: Tensor = k, v: Tensor = v, causal: bool = causal
                ) -> list[Any]:
                    attend = functional.scaled_dot_product_attention
                    with torch.no_grad():
                        alone = attend(q, k, v, is_causal=causal)
                    trained = [one.detach().requires_grad_() for one in (q, k, v)]
                    out = attend(*trained, is_causal=causal)
                    gradients = torch.autograd.grad(out, trained, torch.ones_like(out))
                    return [alone, out.detach(), *gradients]

                text = f"attention {dtype} {batch} {heads} {queries} {keys} {size} {causal}"
                yield text, run


def eager_models(networks: int) -> Iterator[tuple[str, Call]]:
    """Yield inference and a training step of each network of the contract tests."""
    torch.set_num_threads(2)
    for name, (make, shape) in islice(MODELS.items(), networks):
        torch.manual_seed(0)
        model, x = make(), torch.randn(shape)

        def run(model: nn.Module = model, x: Tensor = x) -> list[Any]:
            with torch.no_grad():
                alone = model.eval()(x)
            out = model.train()(x)
            real = [one for one in _tensors(out) if one.requires_grad]
            torch.autograd.backward(real, [torch.ones_like(one) for one in real])
            return [alone, out, *(one.grad for one in model.parameters())]

        yield name, run


def eager(record: Record, level: str, *kinds: Iterator[tuple[str, Call]]) -> None:
    """Call everything three times under `enable`."""
    with bt.enabled({"kernel": {"accuracy": level}}):
        for name, run in chain(*kinds):
            forms = {json.dumps(form(run())) for _ in range(3)}
            record["forms"][f"{level}: {name}"] = sorted(forms)
        note(record)


def plans(record: Record, level: str, networks: int) -> None:
    """Plan the networks of the contract tests."""
    torch.set_num_threads(2)
    kept = []
    for name, (make, shape) in islice(MODELS.items(), networks):
        torch.manual_seed(0)
        model, x = make().eval(), torch.randn(shape)
        plan = bt.optimize(model, (x,), accuracy=level)  # type: ignore[arg-type]
        record["forms"][f"{level}: plan of {name}"] = form(plan(x))
        kept.append(plan)
    note(record)


def note(record: Record) -> None:
    """Add the problems of all live selectors that are new: which alternatives apply to each.

    Reports name alternatives as not applicable if a neighbour's times have left them out, so
    the alternatives are asked.
    """
    for selector in selectors():
        known, knowledge = record.setdefault(selector.name, {}), selector._knowledge
        for problem in {**knowledge.decisions, **knowledge.tunings}:
            names = [
                one.name if one.left_out(problem) is None else f"{one.name}{LEFT_OUT}"
                for one in knowledge.alternatives
                if one.can_run(problem)
            ]
            known.setdefault(problem_text(problem), names)


def record_of(count: int, networks: int) -> Record:
    """Return the record of so many problems of each operation, and of so many networks.

    The process must be a new one: what selectors know already changes which problems they meet.
    """
    host: dict[str, list[str]] = {"instruction set": [kernels.isa()], "torch": [torch.__version__]}
    host["problems of each operation"], host["networks"] = [str(count)], [str(networks)]
    record: Record = {"host": host, "forms": {}}
    for first in range(0, count, OF_A_PROCESS):
        indices = range(first, min(first + OF_A_PROCESS, count))
        add(record, in_a_child(partial(drawn_problems, indices)))
    add(record, in_a_child(partial(attentions_and_networks, networks)))
    return record


def drawn_problems(indices: range, record: Record) -> None:
    """Meet the drawn problems of these numbers."""
    for level in LEVELS:
        eager(record, level, convolutions(indices), products(indices), poolings(indices))


def attentions_and_networks(networks: int, record: Record) -> None:
    """Meet attentions, and networks in eager calls and as plans."""
    for level in LEVELS:
        eager(record, level, attentions(), eager_models(networks))
        plans(record, level, networks)


def in_a_child(meet: Callable[[Record], None]) -> Record:
    """Return what a forked child records. Its selectors have met nothing yet.

    Selectors search 256 problems at once. Of more, it depends on the clock which ones they meet.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        part: Record = {"forms": {}}
        meet(part)
        sender.send(part)

    child = context.Process(target=work)
    child.start()
    sender.close()
    try:
        part: Record = receiver.recv()
    except EOFError:
        sys.exit("a part of the record failed, see above")
    child.join()
    return part


def add(record: Record, part: Record) -> None:
    """Add a part to a record."""
    for group, known in part.items():
        record.setdefault(group, {}).update(known)


def differences(before: Record, after: Record) -> list[str]:
    """Return one line for each problem that differs, at most SHOWN of each kind."""
    found: dict[str, list[str]] = {}
    for group in sorted(before.keys() | after.keys()):
        old, new = before.get(group, {}), after.get(group, {})
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) == new.get(key):
                continue
            if key not in new or key not in old:
                which = "no longer met" if key not in new else "new"
                found.setdefault(f"{group}: {which}", []).append(f"{group}: {which}: {key}")
            else:
                line = f"{group}: {key}: {old[key]} became {new[key]}"
                found.setdefault(f"{group}: changed", []).append(line)
    lines = []
    for kind, listed in found.items():
        lines += listed[:SHOWN]
        if len(listed) > SHOWN:
            lines.append(f"{kind}: {len(listed) - SHOWN} more")
    return lines


def main() -> int:
    """Write a record, or compare with one; return 1 if they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", action="store_true", help="with the record in the file")
    parser.add_argument("--problems", type=int, default=400, help="of each operation")
    parser.add_argument("--networks", type=int, default=len(MODELS))
    options = parser.parse_args()
    record = record_of(options.problems, options.networks)
    count = sum(len(known) for known in record.values())
    if not options.compare:
        options.file.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        print(f"{count} lines in {options.file}")
        return 0
    before = json.loads(options.file.read_text())
    if before["host"] != record["host"]:
        print(f"{options.file}: made on {before['host']}, and this is {record['host']}")
        return 2
    found = differences(before, record)
    print("\n".join(found) if found else f"{count} lines are the same")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

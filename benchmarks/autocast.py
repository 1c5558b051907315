"""How much faster does `enable` train under autocast? Steps of BERT and of ResNet50, in turn.

One process, steps with and without `enable`, both under PyTorch's autocast. Freed memory is kept
for both. A ratio above 1 means that `enable` is faster; it is the median over pairs of steps. The
step of the same model in float32 stands beside them: a processor without instructions for the type
emulates it, and may then be slower than in float32. Weights and inputs are random.

With `--layout`, `layout.enable` has chosen the layout of the model that `enable` trains; the other
stays in channels first. This takes 130 steps more.

    python benchmarks/autocast.py --threads 2
    python benchmarks/autocast.py --only resnet50 --size 64 --dtype float16
    python benchmarks/autocast.py --only bert --layers 12 --rounds 10
    python benchmarks/autocast.py --only resnet50 --layout
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from training_steps import Step, add_options, compared, prepare, print_choices, timed

import bestof.torch as bt
from bestof.profile.peak import measure_peak
from bestof.profile.recording.recorder import processor_name

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

LAYOUT_STEPS = 130
"""Steps after which the layouts are compared: 20 pairs of turns of four steps, or fewer, decide."""


def bert(options: argparse.Namespace) -> tuple[str, nn.Module, Tensor]:
    """Return a BERT of the base model's width, and random tokens."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - imports much

    config = BertConfig(num_hidden_layers=options.layers)
    config._attn_implementation = "sdpa"
    tokens = torch.randint(config.vocab_size, (options.batch, 128))
    return f"BERT-base, {options.layers} layers", BertModel(config), tokens


def resnet50(options: argparse.Namespace) -> tuple[str, nn.Module, Tensor]:
    """Return ResNet50, and random images."""
    from pytorchcv.models.resnet import resnet50 as make  # noqa: PLC0415 - only for this model

    images = torch.randn(options.batch, 3, options.size, options.size)
    model = make()
    model.features.final_pool = nn.AdaptiveAvgPool2d(1)  # for other sizes than 224, too
    return f"ResNet50, {options.size} x {options.size}", model, images


MODELS: dict[str, Callable[[argparse.Namespace], tuple[str, nn.Module, Tensor]]] = {
    "bert": bert,
    "resnet50": resnet50,
}


def training_step(model: nn.Module, x: Tensor, dtype: torch.dtype | None) -> Step:
    """Return a function that trains a model by one step; `dtype` is autocast's, None for none."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            result = model(x)
        result = result if isinstance(result, Tensor) else result[0]
        result.float().square().mean().backward()
        optimizer.step()

    return step


def compared_with_layout(
    step: Step, other: Step, rounds: int, clock: Callable[[], float]
) -> list[list[float]]:
    """Return the seconds of a step as it is, and of one with a chosen layout and `enable`."""
    with bt.enabled({"kernel": {"budget": None}, "layout": {"enable": True}}):
        for _ in range(LAYOUT_STEPS):
            other()
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        step()
        times[0].append(timed(step, clock))
        with bt.enabled():
            other()
            times[1].append(timed(other, clock))
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, MODELS, rounds=5, settling=60)
    parser.add_argument("--dtype", choices=[*DTYPES], default="bfloat16")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--layers", type=int, default=12, help="of BERT")
    parser.add_argument("--size", type=int, default=224, help="of the images of ResNet50")
    parser.add_argument("--layout", action="store_true", help="choose the layout, too")
    options = parser.parse_args(arguments)
    clock = prepare(options)
    peak = measure_peak().flops
    print(
        f"{processor_name()}, {options.threads} threads, {peak / 1e9:.0f} GFLOP/s of float32, "
        f"PyTorch {torch.__version__}, {options.dtype}, batch {options.batch}"
    )
    print(
        f"{'model':28} {'float32':>11} {'autocast':>11} {'enable':>11} {'ratio':>6}  settled after"
    )
    for name in [options.only] if options.only else MODELS:
        torch.manual_seed(0)
        label, model, x = MODELS[name](options)
        single = training_step(model, x, None)
        single()
        wide = timed(single, clock)
        step = training_step(model, x, DTYPES[options.dtype])
        steps, times = compared(step, options.rounds, options.settling, clock)
        if options.layout:
            as_is = training_step(copy.deepcopy(model), x, DTYPES[options.dtype])
            times = compared_with_layout(as_is, step, options.rounds, clock)
            steps += LAYOUT_STEPS
        plain, enabled = (1e3 * statistics.median(one) for one in times)
        ratio = statistics.median(one / other for one, other in zip(*times, strict=True))
        print(
            f"{label:28} {1e3 * wide:8.1f} ms {plain:8.1f} ms {enabled:8.1f} ms {ratio:6.2f}"
            f"  {steps} steps",
            flush=True,
        )
    if options.choices:
        print_choices()


if __name__ == "__main__":
    main()

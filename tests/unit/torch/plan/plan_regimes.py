"""Small models, example inputs of unusual sizes, and faults that verification must find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestof.kernels import AttentionPlan, NormPlan
from bestof.torch.plan.algorithms.algorithm import Bound, PlacedLayer
from bestof.torch.plan.algorithms.native import Native
from bestof.torch.plan.algorithms.product import Product
from bestof.torch.plan.algorithms.table import algorithm, applicable
from bestof.torch.plan.layers.frozen_weights import FrozenWeights
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.operations.row_norm import RowNorm
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.raced_step import RacedStep


class Blocks(nn.Module):
    """Residual blocks with a norm before, or behind each."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.last = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        for norm, feed in zip(self.norms, self.feeds, strict=True):
            x = x + feed(norm(x)) if self.before else norm(x + feed(x))
        return self.last(x)


class Sum(nn.Module):
    """The norm of a sum of two activated layers, whose result lies where the second does."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.norm = nn.Linear(32, 32), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.relu(self.one(x)) + F.relu(self.other(x)))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.all, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, size = x.shape
        parts = self.all(self.norm(x)).chunk(3, -1)
        q, k, v = (one.view(batch, tokens, 4, 8).transpose(1, 2) for one in parts)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return x + self.out(mixed.reshape(batch, tokens, size))


class Picked(nn.Module):
    """Whole numbers as a result too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.head(self.norm(x))
        return scores, scores.argmax(-1)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(200, 5),
    )


def _depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 4, 5, padding=2, groups=4), nn.SiLU(), nn.Conv2d(4, 8, 1), nn.AvgPool2d(2)
    )


ROWS, TOKENS, IMAGES = (6, 32), (2, 7, 32), (2, 4, 12, 12)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "norm": (lambda: nn.LayerNorm(32), ROWS),
    "mlp": (lambda: nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 5)), ROWS),
    "norm and layers": (
        lambda: nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 48), nn.SiLU(), nn.LayerNorm(48)),
        ROWS,
    ),
    "norms before": (lambda: Blocks(before=True), TOKENS),
    "norms behind": (lambda: Blocks(before=False), TOKENS),
    "sum": (Sum, ROWS),
    "gated": (Gated, ROWS),
    "attention": (Attended, TOKENS),
    "picked": (Picked, ROWS),
    "convolutions": (_convolutions, IMAGES),
    "depthwise": (_depthwise, IMAGES),
}
REGIMES = ("normal", "1e-30", "1e25", "+1e3", "+1e6", "nan", "inf", "all nan", "0")


def build(name: str, dtype: torch.dtype, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a model with norms that scale and shift, and the shape of its example."""
    torch.manual_seed(seed)
    make, shape = MODELS[name]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d | nn.RMSNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            if getattr(module, "bias", None) is not None:
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval().to(dtype), shape


def example(regime: str, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return an example input of a regime."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    if regime in ("nan", "inf"):
        x.view(-1)[x.numel() // 3] = float(regime)
    elif regime == "all nan":
        x.fill_(float("nan"))
    elif regime.startswith("+"):
        x += float(regime)
    elif regime != "normal":
        x *= float(regime)
    return x.to(dtype)


def settle_natively(program: Program, _: Sequence[Tensor]) -> None:
    """Choose a native kernel for each step that has one, in place of a race.

    Not Winograd's, which spread NaN to the tile.
    """
    for choice in program.choices.values():
        if isinstance(choice.problem, FusedProblem):
            rows = [algorithm(name) for name in applicable(choice.problem)]
            names = [
                one.name
                for one in rows
                if not one.trusted and "wino" not in one.name and one.rounds != "weights"
            ]
            choice.settle(names[-1] if names else rows[0].name)
        else:
            choice.settle("native")
    program.bind_anew()


Fault = Callable[[pytest.MonkeyPatch], None]
Damage = Callable[[Tensor], object]


def _scale(out: Tensor) -> None:
    out.mul_(1.2)


def _row(out: Tensor) -> None:
    out[-1].neg_()


def _element(out: Tensor) -> None:
    values = out.float()
    size = values[torch.isfinite(values)].square().mean().sqrt()
    out[(-1,) * out.dim()] += 2 * size


DAMAGES: dict[str, Damage] = {"scale": _scale, "row": _row, "element": _element}


def _of_results(damage: Damage) -> Fault:
    """Damage what the plan returns, whichever kernels run."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        run, read = Program.run, Program.read

        def wrong(self: Program, *args: Any, **kwargs: Any) -> list[Any]:
            outputs = run(self, *args, **kwargs)
            damage(outputs[0])
            return outputs

        def wrong_where_it_lies(
            self: Program, given: Any, after_step: Any, reader: Callable[[list[Any]], Any]
        ) -> Any:
            def damaged(outputs: list[Any]) -> Any:
                damage(outputs[0])
                return reader(outputs)

            return read(self, given, after_step, damaged)

        patch.setattr(Program, "run", wrong)
        patch.setattr(Program, "read", wrong_where_it_lies)

    return inject


def _of_layers(damage: Damage) -> Fault:
    """Damage the results of native layers."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        for kind in (Native, Product):
            patch.setattr(kind, "bind", _damaged(kind.bind, damage))

    return inject


def _damaged(bind: Any, damage: Damage) -> Any:
    def wrong(row: Any, placed: PlacedLayer) -> Bound:
        bound = bind(row, placed)

        def run() -> None:
            bound.run()
            damage(row.writes_to(placed))

        return Bound(run, bound.packed)

    return wrong


def _of_norms(damage: Damage) -> Fault:
    """Damage the results of native norms and attentions."""

    def inject(patch: pytest.MonkeyPatch) -> None:
        make = RacedStep.__init__

        def wrong(
            self: Any, choice: Any, pytorch: Any, native: Any, *rest: Any, **named: Any
        ) -> None:
            out = rest[1]

            def run() -> None:
                native()
                damage(out)

            make(self, choice, pytorch, run, *rest, **named)

        patch.setattr(RacedStep, "__init__", wrong)

    return inject


def _drop_bias(patch: pytest.MonkeyPatch) -> None:
    """Bind all layers without their bias, PyTorch's too."""
    patch.setattr(FrozenWeights, "_folded_bias", lambda *_: None)


def _change_epsilon(patch: pytest.MonkeyPatch) -> None:
    """Bind all three forms of a norm with another epsilon."""
    bind = RowNorm.bind

    def wrong(self: RowNorm, *args: Any) -> Any:
        other = RowNorm(self.centred, 0.5, self.scaled, self.shifted, self.added)
        return bind(other, *args)

    patch.setattr(RowNorm, "bind", wrong)


def _forget_to_write(patch: pytest.MonkeyPatch) -> None:
    for plan in (NormPlan, AttentionPlan):
        patch.setattr(plan, "run", lambda *_: None)


# The name of each fault, and what of a plan must be there for it to matter.
FAULTS: dict[str, tuple[str, Fault]] = {
    **{f"results: {name}": ("", _of_results(one)) for name, one in DAMAGES.items()},
    **{f"layers: {name}": ("layer", _of_layers(one)) for name, one in DAMAGES.items()},
    **{f"norms: {name}": ("norm", _of_norms(one)) for name, one in DAMAGES.items()},
    "no bias": ("layer", _drop_bias),
    "epsilon": ("norm", _change_epsilon),
    "nothing written": ("norm", _forget_to_write),
}

"""The times of each convolution of a model, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bestof.bench.model.result import LayerTimes
from bestof.selection.reports.report import AlternativeReport, Report, report_from_dict
from bestof.torch.ops.convolution.problem import ConvProblem

_SELECTORS = ("convolution", "cuda convolution")


def convolution_notations(model: nn.Module, images: Tensor) -> list[str]:
    """Return the distinct 2-D convolutions of a model, in the order of the forward pass.

    The notation is that of `bestof bench conv`.
    """
    found: dict[str, None] = {}

    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        if isinstance(module.padding, str):
            return
        x = arguments[0].detach()
        problem = ConvProblem.of(
            x,
            module.weight,
            module.bias is not None,
            module.stride,
            module.padding,
            module.dilation,
            module.groups,
        )
        found[problem.notation] = None

    hooks = [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    ]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(images)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return list(found)


def layer_times(content: Any, order: Sequence[str]) -> tuple[LayerTimes, ...]:
    """Return the passes of a report's convolutions, pass by pass, with layers in this order."""
    report = report_from_dict(content)
    rows = []
    for name in ("forward", "input gradient", "weight gradient"):
        for notation in order:
            rows += [row for row in _rows(report, name) if row.notation == notation]
    return tuple(rows)


def _rows(report: Report, name: str) -> list[LayerTimes]:
    return [
        LayerTimes(
            problem.problem.split()[0], name, problem.decision, _seconds(problem.alternatives)
        )
        for selector in report.selectors
        if selector.selector in {f"{prefix} {name}" for prefix in _SELECTORS}
        for problem in selector.problems
    ]


def _seconds(alternatives: Sequence[AlternativeReport]) -> dict[str, float]:
    return {one.name: one.seconds for one in alternatives if one.seconds is not None}

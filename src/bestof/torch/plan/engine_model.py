"""A plan that leaves shapes to other engines, where they are faster."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.selection.notice import warn
from bestof.torch.engines import kept
from bestof.torch.engines.answer import Answer
from bestof.torch.engines.choice import EngineChoice, EngineResult
from bestof.torch.engines.contest import measure
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.table import PLAN
from bestof.torch.engines.travel import Inputs
from bestof.torch.plan.explanation import Explanation
from bestof.torch.plan.inputs import refuse_tracing
from bestof.torch.plan.optimized import OptimizedModel, refuse_gradients
from bestof.torch.plan.trace.eager_run import described, first_line


class EngineModel(OptimizedModel):
    """A plan whose fixed shapes are answered by the fastest of some engines, each by its own.

    The shapes of the example and of `prepare` are fixed. All others are answered as a plan answers
    shapes that are new to it. `choices` tells what was measured.
    """

    def __init__(
        self,
        model: nn.Module | None,
        accuracy: Accuracy,
        check_weights: bool = False,
        engines: Sequence[Engine] = (),
    ) -> None:
        super().__init__(model, accuracy, check_weights)
        self._engines = tuple(engines)
        self._answers: dict[Hashable, Answer] = {}
        self._chosen: dict[Hashable, EngineChoice] = {}

    @property
    def choices(self) -> tuple[EngineChoice, ...]:
        """What was measured for each set of fixed shapes."""
        return tuple(self._chosen.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for these arguments; see `OptimizedModel.forward`."""
        if not self._answers or torch.is_autocast_enabled("cpu"):
            return super().forward(*args, **kwargs)
        refuse_tracing(args)
        given, length = (args, kwargs), None
        if self.padding is not None:
            args, kwargs, length = self.padding.apply(args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        answer = self._answers.get(self._key(leaves, spec))
        if answer is None:
            return super().forward(*given[0], **given[1])
        self._state.check()
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        refuse_gradients(tensors)
        outputs = answer.leaves(tensors)
        if length is not None and self.padding is not None:
            outputs = self.padding.cut(outputs, length)
        return answer.nested(outputs)

    def explain(self, *args: Any, repeats: int = 5, **kwargs: Any) -> Explanation:
        """Return what was measured of the engines, and where the time of the plan goes.

        Without arguments, for the shapes that were chosen last. There are no steps if another
        engine than the plan answers.
        """
        key = next(reversed(self._chosen), None)
        if args or kwargs:
            given = (args, kwargs)
            if self.padding is not None:
                given = self.padding.apply(args, kwargs)[:2]
            key = self._key(*pytree.tree_flatten(given))
        choice = None if key is None else self._chosen.get(key)
        if choice is None or key not in self._answers:
            return replace(super().explain(*args, repeats=repeats, **kwargs), choice=choice)
        timed = {one.engine: one.seconds for one in choice.results}
        return Explanation((), timed[self._answers[key].engine] or 0.0, None, choice)

    def save(self, file: Any) -> None:  # noqa: ARG002 - the argument of a plan's
        """Raise TorchError: engines have no file. A plan has one."""
        raise TorchError(
            "save: what other engines make of a model is not written to files; call "
            "optimize(..., engines=...) again, which takes its choices from the store, or save a "
            "plan: optimize without engines"
        )

    def extra_repr(self) -> str:
        """Return what the engines were chosen for, which stands in the text of a model."""
        return "; ".join(f"{one.inputs} by {one.engine}" for one in self.choices)

    def fix_all(self, wanted: Sequence[Inputs]) -> None:
        """Choose an engine for each of the inputs, and build it."""
        model = self._original[0]
        new = {self._key(*one): one for one in wanted}
        new = {key: one for key, one in new.items() if key not in self._fixed}
        if model is not None and new:
            self.check_unchanged(model)
            chosen = choose(model, list(new.values()), self._engines, self.accuracy)
            self._chosen.update(zip(new, chosen, strict=True))
        super().fix_all(wanted)

    def _fix(self, leaves: list[Any], spec: Any) -> None:
        key, model = self._key(leaves, spec), self._original[0]
        if key in self._fixed or model is None:
            super()._fix(leaves, spec)
            return
        while (choice := self._chosen[key]).engine != PLAN:
            try:
                self._answers[key] = self._built(model, (leaves, spec), choice)
            except Exception as error:  # engines fail in any way
                self._chosen[key] = self._without(model, (leaves, spec), choice, error)
                continue
            self._fixed.add(key)
            self._example = self._example or (leaves, spec)
            return
        super()._fix(leaves, spec)

    def _built(self, model: nn.Module, inputs: Inputs, choice: EngineChoice) -> Answer:
        """Return the answer by the chosen engine."""
        name = choice.engine
        engine = next(one for one in self._engines if one.name == name)
        known = next(one.error for one in choice.results if one.engine == name)
        return Answer(engine, model, inputs, self.accuracy, known)

    def _without(
        self, model: nn.Module, inputs: Inputs, choice: EngineChoice, error: Exception
    ) -> EngineChoice:
        """Return another choice: the chosen engine cannot be used in this process.

        What another process measured may hold for other weights, so it is measured again.
        """
        reason = f"{type(error).__name__}: {first_line(error)}"
        warn(
            f"optimize: {choice.engine}, the fastest for {choice.inputs}, cannot be used in this "
            f"process: {reason}; {'all are measured again' if choice.stored else 'it is left out'}"
        )
        if choice.stored:
            return choose(model, [inputs], self._engines, self.accuracy, again=True)[0]
        other = choice.without(choice.engine, reason)
        structure = kept.structure_of(model)
        kept.save(kept.problem_of(model, structure, inputs[0], self.accuracy), other)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModel:
        """Return a copy that shares the engines, too."""
        other = cast(EngineModel, super().__deepcopy__(memo))
        other._engines = self._engines
        other._answers, other._chosen = dict(self._answers), dict(self._chosen)
        return other


def choose(
    model: nn.Module,
    inputs: Sequence[Inputs],
    engines: Sequence[Engine],
    accuracy: Accuracy,
    *,
    again: bool = False,
) -> list[EngineChoice]:
    """Return the choice for each of the inputs: from the store, or measured now, all at once.

    again: measure, whatever the store knows.
    """
    structure = kept.structure_of(model)
    problems = [kept.problem_of(model, structure, leaves, accuracy) for leaves, _ in inputs]
    names = [described(leaves) for leaves, _ in inputs]
    found = [
        None if again else kept.load(problem, name, engines)
        for problem, name in zip(problems, names, strict=True)
    ]
    missing = [place for place, one in enumerate(found) if one is None]
    if missing:
        try:
            measured = measure(model, [inputs[place] for place in missing], engines, accuracy)
        except TorchError as error:
            warn(f"optimize: {error}; the plan answers")
            out = tuple(EngineResult(one.name, one.version, reason=str(error)) for one in engines)
            return [EngineChoice(name, torch.get_num_threads(), out) for name in names]
        for place, results in zip(missing, measured, strict=True):
            choice = EngineChoice(names[place], torch.get_num_threads(), results)
            kept.save(problems[place], choice)
            _tell_out(choice)
            found[place] = choice
    return [cast(EngineChoice, one) for one in found]


def _tell_out(choice: EngineChoice) -> None:
    """Warn of the engines that are out, in a line each."""
    out = [f"{one.engine}: {one.reason}" for one in choice.results if one.reason is not None]
    if out:
        warn(f"optimize: engines that are left out for {choice.inputs}:\n" + "\n".join(out))

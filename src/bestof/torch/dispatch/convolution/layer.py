"""The selectors of convolutions: a group for each layer, below it one for each pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import product
from typing import Any, TypeAlias, get_args

from torch import Tensor

from bestof.selection import Alternative, BestOf, UnlessShared
from bestof.selection.policies.policy import always
from bestof.selection.state.journal import Entry, TrialEntry
from bestof.selection.state.registry import Defaults
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.dispatch.convolution.decisions import INDEPENDENT, JOINT, SHARED, Decisions
from bestof.torch.dispatch.convolution.forward_only import ForwardOnly
from bestof.torch.dispatch.convolution.layer_verifier import LayerVerifier
from bestof.torch.dispatch.convolution.shortcut import Met, Shortcut
from bestof.torch.dispatch.met_modules import met
from bestof.torch.dispatch.override import Override
from bestof.torch.ops.convolution import as_is, im2row, shared_im2row
from bestof.torch.ops.convolution.direction import DIRECTIONS, Direction
from bestof.torch.ops.convolution.kept_matrices import KeptMatrices
from bestof.torch.ops.convolution.neighbourhood import Neighbourhood
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.ops.convolution.whole_layer import computes_jointly, shares_im2row, too_large
from bestof.torch.ops.memory_format import Layout
from bestof.torch.ops.search_settings import PATIENCE, RACE, SEARCHES
from bestof.torch.rows.call_counts import CallCounts
from bestof.torch.rows.offer import asks, is_offered

Mask: TypeAlias = tuple[bool, bool, bool]
Gradients: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]

_REMEMBERED = 4096
_LAYOUTS = get_args(Layout)


class ConvolutionLayer:
    """The selectors of all 2-D convolutions of one device, and what follows from their decisions.

    There is one selector for each pass (forward, input gradient, weight gradient) and one group
    above them. The group chooses for a layer that is trained among three ways: its passes by their
    own selectors, PyTorch's own kernels as a whole, or im2row with the matrix kept between the
    passes. A forward pass without gradients, or of a layer that is inferred although gradients are
    on, asks the selector of the forward pass alone. All calls of the process with equal problems
    share evidence and decision.

    A call first looks up its `Shortcut` by what it looks like: `find_forward`, `find_backward`. The
    shortcut says whether a decided kernel answers it, or the selectors do. It holds until any
    selector decides anew; then all shortcuts are forgotten.
    """

    def __init__(self, parts: tuple[Override, Override, Override]) -> None:
        """parts: of the forward pass, the input gradient and the weight gradient."""
        self.parts = parts
        self.is_chosen: tuple[bool, ...] = (True, True, True)
        first = parts[0].operation
        self._originals = parts[0].original
        self._as_is = first.rows[0].name
        self._version = (*DEPENDS, *first.device.depends())
        self.kept = KeptMatrices()
        self.forward_only = ForwardOnly()
        self._compiled = {row.name: row for row in first.rows if row.compiled is not None}
        self._forward: dict[Hashable, Shortcut | None] = {}
        self._backward: dict[Hashable, Shortcut | None] = {}
        self._alone: dict[Hashable, Shortcut | None] = {}
        self.forget: Callable[[], object] = lambda: None
        """Called after every decision, for what else remembers decisions."""
        self.forward_calls, self.input_gradient_calls, self.weight_gradient_calls = (
            one.calls for one in parts
        )
        self.sharing_calls: CallCounts[LayerProblem] = CallCounts()
        self.layer_calls: CallCounts[LayerProblem] = CallCounts()
        """Of the backward passes, by all ways: each ends a pass through a layer."""
        self.forward_pass, self.input_gradient, self.weight_gradient = (
            one.selector for one in parts
        )
        self.layer = self._group(f"{first.device.prefix}convolution layer")
        self.layer.met = partial(met, self.layer_calls)
        self.decisions = Decisions(
            self._as_is,
            self.layer,
            self.forward_pass,
            self.input_gradient,
            self.weight_gradient,
            self.forward_only,
        )
        for one in parts:
            one.forget = self.drop_shortcuts
            one.decided_above = self._joint_of

    @property
    def passes(self) -> tuple[tuple[BestOf, CallCounts[ConvProblem]], ...]:
        """The selectors of the three passes, each with the calls of the pass by all ways."""
        return tuple((one.selector, one.calls) for one in self.parts)

    def choose_passes(self) -> None:
        """Choose for the passes that are in from now on.

        This outlasts their removal: a call that still runs then must not note that PyTorch answers.
        """
        is_chosen = tuple(one.is_registered for one in self.parts)
        if is_chosen != self.is_chosen:
            self.is_chosen = is_chosen
            self.drop_shortcuts()

    @property
    def is_whole(self) -> bool:
        """Whether all three passes are chosen for: only then are layers."""
        return all(self.is_chosen)

    def catch_up(self) -> None:
        """Hand on journal entries that an interrupt has held back, so that shortcuts are forgotten.

        Without this, calls of a settled problem would ask in Python for ever.
        """
        for selector in (self.forward_pass, self.input_gradient, self.weight_gradient, self.layer):
            selector.journal.deliver()

    def find_forward(self, key: Hashable, recognize: Callable[[], Met | None]) -> Shortcut | None:
        """Return how forward passes with this key are computed, or None if PyTorch computes them.

        `recognize` returns the problem of such a pass. It is called once for each key.
        """
        known = self._forward  # a decision in the meantime replaces this table
        try:
            return known[key]
        except KeyError:
            met = recognize()
        found = None if met is None else self._forward_shortcut(met)
        _remember(known, key, found)
        return found

    def find_backward(
        self, key: Hashable, recognize: Callable[[], tuple[LayerProblem, str, Mask] | None]
    ) -> Shortcut | None:
        """Return the same for backward passes.

        `recognize` returns the layer, the layout of the gradient and which gradients are wanted.
        """
        known = self._backward
        try:
            return known[key]
        except KeyError:
            met = recognize()
        found = None if met is None else self._backward_shortcut(*met)
        _remember(known, key, found)
        return found

    def find_alone(
        self, direction: Direction, key: Hashable, recognize: Callable[[], ConvProblem | None]
    ) -> Shortcut | None:
        """Return the same for one pass without its sisters, as transposed convolutions ask for it.

        `recognize` returns the problem of the pass.
        """
        known, place = self._alone, (direction, key)
        try:
            return known[place]
        except KeyError:
            problem = recognize()
        found, index = None, DIRECTIONS.index(direction)
        if problem is not None and self.is_chosen[index]:
            part = self.parts[index]
            chosen = part.selector.chosen(problem) == self._as_is
            found = Shortcut.of(problem, problem, [part.calls.counter(problem)], chosen)
        _remember(known, place, found)
        return found

    def forward(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Return the output, by PyTorch's own kernel if it was chosen and has its turn."""
        if next(found.turns) and not (isinstance(found.met, LayerProblem) and len(self.kept)):
            return self._forward_as_is(found.problem, input, weight, bias)
        return self.ask_forward(found, input, weight, bias)

    def ask_forward(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Return the output by the selectors."""
        met = found.met
        if isinstance(met, LayerProblem):
            if not self._is_inferred(met, found.is_open):
                return self.layer(0, met, input, weight, bias)  # type: ignore[no-any-return]
            self._drop_kept(met, input)
        next(found.counts[0])  # `_forward_apart` would look it up
        return self.forward_pass(found.problem, input, weight, bias)  # type: ignore[no-any-return]

    def _is_inferred(self, layer: LayerProblem, is_open: bool) -> bool:
        """Return whether no backward pass of a layer is expected, and note its forward pass."""
        if layer in self.forward_only:
            return True
        if is_open and self.forward_only.note_forward(layer):
            self.drop_shortcuts()
        return False

    def forward_unseen(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Return the output of the chosen native kernel; the selectors do not see this call.

        The weights are packed first. The selectors sample one call in ASKED_EVERY, and would take
        this one for a typical call.
        """
        assert found.row is not None
        next(found.counts[0])
        output: Tensor = found.row.function(self._originals, found.problem, input, weight, bias)
        return output

    def backward(
        self, found: Shortcut, grad_output: Tensor, input: Tensor, weight: Tensor, mask: Mask
    ) -> Gradients:
        """Return the gradients, by PyTorch's own kernel if it was chosen and has its turn."""
        if next(found.turns):
            next(found.counts[-1])  # of the layer; the passes are counted below
            return self._jointly(found.problem, grad_output, input, weight, mask)
        return self.ask_backward(found, grad_output, input, weight, mask)

    def ask_backward(
        self, found: Shortcut, grad_output: Tensor, input: Tensor, weight: Tensor, mask: Mask
    ) -> Gradients:
        """Return the gradients by the selectors.

        If other gradients than the layer's are wanted, the group does not see the call. That is so
        if torch.autograd.grad asks for some of them, or if a compiled graph ran the forward pass.
        """
        if self.forward_only.note_backward(found.met):  # type: ignore[arg-type]
            self.drop_shortcuts()
        if not found.is_part:
            next(found.counts[-1])
        layout = found.problem.grad_layout
        run = self._independent_backward if found.is_part else partial(self.layer, 1)
        return run(found.met, grad_output, input, weight, layout, mask)  # type: ignore[arg-type]

    def _listen(self, entry: Entry) -> None:
        if not isinstance(entry, TrialEntry):
            self.forward_only.clear()  # a layer that has been decided is no longer one of them
            self.drop_shortcuts()

    def drop_shortcuts(self) -> None:
        """Look up at their next calls how passes are computed."""
        self._forward, self._backward, self._alone = {}, {}, {}
        self.forget()

    def _forward_shortcut(self, met: Met) -> Shortcut:
        problem = met.convolution if isinstance(met, LayerProblem) else met._replace(frozen=True)
        counts = [self.forward_calls.counter(problem)]
        if isinstance(met, LayerProblem):
            self.layer_calls.counter(met)  # notes the module; the backward pass is counted
        whole, name = self.decisions.forward(met, problem)
        row = self._compiled.get(name)
        if row is None or row.compiled is None or whole != INDEPENDENT:
            chosen = name == self._as_is and whole in (INDEPENDENT, JOINT)
            is_open = self.decisions.is_forward_open(met, problem)
            return Shortcut.of(problem, met, counts, chosen)._replace(is_open=is_open)
        return Shortcut.of(problem, met, counts, False, row.compiled(problem), row)

    def _backward_shortcut(self, layer: LayerProblem, grad_layout: str, mask: Mask) -> Shortcut:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        if mask[:2] != (layer.input, layer.weight):
            return Shortcut.of(problem, layer, [])._replace(is_part=True)
        counts = [self.input_gradient_calls.counter(problem)] if layer.input else []
        counts += [self.weight_gradient_calls.counter(problem)] if layer.weight else []
        counts.append(self.layer_calls.counter(layer))
        chosen = self.decisions.backward_is_joint(layer, problem)
        is_open = self.decisions.is_backward_open(layer, problem)
        return Shortcut.of(problem, layer, counts, chosen)._replace(is_open=is_open)

    def _joint_of(self, problems: Iterable[ConvProblem]) -> set[ConvProblem]:
        joint = self.decisions.joint
        return {one for one in problems if one._replace(bias=False, grad_layout="") in joint}

    def _group(self, name: str) -> BestOf:
        joint = self._joint_forward, self._joint_backward
        independent = self._independent_forward, self._independent_backward
        shared = self._shared_forward, self._shared_backward
        formerly = (
            "bestof:ConvolutionLayer._shared_forward",
            "bestof:ConvolutionLayer._shared_backward",
        )
        made = BestOf(
            name,
            [
                Alternative(JOINT, joint, self._version, supports=self._may_be_joint),
                Alternative(INDEPENDENT, independent, self._version),
                Alternative(
                    SHARED,
                    shared,
                    self._version,
                    supports=self._may_share,
                    formerly=formerly,
                    unpromising=too_large,
                ),
            ],
            lambda layer, *_: layer,
            check=LayerVerifier(SHARED, self._originals),
            on_event=self._listen,
            policy=UnlessShared(RACE),
            neighbours=Neighbourhood[Any](lambda layer: layer.convolution, lambda layer: layer[1:]),
            patience=PATIENCE,
            max_searches=SEARCHES,
        )
        return asks(made)

    def _may_be_joint(self, layer: Any) -> bool:
        return computes_jointly(layer) and not self._has_order(layer)

    def _may_share(self, layer: Any) -> bool:
        return is_offered(SHARED) and shares_im2row(layer) and not self._has_order(layer)

    def _has_order(self, layer: LayerProblem) -> bool:
        """Return whether an order names a row of a pass of a layer. Its passes are apart then.

        PyTorch's own kernels obey `fixed:as is` as a whole, too.
        """
        passes, fixed = [one.selector for one in self.parts], always(Defaults.policy)
        is_fixed = fixed != self._as_is and any(fixed in one.alternative_names for one in passes)
        # Which layout the gradient will have is not known yet: an order for any of them holds.
        forward, gradient = layer.convolution, layer.convolution._replace(bias=False)
        gradients = [gradient._replace(grad_layout=one) for one in _LAYOUTS]
        asked = [(passes[0], forward), *product(passes[1:], gradients)]
        return is_fixed or any(one.ordered(problem) is not None for one, problem in asked)

    def _drop_kept(self, layer: LayerProblem, input: Tensor) -> None:
        """Drop the matrix of an input, which the present forward pass does not make."""
        if len(self.kept):
            self.kept.drop(input, _geometry(layer.convolution))

    def _forward_as_is(
        self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self.forward_calls.count(problem)
        return as_is.forward(self._originals, problem, input, weight, bias)

    def _forward_apart(
        self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self.forward_calls.count(problem)
        return self.forward_pass(problem, input, weight, bias)  # type: ignore[no-any-return]

    def _jointly(
        self,
        problem: ConvProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        mask: Mask,
    ) -> Gradients:
        if mask[0]:
            self.input_gradient_calls.count(problem)
        if mask[1]:
            self.weight_gradient_calls.count(problem)
        return as_is.gradients(self._originals, problem, grad_output, input, weight, mask)

    def _joint_forward(
        self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self._drop_kept(layer, input)
        return self._forward_as_is(layer.convolution, input, weight, bias)

    def _joint_backward(
        self,
        layer: LayerProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: Mask,
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        return self._jointly(problem, grad_output, input, weight, mask)

    def _independent_forward(
        self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self._drop_kept(layer, input)
        return self._forward_apart(layer.convolution, input, weight, bias)

    def _independent_backward(
        self,
        layer: LayerProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: Mask,
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        grad_weight = None
        if mask[1]:
            self.weight_gradient_calls.count(problem)
            grad_weight = self.weight_gradient(problem, grad_output, input)
        return self._gradients(problem, grad_output, weight, grad_weight, mask)

    def _shared_forward(
        self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self.forward_calls.count(layer.convolution)
        output, lowered = shared_im2row.forward(input, weight, bias, layer.convolution)
        self.kept.keep(input, _geometry(layer.convolution), lowered)
        return output

    def _shared_backward(
        self,
        layer: LayerProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: Mask,
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        self.weight_gradient_calls.count(problem)
        self.sharing_calls.count(layer)
        lowered = self.kept.take(input, _geometry(problem))
        if lowered is not None:
            grad_weight = shared_im2row.weight_gradient(lowered, grad_output, problem)
        else:  # this is a second backward pass over the graph, or hooks have replaced the input
            grad_weight = im2row.weight_gradient(self._originals, problem, grad_output, input)
        return self._gradients(problem, grad_output, weight, grad_weight, mask)

    def _gradients(
        self,
        problem: ConvProblem,
        grad_output: Tensor,
        weight: Tensor,
        grad_weight: Tensor | None,
        mask: Mask,
    ) -> Gradients:
        """Return all three: the weight's as given, the input's by its selector, and the bias's."""
        grad_input = None
        if mask[0]:
            self.input_gradient_calls.count(problem)
            grad_input = self.input_gradient(problem, grad_output, weight)
        return grad_input, grad_weight, grad_output.sum((0, 2, 3)) if mask[2] else None


def _remember(
    known: dict[Hashable, Shortcut | None], key: Hashable, found: Shortcut | None
) -> None:
    if len(known) >= _REMEMBERED:  # a program with ever new shapes must not grow
        known.clear()
    known[key] = found


def _geometry(problem: ConvProblem) -> tuple[object, ...]:
    """Return what the lowered matrix depends on beside the input.

    Branches with different dilations may read the same input.
    """
    return (
        problem.weight_shape[2:],
        problem.stride,
        problem.padding,
        problem.dilation,
        problem.groups,
    )

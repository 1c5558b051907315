"""The selectors of convolutions: a group for each layer, below it one for each pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from bestof.selection import BestOf
from bestof.selection.state.journal import DecisionEntry, Entry, TrialEntry
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.backends.device import CPU, Device
from bestof.torch.convolution import as_is, im2row, shared_im2row
from bestof.torch.convolution.catalogue import CATALOGUES_OF, FORWARD
from bestof.torch.convolution.decisions import INDEPENDENT, JOINT, SHARED, Decisions
from bestof.torch.convolution.estimate import operand_bytes
from bestof.torch.convolution.group import computes_jointly, shares_im2row
from bestof.torch.convolution.kept_matrices import KeptMatrices
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.convolution.row import DIRECTIONS, Direction
from bestof.torch.convolution.selectors import Way, group_selector, pass_selector
from bestof.torch.convolution.shortcut import Met, Shortcut
from bestof.torch.convolution.verifier import LayerVerifier
from bestof.torch.dispatch.call_counts import CallCounts
from bestof.torch.dispatch.met_modules import met
from bestof.torch.process.allocator import hand_back_unused

AS_IS = FORWARD.alternatives[0].name
# From this size of the operands on, what trials have freed is returned to the system once a pass is
# decided. Freed pieces seldom fit the next ones exactly, so copies of several alternatives lie side
# by side: on 32 channels of 900 x 900 numbers, 300 MiB more than the winner needs.
_LARGE_BYTES = 64 * 2**20

Mask: TypeAlias = tuple[bool, bool, bool]
Gradients: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]

_REMEMBERED = 4096


class ConvolutionLayer:
    """The selectors of all 2-D convolutions of one device, and what follows from their decisions.

    There is one selector for each pass (forward, input gradient, weight gradient) and one group
    above them. The group chooses for a layer that is trained among three ways: its passes by their
    own selectors, PyTorch's own kernels as a whole, or im2row with the matrix kept between the
    passes. A forward pass without gradients asks the selector of the forward pass alone. All calls
    of the process with equal problems share evidence and decision.

    A call first looks up its `Shortcut` by what it looks like: `find_forward`, `find_backward`. The
    shortcut says whether a decided kernel answers it, or the selectors do. It holds until any
    selector decides anew; then all shortcuts are forgotten.
    """

    def __init__(self, originals: Originals, device: Device = CPU) -> None:
        self._originals = originals
        self._version = (*DEPENDS, *device.depends())
        self.kept = KeptMatrices()
        catalogues = CATALOGUES_OF[device.selectors]
        rows = catalogues[0].alternatives
        self._compiled = {row.name: row for row in rows if row.compiled is not None}
        self._forward: dict[Hashable, Shortcut | None] = {}
        self._backward: dict[Hashable, Shortcut | None] = {}
        self._alone: dict[Hashable, Shortcut | None] = {}
        self.forget: Callable[[], object] = lambda: None
        """Called after every decision, for what else remembers decisions."""
        self.forward_calls: CallCounts[ConvProblem] = CallCounts()
        self.input_gradient_calls: CallCounts[ConvProblem] = CallCounts()
        self.weight_gradient_calls: CallCounts[ConvProblem] = CallCounts()
        self.sharing_calls: CallCounts[LayerProblem] = CallCounts()
        passes = [
            pass_selector(
                f"{device.selectors} {catalogue.direction}",
                catalogue,
                originals,
                self._version,
                device.timer,
                _after_trials(self._listen),
            )
            for catalogue in catalogues
        ]
        self.forward_pass, self.input_gradient, self.weight_gradient = passes
        for selector, counts in self.passes:
            selector.met = partial(met, counts)
        self.layer = self._group(f"{device.selectors} layer")
        self.decisions = Decisions(AS_IS, self.layer, *passes)

    @property
    def passes(self) -> tuple[tuple[BestOf, CallCounts[ConvProblem]], ...]:
        """The selectors of the three passes, each with the calls of the pass by all ways."""
        return (
            (self.forward_pass, self.forward_calls),
            (self.input_gradient, self.input_gradient_calls),
            (self.weight_gradient, self.weight_gradient_calls),
        )

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
        found = None
        if problem is not None:
            selector, calls = self.passes[DIRECTIONS.index(direction)]
            chosen = selector.chosen(problem) == AS_IS
            found = Shortcut.of(problem, problem, [calls.counter(problem)], chosen)
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
        if isinstance(found.met, LayerProblem):
            return self.layer(0, found.met, input, weight, bias)  # type: ignore[no-any-return]
        next(found.counts[0])  # `_forward_apart` would look it up
        return self.forward_pass(found.problem, input, weight, bias)  # type: ignore[no-any-return]

    def forward_unseen(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Return the output of the chosen native kernel; the selectors do not see this call.

        The weights are packed first. The selectors sample one call in ASKED_EVERY, and would take
        this one for a typical call.
        """
        assert found.by_python is not None
        next(found.counts[0])
        return found.by_python(input, weight, bias, found.problem)

    def backward(
        self, found: Shortcut, grad_output: Tensor, input: Tensor, weight: Tensor, mask: Mask
    ) -> Gradients:
        """Return the gradients, by PyTorch's own kernel if it was chosen and has its turn."""
        if next(found.turns):
            return self._jointly(found.problem, grad_output, input, weight, mask)
        return self.ask_backward(found, grad_output, input, weight, mask)

    def ask_backward(
        self, found: Shortcut, grad_output: Tensor, input: Tensor, weight: Tensor, mask: Mask
    ) -> Gradients:
        """Return the gradients by the selectors.

        If other gradients than the layer's are wanted, the group does not see the call. That is so
        if torch.autograd.grad asks for some of them, or if a compiled graph ran the forward pass.
        """
        layout = found.problem.grad_layout
        run = self._independent_backward if found.is_part else partial(self.layer, 1)
        return run(found.met, grad_output, input, weight, layout, mask)  # type: ignore[arg-type]

    def _listen(self, entry: Entry) -> None:
        if not isinstance(entry, TrialEntry):
            self._forget()

    def _forget(self) -> None:
        self._forward, self._backward, self._alone = {}, {}, {}
        self.forget()

    def _forward_shortcut(self, met: Met) -> Shortcut:
        problem = met.convolution if isinstance(met, LayerProblem) else met._replace(frozen=True)
        counts = [self.forward_calls.counter(problem)]
        whole, name = self.decisions.forward(met, problem)
        row = self._compiled.get(name)
        if row is None or row.compiled is None or whole != INDEPENDENT:
            chosen = name == AS_IS and whole in (INDEPENDENT, JOINT)
            return Shortcut.of(problem, met, counts, chosen)
        by_python = partial(row.function, self._originals)
        return Shortcut.of(problem, met, counts, False, row.compiled(problem), by_python, name)

    def _backward_shortcut(self, layer: LayerProblem, grad_layout: str, mask: Mask) -> Shortcut:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        if mask[:2] != (layer.input, layer.weight):
            return Shortcut.of(problem, layer, [])._replace(is_part=True)
        counts = [self.input_gradient_calls.counter(problem)] if layer.input else []
        counts += [self.weight_gradient_calls.counter(problem)] if layer.weight else []
        chosen = self.decisions.backward_is_joint(layer, problem)
        return Shortcut.of(problem, layer, counts, chosen)

    def _group(self, name: str) -> BestOf:
        rows: tuple[Way, ...] = (
            (JOINT, [self._joint_forward, self._joint_backward], computes_jointly),
            (INDEPENDENT, [self._independent_forward, self._independent_backward], None),
            (SHARED, [self._shared_forward, self._shared_backward], shares_im2row),
        )
        verifier = LayerVerifier(SHARED, self._originals)
        return group_selector(name, rows, self._version, verifier, self._listen)

    def _drop_kept(self, layer: LayerProblem, input: Tensor) -> None:
        """Drop the matrix of an input, which the present forward pass does not make."""
        if len(self.kept):
            self.kept.drop(input, _geometry(layer.convolution))

    def _forward_as_is(
        self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self.forward_calls.count(problem)
        return as_is.forward(self._originals, input, weight, bias, problem)

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
        return as_is.gradients(self._originals, grad_output, input, weight, problem, mask)

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
            grad_weight = im2row.weight_gradient(self._originals, grad_output, input, problem)
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


def _after_trials(note: Callable[[Entry], None]) -> Callable[[Entry], None]:
    """Return a listener that notes entries, and returns the memory of trials after decisions."""

    def listen(entry: Entry) -> None:
        note(entry)
        if isinstance(entry, DecisionEntry) and entry.source == "measured":
            problem: Any = entry.problem
            if not problem.device and operand_bytes(problem) >= _LARGE_BYTES:
                hand_back_unused()

    return listen


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

"""What is chosen for a convolution: a group per layer, and below it a selection for each of the three passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import cycle, repeat
from typing import Any, NamedTuple

from torch import Tensor

from bestof.selection import Alternative, BestOf, Race, shared_policy
from bestof.selection.journal import DecisionEntry, Entry, TrialEntry
from bestof.torch.accuracy import allows
from bestof.torch.convolution import estimate, im2row, shared_im2row
from bestof.torch.convolution.call_counts import CallCounts
from bestof.torch.convolution.catalogue import CATALOGUES, FORWARD, WEIGHT_GRADIENT, Catalogue
from bestof.torch.convolution.kept_matrices import KeptMatrices
from bestof.torch.convolution.lowered import matrix_bytes
from bestof.torch.convolution.neighbourhood import Neighbourhood
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.depends import DEPENDS
from bestof.torch.device import CPU, Device

AS_IS = FORWARD.alternatives[0].name
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

JOINT = "joint"
"""PyTorch as is, whose backward kernel computes both gradients in one call."""
INDEPENDENT = "independent"
SHARED = "shared im2row"

# A group is judged once its passes are settled, and these have a dozen alternatives: races that separate near-ties for
# 60 rounds would go on for hundreds of steps, to win 2 %. Simulated on VGG16's times, a race at 0.999 over 12 rounds
# costs 5.2 settled steps, this one 3.3, and either ends at the best but for less than 0.1 %; drift reopens the rest.
_POLICY = Race(tie=0.03, confidence=0.97, max_trials=8)
# The last, smaller batch of an epoch meets each layer once, or three times where three layers are alike: so many calls
# of a size that is new take the decision of its neighbour, before a short race verifies it.
_PATIENCE = 24
# The lowered matrix is R S times the input, and is kept for every layer of a step.
_KEPT_BYTES = 256 * 2**20


# A pass that PyTorch as is won asks the selectors once in so many calls, so that they go on seeing how long it takes.
_ASKED_EVERY = 32
_REMEMBERED = 4096


class Shortcut(NamedTuple):
    """A pass that PyTorch's own kernel computes, without asking the selectors, whenever `turns` gives true; `counts`
    are to be told of it then. `chosen`: whether it ever does. `met`: what was looked up."""

    problem: ConvProblem
    turns: Iterator[bool]
    counts: tuple[Iterator[None], ...]
    chosen: bool
    met: ConvProblem | LayerProblem


def _turns(chosen: bool) -> Iterator[bool]:
    return cycle((*repeat(True, _ASKED_EVERY - 1), False)) if chosen else repeat(False)


class LayerProblem(NamedTuple):
    """A convolution that will be differentiated: by its input, by its weight, or by both."""

    convolution: ConvProblem
    input: bool
    weight: bool

    def canonical(self) -> str:
        """Canonical text, for the store."""
        wanted = [name for name, is_wanted in (("x", self.input), ("w", self.weight)) if is_wanted]
        return f"{self.convolution.canonical()} gradients={'+'.join(wanted) or 'none'}"


class ConvolutionLayer:
    """The selectors of 2-D convolution for the whole process: layers with equal problems share what is found out."""

    def __init__(self, originals: Originals, device: Device = CPU) -> None:
        self._originals = originals
        self._device = device
        self._version = (*DEPENDS, *device.depends())
        self.kept = KeptMatrices()
        self._decided: dict[tuple[str, Hashable], str] = {}
        self._as_is: dict[ConvProblem | LayerProblem, Shortcut] = {}
        self._joint: dict[tuple[LayerProblem, str], Shortcut] = {}
        # The same for whoever knows a call by what it looks like; emptied with every decision.
        self.direct: dict[Hashable, Shortcut] = {}
        self.forward_calls: CallCounts[ConvProblem] = CallCounts()
        self.input_gradient_calls: CallCounts[ConvProblem] = CallCounts()
        self.weight_gradient_calls: CallCounts[ConvProblem] = CallCounts()
        self.sharing_calls: CallCounts[LayerProblem] = CallCounts()
        self.forward_pass, self.input_gradient, self.weight_gradient = map(self._selector, device.catalogues)
        name, version = f"{device.selectors} layer", self._version
        self.layer = BestOf(
            name,
            [
                Alternative(JOINT, [self._joint_forward, self._joint_backward], version, supports=_computes_jointly),
                Alternative(INDEPENDENT, [self._independent_forward, self._independent_backward], version),
                Alternative(SHARED, [self._shared_forward, self._shared_backward], version, supports=_shares_im2row),
            ],
            lambda layer, *_: layer,
            on_event=self._listener(name),
            **_search(Neighbourhood(lambda layer: layer.convolution, lambda layer: layer[1:])),
        )

    @property
    def passes(self) -> tuple[tuple[BestOf, CallCounts[ConvProblem]], ...]:
        """The selectors of the three passes, each with how often the pass was computed, whichever way."""
        return (
            (self.forward_pass, self.forward_calls),
            (self.input_gradient, self.input_gradient_calls),
            (self.weight_gradient, self.weight_gradient_calls),
        )

    def infer(self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A forward pass that no backward pass will follow."""
        found = self.find_forward(problem)
        if next(found.turns):
            return self._forward_as_is(found.problem, input, weight, bias)
        return self.ask_forward(found, input, weight, bias)

    def forward(self, problem: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The forward pass of a training step."""
        found = self.find_forward(problem)
        if next(found.turns) and not len(self.kept):
            return self._forward_as_is(found.problem, input, weight, bias)
        return self.ask_forward(found, input, weight, bias)

    def find_forward(self, met: ConvProblem | LayerProblem) -> Shortcut:
        """How a forward pass is computed at present."""
        return self._as_is.get(met) or self._find_as_is(met)

    def ask_forward(self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A forward pass by the selectors."""
        if isinstance(found.met, LayerProblem):
            return self.layer(0, found.met, input, weight, bias)  # type: ignore[no-any-return]
        return self._forward(found.problem, input, weight, bias)

    def backward(
        self,
        problem: ConvProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        """The gradients of input, weight and bias that the mask asks for; None for the others.

        `problem` is that of the forward pass, `grad_layout` the layout of `grad_output`.
        """
        layer = LayerProblem(problem, input.requires_grad, weight.requires_grad)
        if mask[:2] == layer[1:]:
            found = self.find_backward(layer, grad_layout)
            if next(found.turns):
                return self._jointly(found.problem, grad_output, input, weight, mask)
            return self.ask_backward(found, grad_output, input, weight, mask)
        # Part of a backward pass (torch.autograd.grad) says nothing about the whole, and a compiled graph's forward
        # pass was none of the group's.
        return self._independent_backward(layer, grad_output, input, weight, grad_layout, mask)

    def find_backward(self, layer: LayerProblem, grad_layout: str) -> Shortcut:
        """How the whole of a backward pass is computed at present."""
        return self._joint.get((layer, grad_layout)) or self._find_joint(layer, grad_layout)

    def ask_backward(
        self, found: Shortcut, grad_output: Tensor, input: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
    ) -> Gradients:
        """The whole of a backward pass by the selectors."""
        grad_layout = found.problem.grad_layout
        return self.layer(1, found.met, grad_output, input, weight, grad_layout, mask)  # type: ignore[no-any-return]

    def _find_as_is(self, met: ConvProblem | LayerProblem) -> Shortcut:
        """Whether PyTorch as is was chosen for a forward pass, and for a layer that its passes are independent."""
        problem = met.convolution if isinstance(met, LayerProblem) else met._replace(frozen=True)
        chosen = self._decided.get((self.forward_pass.name, problem)) == AS_IS
        if isinstance(met, LayerProblem):
            whole = self._decided.get((self.layer.name, met))
            chosen = whole == JOINT or (chosen and whole == INDEPENDENT)
        found = Shortcut(problem, _turns(chosen), (self.forward_calls.counter(problem),), chosen, met)
        if len(self._as_is) >= _REMEMBERED:
            self._as_is = {}
        self._as_is[met] = found
        return found

    def _find_joint(self, layer: LayerProblem, grad_layout: str) -> Shortcut:
        """Whether PyTorch as is was chosen for all that this backward pass computes: one call of its kernel then."""
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        whole = self._decided.get((self.layer.name, layer))
        chosen = whole == JOINT or (
            whole == INDEPENDENT
            and (not layer.input or self._decided.get((self.input_gradient.name, problem)) == AS_IS)
            and (not layer.weight or self._decided.get((self.weight_gradient.name, problem)) == AS_IS)
        )
        counts = [self.input_gradient_calls.counter(problem)] if layer.input else []
        counts += [self.weight_gradient_calls.counter(problem)] if layer.weight else []
        found = Shortcut(problem, _turns(chosen), tuple(counts), chosen, layer)
        if len(self._joint) >= _REMEMBERED:
            self._joint = {}
        self._joint[layer, grad_layout] = found
        return found

    def _forward_as_is(self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.forward_calls.count(problem)
        return self._originals.convolution(  # type: ignore[no-any-return]
            input, weight, bias, problem.stride, problem.padding, problem.dilation, False, (0, 0), problem.groups
        )

    def _jointly(
        self,
        problem: ConvProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        if mask[0]:
            self.input_gradient_calls.count(problem)
        if mask[1]:
            self.weight_gradient_calls.count(problem)
        return self._originals.convolution_backward(  # type: ignore[no-any-return]
            grad_output,
            input,
            weight,
            problem.weight_shape[:1],
            problem.stride,
            problem.padding,
            problem.dilation,
            False,
            (0, 0),
            problem.groups,
            mask,
        )

    @property
    def joint(self) -> set[ConvProblem]:
        """The convolutions, bias aside, that PyTorch as is was chosen for as a whole, whatever won their passes."""
        return {
            problem.convolution._replace(bias=False)  # type: ignore[attr-defined]
            for (name, problem), chosen in list(self._decided.items())
            if name == self.layer.name and chosen == JOINT
        }

    def _listener(self, name: str) -> Callable[[Entry], None]:
        """Takes note of what is decided, and of what no longer is."""

        def listen(entry: Entry) -> None:
            if isinstance(entry, TrialEntry):
                return
            if isinstance(entry, DecisionEntry):
                self._decided[name, entry.problem] = entry.alternative
            else:
                self._decided.pop((name, entry.problem), None)
            if len(self._decided) > 16 * _REMEMBERED:
                self._decided = {}
            self._as_is, self._joint, self.direct = {}, {}, {}

        return listen

    def _selector(self, catalogue: Catalogue) -> BestOf:
        originals = self._originals

        def bind(function: object) -> object:
            return lambda problem, *tensors: function(originals, *tensors, problem)  # type: ignore[operator]

        def promising(name: str) -> Callable[[Any], bool]:
            return lambda problem: name in catalogue.promising(problem)

        name = f"{self._device.selectors} {catalogue.direction}"
        return BestOf(
            name,
            [
                Alternative(row.name, bind(row.function), self._version, supports=promising(row.name))  # type: ignore[arg-type]
                for row in catalogue.alternatives
            ],
            lambda problem, *_: problem,
            on_event=self._listener(name),
            timer=self._device.timer,
            **_search(Neighbourhood(lambda problem: problem)),
        )

    def _joint_forward(self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._forward_as_is(layer.convolution, input, weight, bias)

    def _joint_backward(
        self,
        layer: LayerProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        return self._jointly(problem, grad_output, input, weight, mask)

    def _independent_forward(self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if len(self.kept):
            self.kept.drop(input, _geometry(layer.convolution))
        return self._forward(layer.convolution, input, weight, bias)

    def _forward(self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.forward_calls.count(problem)
        return self.forward_pass(problem, input, weight, bias)  # type: ignore[no-any-return]

    def _independent_backward(
        self,
        layer: LayerProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        grad_weight = None
        if mask[1]:
            self.weight_gradient_calls.count(problem)
            grad_weight = self.weight_gradient(problem, grad_output, input)
        return self._grad_input(problem, grad_output, weight, mask), grad_weight, _grad_bias(grad_output, mask)

    def _shared_forward(self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
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
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        self.weight_gradient_calls.count(problem)
        self.sharing_calls.count(layer)
        lowered = self.kept.take(input, _geometry(problem))
        if lowered is not None:
            grad_weight = shared_im2row.weight_gradient(lowered, grad_output, problem)
        else:  # a second backward pass over the same graph, or hooks have replaced the input
            grad_weight = im2row.weight_gradient(self._originals, grad_output, input, problem)
        return self._grad_input(problem, grad_output, weight, mask), grad_weight, _grad_bias(grad_output, mask)

    def _grad_input(
        self, problem: ConvProblem, grad_output: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
    ) -> Tensor | None:
        if not mask[0]:
            return None
        self.input_gradient_calls.count(problem)
        return self.input_gradient(problem, grad_output, weight)  # type: ignore[no-any-return]


def _search(neighbourhood: Neighbourhood[Any]) -> dict[str, Any]:
    """How a selector searches: by the policy for the whole process, which need not fit every selector, or a race."""
    return {"policy": None if shared_policy() else _POLICY, "neighbours": neighbourhood, "patience": _PATIENCE}


def _grad_bias(grad_output: Tensor, mask: tuple[bool, bool, bool]) -> Tensor | None:
    return grad_output.sum((0, 2, 3)) if mask[2] else None


def _geometry(problem: ConvProblem) -> tuple[object, ...]:
    """What the lowered matrix depends on beside the input: branches with other dilations may read the same one."""
    return problem.weight_shape[2:], problem.stride, problem.padding, problem.dilation, problem.groups


def _computes_jointly(layer: object) -> bool:
    """Where both gradients are wanted, and the passes can win little, one by one: what they have in common then tells.

    Such are bfloat16 tensors, whose arithmetic takes so little: passes that won by 3 to 8 % each made training of
    ResNet18 5 % slower as a whole. And float32 layers with nothing estimated to be far ahead of PyTorch as is, as those
    of ResNet34 on 64x64 images: what won its passes in races, between others' conversions, made training 8 % slower.
    """
    assert isinstance(layer, LayerProblem)
    problem = layer.convolution
    if problem.device or not (layer.input and layer.weight):
        return False
    if problem.dtype == "bfloat16":
        return True
    as_is = sum(catalogue.as_is(problem) for catalogue in CATALOGUES)
    return as_is <= estimate.JOINT_MARGIN * sum(catalogue.cheapest(problem) for catalogue in CATALOGUES)


def _shares_im2row(layer: object) -> bool:
    assert isinstance(layer, LayerProblem)
    problem = layer.convolution
    if problem.device or not layer.weight or matrix_bytes(problem) > _KEPT_BYTES or not shared_im2row.supports(problem):
        return False
    if not allows(problem.accuracy, "float32"):
        return False
    shared, apart = estimate.shared_matrix(problem), FORWARD.cheapest(problem) + WEIGHT_GRADIENT.cheapest(problem)
    return shared <= max(estimate.SHARING_MARGIN * apart, 2 * estimate.SMALL)

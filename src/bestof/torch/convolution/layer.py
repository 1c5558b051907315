"""What is chosen for a convolution: a group per layer, and below it a selection for each of the three passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

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
from bestof.torch.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.convolution.shortcut import Shortcut
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
# Seconds that a call of an alternative costs around it, by Python, where trials do not see them: 24 to 40 microseconds
# among the layers of MobileNetV2, which have driven it out of the caches. What is called without Python, once it has
# won, takes 2 to 6, and has its own code in the caches then: PyTorch as is took 272 in trials and 157 once settled.
_BY_PYTHON = 40e-6
# The last, smaller batch of an epoch meets each layer once, or three times where three layers are alike: so many calls
# of a size that is new take the decision of its neighbour, before a short race verifies it.
PATIENCE = 24
# The lowered matrix is R S times the input, and is kept for every layer of a step.
_KEPT_BYTES = 256 * 2**20

_REMEMBERED = 4096


class ConvolutionLayer:
    """The selectors of 2-D convolution for the whole process: layers with equal problems share what is found out."""

    def __init__(self, originals: Originals, device: Device = CPU) -> None:
        self._originals = originals
        self._device = device
        self._version = (*DEPENDS, *device.depends())
        self.kept = KeptMatrices()
        rows = device.catalogues[0].alternatives
        self._compiled = {row.name: row for row in rows if row.compiled is not None}
        self._decided: dict[tuple[str, Hashable], str] = {}
        self._known_forward: dict[ConvProblem | LayerProblem, Shortcut] = {}
        self._known_backward: dict[tuple[LayerProblem, str], Shortcut] = {}
        # For who remembers shortcuts beside these: called after every decision, for one may have fallen.
        self.forget: Callable[[], object] = lambda: None
        self.forward_calls: CallCounts[ConvProblem] = CallCounts()
        self.input_gradient_calls: CallCounts[ConvProblem] = CallCounts()
        self.weight_gradient_calls: CallCounts[ConvProblem] = CallCounts()
        self.sharing_calls: CallCounts[LayerProblem] = CallCounts()
        self.forward_pass, self.input_gradient, self.weight_gradient = map(
            self._selector, device.catalogues
        )
        name, version = f"{device.selectors} layer", self._version
        self.layer = BestOf(
            name,
            [
                Alternative(
                    JOINT,
                    [self._joint_forward, self._joint_backward],
                    version,
                    supports=_computes_jointly,
                ),
                Alternative(
                    INDEPENDENT, [self._independent_forward, self._independent_backward], version
                ),
                Alternative(
                    SHARED,
                    [self._shared_forward, self._shared_backward],
                    version,
                    supports=_shares_im2row,
                ),
            ],
            lambda layer, *_: layer,
            on_event=self._listener(name),
            **_search(
                Neighbourhood(lambda layer: layer.convolution, lambda layer: layer[1:]), _POLICY
            ),
        )

    @property
    def passes(self) -> tuple[tuple[BestOf, CallCounts[ConvProblem]], ...]:
        """The selectors of the three passes, each with how often the pass was computed, whichever way."""
        return (
            (self.forward_pass, self.forward_calls),
            (self.input_gradient, self.input_gradient_calls),
            (self.weight_gradient, self.weight_gradient_calls),
        )

    def find_forward(self, met: ConvProblem | LayerProblem) -> Shortcut:
        """How a forward pass is computed at present."""
        return self._known_forward.get(met) or self._know_forward(met)

    def forward(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """A forward pass, by PyTorch as is where that was chosen, but for a turn now and then."""
        if next(found.turns) and not (isinstance(found.met, LayerProblem) and len(self.kept)):
            return self._forward_as_is(found.problem, input, weight, bias)
        return self.ask_forward(found, input, weight, bias)

    def ask_forward(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """A forward pass by the selectors."""
        if isinstance(found.met, LayerProblem):
            return self.layer(0, found.met, input, weight, bias)  # type: ignore[no-any-return]
        return self._forward(found.problem, input, weight, bias)

    def forward_unseen(
        self, found: Shortcut, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """A forward pass by the kernel of ours that was chosen, which the selectors do not see: they see one call in so
        many, and would take this one, whose weights are packed first, for what all of them take."""
        assert found.by_python is not None
        self.forward_calls.count(found.problem)
        return found.by_python(input, weight, bias, found.problem)

    def find_backward(self, layer: LayerProblem, grad_layout: str) -> Shortcut:
        """How the whole of a backward pass is computed at present."""
        return self._known_backward.get((layer, grad_layout)) or self._know_backward(
            layer, grad_layout
        )

    def backward(
        self,
        found: Shortcut,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        """The whole of a backward pass, by PyTorch as is where that was chosen, but for a turn now and then."""
        if next(found.turns):
            return self._jointly(found.problem, grad_output, input, weight, mask)
        return self.ask_backward(found, grad_output, input, weight, mask)

    def ask_backward(
        self,
        found: Shortcut,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        """The whole of a backward pass by the selectors."""
        grad_layout = found.problem.grad_layout
        return self.layer(1, found.met, grad_output, input, weight, grad_layout, mask)  # type: ignore[no-any-return]

    def part_of_backward(
        self,
        layer: LayerProblem,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        grad_layout: str,
        mask: tuple[bool, bool, bool],
    ) -> Gradients:
        """Other gradients than the layer's: torch.autograd.grad for some of them says nothing about the whole, and a
        compiled graph's forward pass was none of the group's."""
        return self._independent_backward(layer, grad_output, input, weight, grad_layout, mask)

    def _know_forward(self, met: ConvProblem | LayerProblem) -> Shortcut:
        """What was chosen for a forward pass, and for a layer whether its passes are independent."""
        known = self._known_forward  # a decision meanwhile puts another one there
        problem = met.convolution if isinstance(met, LayerProblem) else met._replace(frozen=True)
        name = self._decided.get((self.forward_pass.name, problem), "")
        whole = (
            self._decided.get((self.layer.name, met))
            if isinstance(met, LayerProblem)
            else INDEPENDENT
        )
        chosen = whole == JOINT or (name == AS_IS and whole == INDEPENDENT)
        counts, row = [self.forward_calls.counter(problem)], self._compiled.get(name)
        if row is None or row.compiled is None or whole != INDEPENDENT:
            found = Shortcut.of(problem, counts, chosen, met)
        else:
            found = Shortcut.of(
                problem,
                counts,
                chosen,
                met,
                row.compiled(problem),
                partial(row.function, self._originals),
            )
        if len(known) >= _REMEMBERED:
            known.clear()
        known[met] = found
        return found

    def _know_backward(self, layer: LayerProblem, grad_layout: str) -> Shortcut:
        """Whether PyTorch as is was chosen for all that this backward pass computes: one call of its kernel then."""
        known = self._known_backward
        problem = layer.convolution._replace(bias=False, grad_layout=grad_layout)
        whole = self._decided.get((self.layer.name, layer))
        chosen = whole == JOINT or (
            whole == INDEPENDENT
            and (not layer.input or self._decided.get((self.input_gradient.name, problem)) == AS_IS)
            and (
                not layer.weight or self._decided.get((self.weight_gradient.name, problem)) == AS_IS
            )
        )
        counts = [self.input_gradient_calls.counter(problem)] if layer.input else []
        counts += [self.weight_gradient_calls.counter(problem)] if layer.weight else []
        found = Shortcut.of(problem, counts, chosen, layer)
        if len(known) >= _REMEMBERED:
            known.clear()
        known[layer, grad_layout] = found
        return found

    def _forward_as_is(
        self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        self.forward_calls.count(problem)
        return self._originals.convolution(  # type: ignore[no-any-return]
            input,
            weight,
            bias,
            problem.stride,
            problem.padding,
            problem.dilation,
            False,
            (0, 0),
            problem.groups,
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
            self._known_forward, self._known_backward = {}, {}
            self.forget()

        return listen

    def _selector(self, catalogue: Catalogue) -> BestOf:
        originals = self._originals

        def bind(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda problem, *tensors: function(originals, *tensors, problem)

        def promising(name: str) -> Callable[[Any], bool]:
            return lambda problem: name in catalogue.promising(problem)

        name = f"{self._device.selectors} {catalogue.direction}"
        return BestOf(
            name,
            [
                Alternative(
                    row.name, bind(row.function), self._version, supports=promising(row.name)
                )
                for row in catalogue.alternatives
            ],
            lambda problem, *_: problem,
            on_event=self._listener(name),
            timer=self._device.timer,
            **_search(Neighbourhood(lambda problem: problem), self._pass_policy(catalogue)),
        )

    def _pass_policy(self, catalogue: Catalogue) -> Race:
        if (
            self._device.timer is not None
        ):  # what Python takes is hidden behind what the device still has to do
            return _POLICY
        by_python = [
            row.name for row in catalogue.alternatives if row.name != AS_IS and row.compiled is None
        ]
        return replace(_POLICY, handicaps=tuple((name, _BY_PYTHON) for name in by_python))

    def _joint_forward(
        self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
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

    def _independent_forward(
        self, layer: LayerProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        if len(self.kept):
            self.kept.drop(input, _geometry(layer.convolution))
        return self._forward(layer.convolution, input, weight, bias)

    def _forward(
        self, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
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
        return (
            self._grad_input(problem, grad_output, weight, mask),
            grad_weight,
            _grad_bias(grad_output, mask),
        )

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
        return (
            self._grad_input(problem, grad_output, weight, mask),
            grad_weight,
            _grad_bias(grad_output, mask),
        )

    def _grad_input(
        self,
        problem: ConvProblem,
        grad_output: Tensor,
        weight: Tensor,
        mask: tuple[bool, bool, bool],
    ) -> Tensor | None:
        if not mask[0]:
            return None
        self.input_gradient_calls.count(problem)
        return self.input_gradient(problem, grad_output, weight)  # type: ignore[no-any-return]


def _search(neighbourhood: Neighbourhood[Any], policy: Race) -> dict[str, Any]:
    """How a selector searches: by the policy for the whole process, which need not fit every selector, or this race."""
    return {
        "policy": None if shared_policy() else policy,
        "neighbours": neighbourhood,
        "patience": PATIENCE,
    }


def _grad_bias(grad_output: Tensor, mask: tuple[bool, bool, bool]) -> Tensor | None:
    return grad_output.sum((0, 2, 3)) if mask[2] else None


def _geometry(problem: ConvProblem) -> tuple[object, ...]:
    """What the lowered matrix depends on beside the input: branches with other dilations may read the same one."""
    return (
        problem.weight_shape[2:],
        problem.stride,
        problem.padding,
        problem.dilation,
        problem.groups,
    )


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
    return as_is <= estimate.JOINT_MARGIN * sum(
        catalogue.cheapest(problem) for catalogue in CATALOGUES
    )


def _shares_im2row(layer: object) -> bool:
    assert isinstance(layer, LayerProblem)
    problem = layer.convolution
    if (
        problem.device
        or not layer.weight
        or matrix_bytes(problem) > _KEPT_BYTES
        or not shared_im2row.supports(problem)
    ):
        return False
    if not allows(problem.accuracy, "float32"):
        return False
    shared, apart = (
        shared_im2row.estimate(problem),
        FORWARD.cheapest(problem) + WEIGHT_GRADIENT.cheapest(problem),
    )
    return shared <= max(estimate.SHARING_MARGIN * apart, 2 * estimate.SMALL)

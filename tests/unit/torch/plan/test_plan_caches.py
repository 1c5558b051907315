"""Keys and values of earlier tokens, as inputs and outputs of a plan; and lengths that change."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.operations.attention import Attention
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.optimized import OptimizedModel

LENGTH = 12
TOKENS = torch.linspace(-3, 3, LENGTH * 24).sin().reshape(1, LENGTH, 24)


class Decoder(nn.Module):
    """A layer of attention, 4 heads of 6, that reads and returns its keys and values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 24)
        self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 12), nn.Linear(24, 12)

    def heads(self, x: Tensor) -> list[Tensor]:
        normed = self.norm(x)
        return [
            layer(normed).view(*x.shape[:2], -1, 6).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        ]

    def attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        found: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return found

    def whole(self, x: Tensor) -> Tensor:
        """Return the results of all tokens at once: what the decoders below must agree with."""
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + self.attended(*self.heads(x), mask)


class Fixed(Decoder):
    """The cache has places for all tokens, and the step says which one is new."""

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor], position: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.heads(x)
        keys, values = (
            cached.index_copy(2, position, new) for cached, new in zip(cache, (k, v), strict=True)
        )
        mask = torch.arange(LENGTH)[None, :] <= position[:, None]
        return x + self.attended(q, keys, values, mask), (keys, values)


class Updated(Decoder):
    """The cache has places for all tokens, and the step writes the new one to it."""

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor], position: Tensor) -> Tensor:
        q, *new = self.heads(x)
        keys, values = cache
        keys.index_copy_(2, position, new[0])
        values[:, :, position] = new[1]
        mask = torch.arange(LENGTH)[None, :] <= position[:, None]
        return x + self.attended(q, keys, values, mask)


class Growing(Decoder):
    """The cache is as long as the tokens so far."""

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.heads(x)
        keys, values = (
            torch.cat([cached, new], dim=2) for cached, new in zip(cache, (k, v), strict=True)
        )
        return x + self.attended(q, keys, values, None), (keys, values)


def assert_close(got: Tensor, right: Tensor) -> None:
    """Some ten steps, each within 16 units of values of about one size."""
    bound = 160 * torch.finfo(torch.float32).eps * torch.linalg.vector_norm(right)
    assert torch.linalg.vector_norm(got - right) <= bound


def exact(model: Decoder) -> Tensor:
    with torch.no_grad():
        return copy.deepcopy(model).double().whole(TOKENS.double())


def empty(length: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 2, length, 6), torch.zeros(1, 2, length, 6)


def step(token: int) -> tuple[Tensor, Tensor]:
    return TOKENS[:, token : token + 1], torch.tensor([token])


def decoded(plan: Any) -> list[Tensor]:
    """Return the result of each token; the caches of all steps are kept, and must not change."""
    results, caches, copies = [], [empty(LENGTH)], []
    for token in range(LENGTH):
        x, position = step(token)
        y, cache = plan(x, caches[-1], position)
        results.append(y)
        caches.append(cache)
        copies.append([one.clone() for one in cache])
    assert not any(one.any() for one in caches[0]), "a plan changed its input"
    for cache, kept in zip(caches[1:], copies, strict=True):
        assert all(map(torch.equal, cache, kept)), "a call changed what an earlier one returned"
    return results


def optimized(model: Fixed) -> OptimizedModel:
    x, position = step(0)
    return bt.optimize(model, (x, empty(LENGTH), position))


def test_a_cache_of_fixed_length_is_planned_once() -> None:
    model = Fixed().eval()
    plan = optimized(model)
    right = exact(model)
    assert_close(torch.cat(decoded(plan), dim=1), right)
    assert len(plan._programs) == 1
    (planned,) = plan._programs.values()
    found = [operation_of(node) for node in planned.program.nodes]
    assert any(isinstance(one, Attention) for one in found)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    assert_close(torch.cat(decoded(bt.load(file)), dim=1), right)
    assert_close(torch.cat(decoded(plan.release()), dim=1), right)


def off(got: Tensor, right: Tensor) -> float:
    return float(torch.linalg.vector_norm(got.double() - right) / torch.linalg.vector_norm(right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tune", [True, False])
def test_a_cache_that_is_updated_in_place(dtype: torch.dtype, tune: bool) -> None:
    """Many tokens over the same cache; the first ones while the algorithms are chosen."""
    model = Updated().eval().to(dtype)
    right = exact(model)
    given = [(x.to(dtype), position) for x, position in map(step, range(LENGTH))]

    def caches() -> tuple[Tensor, Tensor]:
        # Places not yet written hold values that must not be seen.
        return torch.full((1, 2, LENGTH, 6), 5, dtype=dtype), torch.full(
            (1, 2, LENGTH, 6), -3, dtype=dtype
        )

    x, position = given[0]
    plan = bt.optimize(model, (x, caches(), position), tune=tune)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    with torch.no_grad():
        kept = caches()
        results = [model(x, kept, position) for x, position in given]
        allowed = 2 * off(torch.cat(results, dim=1), right) + 4 * torch.finfo(dtype).eps
        for run in (plan, plan, loaded, plan):
            cache = caches()
            got = [run(x, cache, position) for x, position in given]
            assert off(torch.cat(got, dim=1), right) <= allowed
            for one, other in zip(cache, kept, strict=True):
                # A norm and a product, each within 16 units.
                assert off(one, other.double()) <= 32 * torch.finfo(dtype).eps


def test_two_sequences_in_turn_keep_their_caches_apart() -> None:
    model = Fixed().eval()
    plan = optimized(model)
    caches = {sign: empty(LENGTH) for sign in (1, -1)}
    with torch.no_grad():
        double = copy.deepcopy(model).double()
        rights = {sign: double.whole(sign * TOKENS.double()) for sign in caches}
    for token in range(LENGTH):
        x, position = step(token)
        for sign, cache in list(caches.items()):
            y, caches[sign] = plan(sign * x, cache, position)
            assert_close(y, rights[sign][:, token : token + 1])


def test_a_wrong_place_raises_what_pytorch_raises() -> None:
    plan = optimized(Fixed().eval())
    x, _ = step(0)
    with pytest.raises(IndexError, match="out of"):
        plan(x, empty(LENGTH), torch.tensor([LENGTH]))
    model: Any = plan._original[0]
    assert_close(torch.cat(decoded(plan), dim=1), exact(model))


def test_a_loaded_plan_refuses_a_cache_of_another_length() -> None:
    file = io.BytesIO()
    optimized(Fixed().eval()).save(file)
    file.seek(0)
    x, position = step(0)
    with pytest.raises(TorchError, match=r"1, 2, 11, 6.*prepare plans others"):
        bt.load(file)(x, empty(LENGTH - 1), position)


def test_a_growing_cache_can_be_planned_for_each_length() -> None:
    """All plans share their packed weights."""
    model = Growing().eval()
    plan = bt.optimize(model, (TOKENS[:, :1], empty(0)), shapes=8)
    right, cache = exact(model), empty(0)
    weights = set()
    for token in range(LENGTH):
        y, cache = plan(TOKENS[:, token : token + 1], cache)
        assert_close(y, right[:, token : token + 1])
    for planned in plan._programs.values():
        for node in planned.program.nodes:
            layer = getattr(operation_of(node), "layer", None)
            weights |= {id(layer.weights)} if layer is not None else set()
    assert len(plan._programs) == 8
    assert len(weights) == 2


class TwoInputs(nn.Module):
    """The residual and the mask are inputs, and further inputs follow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor, scale: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(x, x, x, mask).transpose(1, 2)
        return (self.linear(x) + x) * scale + y.transpose(1, 2)


def test_copies_of_an_input_stand_behind_all_inputs() -> None:
    model = TwoInputs().eval()
    mask = torch.ones(12, 12, dtype=torch.bool).tril()
    given = TOKENS.reshape(2, 1, 12, 12)[..., :6].contiguous(), mask, torch.tensor(2.0)
    plan = bt.optimize(model, given)
    with torch.no_grad():
        x, _, scale = given
        right = copy.deepcopy(model).double()(x.double(), mask, scale.double())
    assert_close(plan(*given), right)


@pytest.mark.parametrize("lengths", [(3, 9, 5, 12, 3), (12, 1, 12)], ids=str)
def test_lengths_that_change_are_planned_as_batches_are(lengths: tuple[int, ...]) -> None:
    class Whole(Decoder):
        def forward(self, x: Tensor) -> Tensor:
            return self.whole(x)

    model = Whole().eval()
    plan = bt.optimize(model, TOKENS[:, : lengths[0]])
    right = exact(model)
    for length in lengths:
        assert_close(plan(TOKENS[:, :length]), right[:, :length])  # causal: a prefix of the whole
    assert len(plan._programs) == len(set(lengths))
    leaves = pytree.tree_leaves(plan(TOKENS))
    assert_close(leaves[0], right)

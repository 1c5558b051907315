"""Packed weights are kept as long as the weights are unchanged, and no longer."""

from __future__ import annotations

import copy
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from weight_changes import WEIGHT_CHANGES

import bestof.torch as integration
from bestof import kernels
from bestof.selection import Fixed, use_policy
from bestof.selection.trials.trial import Trial, current_trial
from bestof.torch.backends.fingerprint import fingerprint_of
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.ops import source_cache
from bestof.torch.ops.convolution.packed_weights import PackedWeightsCache


@pytest.fixture
def cache() -> PackedWeightsCache:
    return PackedWeightsCache(1 << 24)


def filters(k: int = 32, c: int = 48) -> nn.Parameter:
    return nn.Parameter(torch.randn(k, c, 3, 3))


def test_a_large_filter_hides_no_change_of_its_neighbour(cache: PackedWeightsCache) -> None:
    weight = filters()
    weight.data[0] = 1e9
    first = cache.get(weight, "winograd4", 1)
    weight.data[1, 0, 0, 0] += 1.0
    assert cache.get(weight, "winograd4", 1) is not first


def test_a_large_channel_hides_no_change_of_the_others(cache: PackedWeightsCache) -> None:
    weight = filters()
    weight.data[:, 0] = 1e6
    weight.data[:, 1:] *= 1e-3
    first = cache.get(weight, "winograd4", 1)
    weight.data[:, 1:] *= 2
    assert cache.get(weight, "winograd4", 1) is not first


@pytest.mark.parametrize("isa", kernels.isas())
def test_the_last_bit_of_any_element_changes_the_fingerprint(isa: str) -> None:
    usual = kernels.isa()
    kernels.use_isa(isa)
    try:
        for count in (1, 7, 16, 130, 1000, 16385, 40000):
            values = torch.randn(count)
            bits = values.view(torch.int32)
            seen = {fingerprint_of(values)}
            places = range(count) if count <= 130 else random.Random(count).sample(range(count), 50)
            for place in (*places, count - 1):
                bits[place] ^= 1
                seen.add(fingerprint_of(values))
                bits[place] ^= 1
            assert fingerprint_of(values) in seen
            assert len(seen) == 1 + len({*places, count - 1})
    finally:
        kernels.use_isa(usual)


def test_a_fingerprint_is_the_same_by_any_number_of_threads(own_process: None) -> None:
    values = torch.randn(300_001)
    alone = fingerprint_of(values)
    torch.set_num_threads(2)
    assert fingerprint_of(values) == alone


def test_fingerprints_tell_signs_exchanges_and_lengths_apart() -> None:
    ones = torch.ones(64 * 64)
    signs = [ones, -ones, *(ones.clone() for _ in range(3))]
    signs[2].view(64, 64)[0] = -1
    signs[3].view(64, 64)[:, 0] = -1
    signs[4].view(64, 64)[1] = -1
    lengths = [torch.zeros(n) for n in (1, 2, 16, 17, 16384, 16385)]
    assert len({fingerprint_of(one) for one in (*signs, *lengths)}) == len(signs) + len(lengths)
    assert fingerprint_of(torch.zeros(4, 6)[:, ::2]) is None


def test_weights_packed_for_another_instruction_set_are_packed_anew(
    cache: PackedWeightsCache,
) -> None:
    weight, usual = filters(), kernels.isa()
    first = cache.get(weight, "winograd4", 1)
    kernels.use_isa("baseline")
    try:
        packed = cache.get(weight, "winograd4", 1)
        assert packed is not None
        assert (packed is first) == (usual == "baseline")
        assert packed.isa == "baseline"
    finally:
        kernels.use_isa(usual)


def test_the_same_weights_are_packed_once(cache: PackedWeightsCache) -> None:
    weight = filters()
    first = cache.get(weight, "winograd4", 1)
    assert first is not None
    assert cache.get(weight, "winograd4", 1) is first
    assert cache.get(weight, "winograd2", 1) is not first
    assert len(cache) == 2


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    **WEIGHT_CHANGES,
    "one channel turned through data": lambda weight: weight.data[3, 5].copy_(
        weight.data[3, 5].flip(0)
    ),
    "not a number": lambda weight: weight.data.view(-1)[0].fill_(float("nan")),
}


@pytest.mark.parametrize("size", [(32, 48), (4, 6), (64, 64)])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_packed_anew(
    cache: PackedWeightsCache, change: str, size: tuple[int, int]
) -> None:
    weight = filters(*size)
    first = cache.get(weight, "winograd4", 1)
    CHANGES[change](weight)
    assert cache.get(weight, "winograd4", 1) is not first


def test_weights_are_freed_with_their_tensor(cache: PackedWeightsCache) -> None:
    weight = filters()
    cache.get(weight, "winograd4", 1)
    assert cache.size > 0
    del weight
    gc.collect()
    assert (len(cache), cache.size) == (0, 0)


def test_an_address_that_was_somebody_elses(cache: PackedWeightsCache) -> None:
    packed = [
        cache.get(nn.Parameter(torch.full((4, 4, 3, 3), float(n))), "winograd4", 1)
        for n in range(50)
    ]
    assert len({id(one) for one in packed}) == 50
    assert len(cache) == 0


def test_the_oldest_leave_where_memory_is_short(cache: PackedWeightsCache) -> None:
    weights = [filters() for _ in range(4)]
    one = cache.get(weights[0], "winograd4", 1)
    assert one is not None
    cache.limit = 2 * one.nbytes
    for weight in weights[1:]:
        cache.get(weight, "winograd4", 1)
    assert cache.size <= cache.limit
    assert cache.get(weights[3], "winograd4", 1) is cache.get(weights[3], "winograd4", 1)
    assert cache.get(weights[0], "winograd4", 1) is not one
    cache.limit = one.nbytes - 1
    cache.clear()
    assert cache.get(weights[0], "winograd4", 1) is not None
    assert len(cache) == 0
    cache.limit = 0
    assert cache.get(weights[0], "winograd4", 1) is None


def test_weights_that_cannot_be_watched_are_not_kept(cache: PackedWeightsCache) -> None:
    with torch.inference_mode():
        assert cache.get(torch.randn(4, 4, 3, 3), "winograd4", 1) is None
    assert cache.get(torch.randn(4, 8, 3, 3)[:, ::2], "winograd4", 1) is None


@pytest.fixture
def winograd(own_process: None) -> Iterator[PackedWeightsCache]:
    use_policy(Fixed("native winograd4"))
    with integration.enabled():
        override = convolution_override()
        assert override is not None
        yield override.originals.packed


def as_is(layer: nn.Module, x: Tensor) -> Tensor:
    """What PyTorch computes in float64, untouched by tuning."""
    double = copy.deepcopy(layer).double()
    out: Tensor = torch.ops.aten._slow_conv2d_forward(
        x.double(), double.weight, list(double.weight.shape[2:]), double.bias, [1, 1], [1, 1]
    )
    return out.float()


def test_inference_follows_the_weights(winograd: PackedWeightsCache) -> None:
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 12, 12)
    state = {name: torch.randn_like(value) for name, value in layer.state_dict().items()}
    with torch.no_grad():
        for name in ("nothing", *CHANGES, "another state"):
            if name == "another state":
                layer.load_state_dict(state)
            elif name in CHANGES and name != "not a number":
                CHANGES[name](layer.weight)
            for _ in range(2):
                torch.testing.assert_close(layer(x), as_is(layer, x), rtol=1e-3, atol=2e-3)
            assert len(winograd) == 1
        twin = copy.deepcopy(layer)
        twin.weight.data.mul_(3)
        torch.testing.assert_close(twin(x), as_is(twin, x), rtol=1e-3, atol=5e-3)
        torch.testing.assert_close(layer(x), as_is(layer, x), rtol=1e-3, atol=2e-3)
    assert len(winograd) == 2
    del layer, twin
    gc.collect()
    assert len(winograd) == 0


def test_a_training_step_packs_nothing(winograd: PackedWeightsCache) -> None:
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 12, 12)
    layer(x).sum().backward()
    assert len(winograd) == 0
    with torch.no_grad():
        layer(x)
    assert len(winograd) == 1
    integration.disable()
    assert len(winograd) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_its_own(winograd: PackedWeightsCache) -> None:
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 12, 12)
    with torch.no_grad():
        expected = layer(x)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                same = torch.equal(layer(x), expected)
                layer.weight.mul_(2)
                moved = torch.allclose(layer(x), as_is(layer, x), rtol=1e-3, atol=2e-3)
                status = 0 if same and moved else 1
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(layer(x), expected)


def test_inference_mode_keeps_them_too(winograd: PackedWeightsCache) -> None:
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 12, 12)
    expected = as_is(layer, x).detach()
    with torch.inference_mode():
        for _ in range(3):
            torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=2e-3)
    assert len(winograd) == 1
    layer.weight.data.mul_(2)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), as_is(layer, x), rtol=1e-3, atol=4e-3)


def test_threads_share_them(winograd: PackedWeightsCache) -> None:
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(2, 16, 12, 12)
    expected = as_is(layer, x).detach()
    failed: list[BaseException] = []

    def work() -> None:
        torch.set_num_threads(1)
        try:
            with torch.no_grad():
                for _ in range(50):
                    torch.testing.assert_close(layer(x), expected, rtol=1e-3, atol=2e-3)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(winograd) == 1


@pytest.fixture
def trial() -> Iterator[Trial]:
    found = Trial(None, None, 0, None)
    token = current_trial.set(found)
    yield found
    current_trial.reset(token)


def test_packing_a_parameter_once_is_no_part_of_a_trial(
    cache: PackedWeightsCache, trial: Trial
) -> None:
    weights = [filters(), filters()]
    apart = [0.0]
    for weight in (*weights, *weights):
        cache.get(weight, "winograd4", 1)
        apart.append(trial.apart)
    assert apart[0] < apart[1] < apart[2] == apart[3] == apart[4]


def test_packing_again_is_part_of_the_trial(cache: PackedWeightsCache, trial: Trial) -> None:
    """If there is no room for all, each call may pack."""
    weights = [filters(), filters()]
    packed = cache.get(weights[0], "winograd4", 1)
    assert packed is not None
    cache.limit = packed.nbytes
    cache.get(weights[1], "winograd4", 1)
    apart = trial.apart
    for weight in (*weights, *weights):
        cache.get(weight, "winograd4", 1)
    with torch.no_grad():
        weights[1].mul_(2.0)
    cache.get(weights[1], "winograd4", 1)
    assert trial.apart == apart


def test_packing_what_is_no_parameter_is_part_of_the_trial(
    cache: PackedWeightsCache, trial: Trial
) -> None:
    """Weights that the program computes may be new in each call."""
    for _ in range(3):
        cache.get(torch.randn(32, 48, 3, 3), "winograd4", 1)
    assert trial.apart == 0.0
    parameter = filters(16)
    with torch.no_grad():
        cache.get(parameter.view(16, 48, 3, 3), "winograd4", 1)
    assert trial.apart > 0.0


def test_layers_that_share_a_problem_pack_apart_from_its_trials(
    own_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven layers of ResNet34 do: each trial packed other weights, so the kernel seemed slow."""
    apart: list[float] = []
    monkeypatch.setattr(source_cache, "set_apart", apart.append)
    integration.enable()
    layers = [nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(6)]
    net, x = nn.Sequential(*layers).eval(), torch.randn(1, 64, 14, 14)
    with torch.no_grad():
        for _ in range(12):
            net(x)
    assert len(apart) >= len(layers)
    assert min(apart) > 0.0

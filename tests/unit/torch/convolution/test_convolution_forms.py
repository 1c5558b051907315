"""1-D, transposed and 3-D convolutions: which calls bestof chooses for, and as which problems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bestof.torch as bt
from bestof.selection import use_policy
from bestof.torch.backends.shim import ASKED_EVERY
from bestof.torch.dispatch.overrides import convolution_override, operation_override
from bestof.torch.ops.convolution import recognition
from bestof.torch.ops.convolution.recognition import is_worth


@pytest.fixture
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "LEAST_PRODUCTS", 1)


def problems() -> list[tuple[str, str]]:
    """Return the passes and problems that were met."""
    threads = f" threads={torch.get_num_threads()}"
    return [(one.name, one.problem.removesuffix(threads)) for one in bt.summary().passes]


def trained(run: Any, *operands: Tensor) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in operands]
    return list(torch.autograd.grad(run(*leaves).square().sum(), leaves))


def test_a_line_is_an_image_of_height_1(no_limit: None) -> None:
    use_policy("fixed:independent")
    bt.enable()
    operands = torch.randn(2, 4, 30), torch.randn(6, 4, 3)
    trained(lambda x, w: functional.conv1d(x, w, stride=2, padding=1), *operands)
    text = "i4x1x30,k6x1x3,b2,s1x2,p0x1,d1,g1"
    assert problems() == [(name, text) for name in ("forward", "input gradient", "weight gradient")]


def test_a_line_finds_the_matrix_that_its_forward_pass_has_kept(
    no_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_policy("fixed:shared im2row")
    bt.enable()
    kept, taken = convolution_override().layer.kept, []
    take = kept.take
    monkeypatch.setattr(kept, "take", lambda *given: taken.append(take(*given)) or taken[-1])
    operands = torch.randn(2, 4, 30), torch.randn(6, 4, 3)
    trained(lambda x, w: functional.conv1d(x, w, padding=1), *operands)
    assert [one is not None for one in taken] == [True]
    assert len(kept) == 0


def test_a_line_and_an_image_share_their_evidence(no_limit: None) -> None:
    bt.enable()
    x, w = torch.randn(2, 4, 1, 30), torch.randn(6, 4, 1, 3)
    with torch.no_grad():
        functional.conv2d(x, w)
        functional.conv1d(x.squeeze(2), w.squeeze(2))
    (found,) = bt.summary().passes
    assert found.calls == 2


def test_a_transposed_convolution_has_the_passes_of_an_ordinary_one(no_limit: None) -> None:
    bt.enable()
    x, w = torch.randn(2, 6, 5, 7), torch.randn(6, 4, 3, 3)
    run = lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)  # noqa: E731
    trained(run, x, w)
    text = "i4x10x14,k6x3x3,b2,s2,p1,d1,g1"
    assert problems() == [(name, text) for name in ("forward", "input gradient", "weight gradient")]
    # The ordinary convolution has the same problems.
    image = torch.randn(2, 4, 10, 14)
    trained(lambda x, w: functional.conv2d(x, w, stride=2, padding=1), image, w)
    assert len(problems()) == 3


def test_volumes_are_reported_under_names_of_their_own(no_limit: None) -> None:
    bt.enable()
    trained(
        lambda x, w: functional.conv3d(x, w, padding=1),
        torch.randn(1, 2, 4, 5, 6),
        torch.randn(3, 2, 3, 3, 3),
    )
    text = "i2x4x5x6,k3x3x3x3,b1,s1x1x1,p1x1x1,d1x1x1,g1"
    names = "convolution 3d", "convolution 3d input gradient", "convolution 3d weight gradient"
    assert problems() == [(name, text) for name in names]


def test_a_pass_of_volumes_can_be_left_to_pytorch(no_limit: None) -> None:
    bt.enable({"kernel": {"without": ["convolution 3d", "convolution 3d input gradient"]}})
    trained(functional.conv3d, torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 3, 3, 3))
    assert problems() == []  # the gradients of one call belong together
    bt.enable({"kernel": {"without": ["convolution 3d"]}})
    trained(functional.conv3d, torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 3, 3, 3))
    assert [name.split(" ", 2)[2] for name, _ in problems()] == [
        "input gradient",
        "weight gradient",
    ]


@pytest.mark.parametrize(
    ("run", "shapes"),
    [
        (functional.conv1d, [(1, 8, 30), (8, 8, 3)]),
        (functional.conv_transpose1d, [(1, 8, 30), (8, 8, 3)]),
        (functional.conv_transpose2d, [(1, 8, 9, 9), (8, 8, 3, 3)]),
        (functional.conv3d, [(1, 4, 5, 6, 7), (4, 4, 3, 3, 3)]),
    ],
)
def test_small_calls_are_pytorchs(run: Any, shapes: list[tuple[int, ...]]) -> None:
    operands = [torch.randn(shape) for shape in shapes]
    expected = trained(run, *operands)
    bt.enable()
    for got, wanted in zip(trained(run, *operands), expected, strict=True):
        assert torch.equal(got, wanted)
    assert problems() == []


def test_what_is_worth_a_choice() -> None:
    weight = torch.empty(64, 64, 3)
    assert not is_worth(torch.empty(1, 64, 100), weight)
    assert is_worth(torch.empty(8, 64, 100), weight)  # 9.8 million products
    assert not is_worth(torch.empty(0, 64, 100), weight)
    assert not is_worth(torch.empty(8, 64, 100).as_subclass(type("Own", (Tensor,), {})), weight)
    assert not is_worth(torch.empty(10**8), torch.empty(100))


REFUSED: dict[str, Any] = {
    "too much output padding": lambda: functional.conv_transpose2d(
        torch.randn(1, 2, 3, 3), torch.randn(2, 2, 3, 3), output_padding=1
    ),
    "channels that do not fit": lambda: functional.conv_transpose2d(
        torch.randn(1, 3, 4, 4), torch.randn(2, 2, 3, 3)
    ),
    "a bias that does not fit": lambda: functional.conv_transpose1d(
        torch.randn(1, 2, 4), torch.randn(2, 2, 3), torch.randn(3)
    ),
    "no result": lambda: functional.conv_transpose2d(
        torch.randn(1, 2, 1, 1), torch.randn(2, 2, 2, 2), padding=3
    ),
    "a kernel larger than the line": lambda: functional.conv1d(
        torch.randn(1, 2, 4), torch.randn(2, 2, 7)
    ),
    "groups that do not divide": lambda: functional.conv3d(
        torch.randn(1, 3, 4, 4, 4), torch.randn(4, 1, 3, 3, 3), groups=2
    ),
    "another dtype": lambda: functional.conv1d(torch.randn(1, 2, 4), torch.randn(2, 2, 3).double()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_pytorchs(name: str, no_limit: None) -> None:
    with pytest.raises(RuntimeError) as expected:
        REFUSED[name]()
    bt.enable()
    with pytest.raises(RuntimeError) as caught:
        REFUSED[name]()
    assert str(caught.value) == str(expected.value)
    assert problems() == []


def test_large_output_padding_without_an_ordinary_convolution_is_pytorchs(no_limit: None) -> None:
    # With dilation 3, PyTorch takes an output padding of 2 at stride 1.
    run = lambda x, w: functional.conv_transpose2d(x, w, dilation=3, output_padding=2)  # noqa: E731
    operands = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3)
    expected = run(*operands)
    bt.enable()
    assert torch.equal(run(*operands), expected)
    assert problems() == []


CALLS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "1-D": (lambda x, w, b: functional.conv1d(x, w, b, 2, 1), [(2, 4, 9), (3, 4, 3), (3,)]),
    "transposed 1-D": (
        lambda x, w, b: functional.conv_transpose1d(x, w, b, 2, 1, 1),
        [(2, 4, 5), (4, 3, 3), (3,)],
    ),
    "transposed": (
        lambda x, w, b: functional.conv_transpose2d(x, w, b, 2, 1, 1),
        [(2, 4, 3, 4), (4, 3, 3, 3), (3,)],
    ),
    "3-D": (
        lambda x, w, b: functional.conv3d(x, w, b, 1, 1),
        [(1, 2, 3, 4, 4), (3, 2, 3, 3, 3), (3,)],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives(name: str, no_limit: None) -> None:
    run, shapes = CALLS[name]
    generator = torch.Generator().manual_seed(1)
    operands = [
        torch.randn(one, generator=generator, dtype=torch.float64).requires_grad_()
        for one in shapes
    ]
    with bt.enabled():
        assert torch.autograd.gradcheck(run, operands, nondet_tol=1e-9)
        assert torch.autograd.gradgradcheck(run, operands, nondet_tol=1e-9)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_operand_alone_wants_a_gradient(name: str, place: int, no_limit: None) -> None:
    run, shapes = CALLS[name]
    operands = [torch.randn(one) for one in shapes]
    operands[place].requires_grad_()
    (expected,) = torch.autograd.grad(run(*operands).square().sum(), operands[place])
    with bt.enabled():
        for _ in range(12):
            (got,) = torch.autograd.grad(run(*operands).square().sum(), operands[place])
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CALLS)
def test_nan_and_empty_batches(name: str, no_limit: None) -> None:
    run, shapes = CALLS[name]
    operands = [torch.randn(one) for one in shapes]
    operands[0].flatten()[5] = torch.nan
    expected = run(*operands)
    empty = run(operands[0][:0], *operands[1:])
    with bt.enabled():
        for _ in range(12):
            torch.testing.assert_close(
                run(*operands), expected, rtol=1e-4, atol=1e-4, equal_nan=True
            )
        got = run(operands[0][:0], *operands[1:])
    assert got.shape == empty.shape
    assert got.stride() == empty.stride()


def test_the_bias_is_added_once(no_limit: None) -> None:
    x, w, b = torch.randn(2, 4, 6, 6), torch.randn(4, 8, 3, 3), torch.randn(8)
    expected = functional.conv_transpose2d(x, w, b)
    for name in ("im2row", "native convgemm", "as is"):
        use_policy(f"fixed:{name}")
        with bt.enabled(), torch.no_grad():
            for _ in range(3):
                got = functional.conv_transpose2d(x, w, b)
                torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_settled_calls_of_pytorchs_kernel_have_its_bits(no_limit: None) -> None:
    up = nn.ConvTranspose2d(8, 4, 4, 2, 1)
    x = torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        expected = up(x)
    use_policy("fixed:as is")
    bt.enable()
    with torch.no_grad():
        for _ in range(70):  # beyond one that is sampled
            torch.testing.assert_close(up(x), expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(up(x), expected)
    override = convolution_override()
    assert override is not None
    assert next(iter(override.layer.input_gradient_calls.totals().values())) == 71
    assert operation_override("convolution 3d") is not None


FORMS: dict[str, Callable[[], Tensor]] = {
    "line": lambda: functional.conv1d(torch.ones(1, 4, 20), torch.ones(4, 4, 3)),
    "transposed": lambda: functional.conv_transpose2d(
        torch.ones(1, 4, 6, 6), torch.ones(4, 4, 3, 3)
    ),
    "volume": lambda: functional.conv3d(torch.ones(1, 4, 6, 6, 6), torch.ones(4, 4, 3, 3, 3)),
}


def asked(call: Callable[[], Tensor], times: int) -> int:
    """Return how many of so many calls come to Python."""
    override = convolution_override()
    assert override is not None
    assert override.shim is not None
    before = override.shim.asked
    with torch.no_grad():
        for _ in range(times):
            call()
    return override.shim.asked - before


@pytest.mark.parametrize("form", FORMS)
def test_small_calls_of_other_forms_never_meet_python(form: str) -> None:
    bt.enable()
    assert asked(FORMS[form], 100) == 0


@pytest.mark.parametrize("form", FORMS)
def test_settled_calls_of_other_forms_are_sampled(form: str, no_limit: None) -> None:
    use_policy("fixed:as is")
    bt.enable()
    assert asked(FORMS[form], 8) > 0
    assert asked(FORMS[form], 2 * ASKED_EVERY) == 2


def test_bfloat16_with_a_bias_is_pytorchs(no_limit: None) -> None:
    operands = [torch.randn(one).bfloat16() for one in ((2, 4, 6, 6), (4, 8, 3, 3), (8,))]
    expected = functional.conv_transpose2d(*operands)
    bt.enable()
    assert torch.equal(functional.conv_transpose2d(*operands), expected)
    assert problems() == []
    functional.conv_transpose2d(*operands[:2])
    assert len(problems()) == 1

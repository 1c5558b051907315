"""Operations without a line are replayed by what the capture recorded of their arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bestof import profile  # noqa: E402
from bestof.errors import ProfileError  # noqa: E402
from bestof.profile.peak import Peak  # noqa: E402
from bestof.profile.projection import projection  # noqa: E402
from bestof.profile.projection.aten_call import AROUND, FRAMEWORK, AtenCall, parts_of  # noqa: E402
from bestof.profile.projection.measured import Kept  # noqa: E402
from bestof.profile.projection.projection import operations_of_step, project  # noqa: E402
from bestof.profile.span import Span  # noqa: E402
from bestof.profile.steady import Steady, steady_of  # noqa: E402


@pytest.fixture(scope="module")
def steady() -> Steady:
    """A step with norms, activations, poolings, attention and a fused optimizer."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.GELU(),
        nn.Flatten(),
        nn.LayerNorm(200),
    ).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    with profile.capture() as captured:
        for _ in range(3):
            optimizer.zero_grad()
            y = model(torch.ones(2, 3, 12, 12)).view(2, 2, 10, 10)
            y = nn.functional.scaled_dot_product_attention(y, y, y)
            torch.softmax(torch.cat([y, y]), -1).square().mean().backward()
            optimizer.step()
    return steady_of(captured.profile)


def test_all_operations_without_lines_are_replayed(
    steady: Steady, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time for all of them, also on a busy machine.
    monkeypatch.setattr(projection, "_MOST", 0.002)
    done = project(steady, 1, Peak(1e11, 1e10), 600.0, Kept(None))
    found = {one.primitive: one for one in done.problems if one.implementation == "PyTorch"}
    expected = {
        *("aten::batch_norm", "aten::native_batch_norm_backward", "aten::relu_", "aten::gelu"),
        *("aten::threshold_backward", "aten::max_pool2d", "aten::layer_norm", "aten::softmax"),
        *("aten::max_pool2d_with_indices_backward", "aten::native_layer_norm_backward"),
        *("aten::cat", "aten::_fused_sgd_"),
    }
    assert expected <= found.keys()
    for name in expected:
        assert found[name].same_implementation, found[name].reason
        assert found[name].roofline
    # What is left is named.
    reasons = {one.reason for one in done.problems if not one.measured}
    assert reasons <= {AROUND, FRAMEWORK}


def test_the_parts_of_a_step_add_up_to_its_operations(steady: Steady) -> None:
    operations = sum(span.self_seconds for span in steady.spans if span.kind == "operation")
    assert sum(part.seconds for part in parts_of(steady.spans)) == pytest.approx(operations)


def test_a_replay_has_the_strides_of_the_program(steady: Steady) -> None:
    (norm,) = [
        call
        for problem, call in operations_of_step(steady, 1, None)
        if call is not None and problem.primitive == "aten::native_batch_norm_backward"
    ]
    with torch.profiler.profile(record_shapes=True) as profiler:
        norm.bind()()
    events = profiler.profiler.kineto_results.events()
    seen = [one for one in events if one.name() == "aten::native_batch_norm_backward"]
    assert seen
    # Gradients and images of 2 x 8 x 10 x 10 in channels-last order, twice, and vectors of 8.
    for event in seen:
        assert event.structured_input_strides()[:2] == [[800, 1, 80, 8]] * 2
    assert norm.bytes == 4 * (2 * 1600 + 5 * 8)


def call(name: str, *rows: object) -> AtenCall:
    found = AtenCall.read(json.dumps([name, *rows]))
    assert found is not None
    return found


def test_a_call_that_fits_no_overload_says_why() -> None:
    tensor = [[2, 3], [3, 1], "float", None]
    other = [[5], [1], "float", None]
    one = [[], [], "Scalar", 1]
    with pytest.raises(ProfileError, match=r"aten::add is not replayed: .*size"):
        call("aten::add", tensor, other, one).bind()
    with pytest.raises(ProfileError, match="fit no overload"):
        call("aten::relu", *[tensor] * 4).bind()
    assert AtenCall.read("onednn_verbose,exec") is None


def test_an_expanded_tensor_stays_expanded() -> None:
    expanded = call("aten::div", [[64, 5], [0, 0], "float", None], [[], [], "Scalar", 2])
    assert expanded.bytes == 4
    expanded.bind()()


def test_inner_operations_belong_to_the_call_around_them() -> None:
    def span(name: str, start: float, depth: int, text: str = "", thread: int = 1) -> Span:
        return Span(
            *("operation", "pytorch", name, start, 1.0, 1.0, thread), text=text, depth=depth
        )

    add = json.dumps(["aten::add"])
    spans = [
        span("Backward", 0, 0),
        span("aten::add", 1, 1, add),
        span("aten::mul", 2, 2, add),
        span("aten::div", 2.5, 0, add, thread=2),
        span("aten::conv2d", 3, 1),
        replace(span("convolution", 4, 0), kind="line"),
    ]
    parts = [(part.span.name, part.seconds, part.reason) for part in parts_of(spans)]
    assert sorted(parts) == [
        ("Backward", 1.0, FRAMEWORK),
        ("aten::add", 2.0, ""),
        ("aten::conv2d", 1.0, AROUND),
        ("aten::div", 1.0, ""),
    ]


@pytest.mark.parametrize(
    "call",
    [
        ["aten::from_file", [[], [], "", "{mark}"], [[], [], "Scalar", True]],
        ["aten::save", [[[2]], [[1]], "TensorList", None], [[], [], "", "{mark}"]],
        ["aten::manual_seed", [[], [], "Scalar", 1]],
        ["aten::_print", [[], [], "", "x"]],
        ["aten::__class__", [[2], [1], "float", None]],
        ["os::system", [[], [], "", "touch {mark}"]],
        ["prims::add", [[2], [1], "float", None], [[2], [1], "float", None]],
        ["aten::lstm", [[2], [1], "float", None]],
        ["aten::relu", [[2**40], [1], "float", None]],
        ["aten::relu", [[2**40], [0], "float", None]],
        ["aten::relu", [[-2], [1], "float", None]],
        ["aten::mul", [[2], [1], "float", None], [[], [], "Scalar", 10**399]],
        [7, [[2], [1], "float", None]],
    ],
)
def test_a_profile_replays_nothing_but_computations(call: list[object], tmp_path: Path) -> None:
    text = json.dumps(call).replace("{mark}", str(tmp_path / "ran"))
    found = AtenCall.read(text)
    assert found is not None
    with pytest.raises(ProfileError, match="is not replayed"):
        found.bind()
    assert not list(tmp_path.iterdir())


def test_operands_that_disagree_are_not_replayed() -> None:
    """PyTorch's kernels of fused optimizers and of norms check none of these."""
    long, short = [[4096], [1], "float", None], [[1], [1], "float", None]
    lists = [[[[4096]], [[1]], "TensorList", None], [[[1]], [[1]], "TensorList", None]]
    numbers = [[[], [], "Scalar", one] for one in (0.1, 0.9, 0.9, 0.0, 1e-8, False, False)]
    none = [[], [], "TensorList", None]
    adam = ["aten::_fused_adam_", lists[0], lists[1], lists[0], lists[0], none, lists[0], *numbers]
    flags = [[], [], "ScalarList", [True, True, True]]
    norm = [
        *("aten::native_layer_norm_backward", short, long),
        *([[], [], "ScalarList", [4096]], short, short, long, long, flags),
    ]
    for call in (adam, norm):
        found = AtenCall.read(json.dumps(call))
        assert found is not None
        with pytest.raises(ProfileError, match="is not replayed"):
            found.bind()

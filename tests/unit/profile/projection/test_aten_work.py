"""The operations of products and convolutions without a line are counted exactly."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from bestof.profile.peak import Peak  # noqa: E402
from bestof.profile.projection.aten_call import AtenCall  # noqa: E402
from bestof.profile.projection.aten_work import flops_of_call  # noqa: E402
from bestof.profile.timeline.operation import operations_of  # noqa: E402


def calls(run) -> dict[str, AtenCall]:
    """Return the calls of all operations inside of `run`, as a capture records them."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], record_shapes=True) as recorded:
        run()
    found = operations_of(recorded.profiler.kineto_results.events())
    read = {one.name: AtenCall.read(one.call) for one in found if one.call}
    return {name: call for name, call in read.items() if call is not None}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=True)


@pytest.mark.parametrize(
    ("name", "run", "wanted"),
    [
        ("mm", lambda: torch.mm(ones(3, 5), ones(5, 7)), 2 * 3 * 5 * 7),
        ("mv", lambda: torch.mv(ones(3, 5), ones(5)), 2 * 3 * 5),
        ("dot", lambda: torch.dot(ones(5), ones(5)), 2 * 5),
        ("bmm", lambda: torch.bmm(ones(4, 3, 5), ones(4, 5, 7)), 2 * 4 * 3 * 5 * 7),
        ("addmm", lambda: torch.addmm(ones(7), ones(3, 5), ones(5, 7)), 2 * 3 * 5 * 7),
        ("matmul", lambda: torch.matmul(ones(2, 1, 3, 5), ones(6, 5, 7)), 2 * 12 * 3 * 5 * 7),
        ("linear", lambda: functional.linear(ones(2, 3, 5), ones(7, 5)), 2 * 2 * 3 * 5 * 7),
        ("add", lambda: ones(3) + ones(3), 0),
    ],
)
def test_a_product_is_counted(name: str, run, wanted: int) -> None:
    assert calls(run)[f"aten::{name}"].flops == wanted


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 2), (3, 2, 2, 1)]
)
def test_a_convolution_counts_the_taps_on_its_image(
    stride: int, padding: int, dilation: int, groups: int, transposed: bool
) -> None:
    """With ones for images and weights, each result is the number of its taps on the image.

    So twice the sum of all results is the number of operations.
    """
    weight = ones(4, 6 // groups, 3, 2) if transposed else ones(6, 4 // groups, 3, 2)
    function = functional.conv_transpose2d if transposed else functional.conv2d
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    results = []

    def run() -> None:
        result = function(ones(2, 4, 9, 8), weight, **options)
        results.append(result.sum())
        results[0].backward()

    found = calls(run)
    assert found["aten::convolution"].flops == 2 * results[0].item()
    assert found["aten::convolution_backward"].flops == 2 * 2 * results[0].item()
    if not transposed:
        assert found["aten::conv2d"].flops == 2 * results[0].item()


def test_a_padding_that_was_not_recorded_is_no_guess() -> None:
    shapes = [[2, 4, 9, 9], [6, 4, 3, 3], [], [], [], [], []]
    assert flops_of_call("aten::conv2d", shapes, [None, None, None, [1, 1], None, [1, 1], 1]) == 0
    assert flops_of_call("aten::mm", [[2, 3]], [None]) == 0


def test_the_roofline_is_the_greater_of_both_peaks() -> None:
    call = calls(lambda: torch.mm(ones(64, 64), ones(64, 64)))["aten::mm"]
    assert call.least(Peak(flops=1e6, bandwidth=1e12)) == 2 * 64**3 / 1e6
    assert call.least(Peak(flops=1e12, bandwidth=1e6)) == call.bytes / 1e6


def test_another_type_has_no_peak() -> None:
    x = torch.ones(4, 4, dtype=torch.float64)
    assert calls(lambda: torch.mm(x, x))["aten::mm"].flops == 0

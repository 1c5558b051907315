"""Which results count as equal to the expected one."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from bestof.errors import WrongResult
from bestof.selection.call.guard import compare

NAN, INF = float("nan"), float("inf")
PARAMETER = torch.nn.Parameter(torch.ones(3))
with torch.inference_mode():
    INFERENCE = torch.ones(3)
POINT = namedtuple("POINT", ["x", "y"])
CUT = np.array([1.0, -INF, 100.0])


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, 1.0),
        (100.0, 100.9),
        (-100.0, -99.1),
        (1 + 1j, 1 + 1.001j),
        (INF, INF),
        (True, True),
        ("text", "text"),
        (b"bytes", b"bytes"),
        (None, None),
        ({1, 2}, {2, 1}),
        ([1.0, (2.0, {"a": 3.0})], [1.001, (2.001, {"a": 3.001})]),
        ({"a": 1.0, "b": [2.0]}, OrderedDict([("b", [2.0]), ("a", 1.001)])),
        (1.0, np.float32(1.001)),
        (np.float64(1.0), 1.001),
        (np.ones(3), np.full(3, 1.001)),
        (1, np.int64(1)),
        (np.float64(1.0), np.array(1.001)),
        (np.array(["a", "b"]), np.array(["a", "b"], "<U5")),
        (np.full(2, 6e4, np.float16), np.full(2, 6e4, np.float16)),
        (PARAMETER, PARAMETER * 1.0),
        (torch.ones(2, 2).to_sparse(), torch.ones(2, 2).to_sparse()),
        (POINT(1.0, 2.0), POINT(1.0, 2.0)),
        (np.ones((0, 3)), np.ones((0, 3))),
        (np.zeros(3), np.zeros(3)),
        (np.array([1000, 1], np.uint16), np.array([1001, 0], np.uint16)),
        (np.array([200, 0], np.uint8), np.array([199, 1], np.uint8)),
        (np.array([True, False]), np.array([True, False])),
        (np.array(["a", "b"]), np.array(["a", "b"])),
        (np.array([None, "b"], object), np.array([None, "b"], object)),
        (np.array(["2020-01-01"], "datetime64[D]"), np.array(["2020-01-01"], "datetime64[D]")),
        (np.array(5.0), np.array(5.01)),
        (CUT, CUT + np.array([0.5, 0.0, 0.0])),
        (np.array([INF, -INF]), np.array([INF, -INF])),
        (torch.ones(3), torch.full((3,), 1.001)),
        (torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True) * 1.001),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
        (torch.tensor([1.0, -INF]), torch.tensor([1.001, -INF])),
        (torch.tensor(3), torch.tensor(3)),
        (torch.zeros(2, 0), torch.zeros(2, 0)),
    ],
)
def test_passes(expected: Any, got: Any) -> None:
    compare(0.01, expected, got)


@pytest.mark.parametrize(
    ("expected", "got", "says"),
    [
        (100.0, 102.0, "off by 0.02 of the largest value, where 0.01 is allowed"),
        (0.0, 1e-300, "off by inf"),
        (NAN, NAN, "off by nan"),
        (1.0, NAN, "off by nan"),
        (INF, 5.0, "off by inf"),
        (5.0, INF, "off by inf"),
        (INF, -INF, "off by inf"),
        (1.0, None, "expected 1.0; got None"),
        (1, True, "expected the type int; got bool"),
        (1.0, 1.0 + 0j, "expected the type float; got complex"),
        (1.0, torch.tensor(1.0), "expected 1.0; got tensor"),
        (torch.tensor(1.0), 1.0, "expected the shape"),
        ((1.0, 2.0), [1.0, 2.0], "expected the type tuple; got list"),
        (POINT(1.0, 2.0), (1.0, 2.0), "expected the type POINT; got tuple"),
        (OrderedDict(a=1), {"a": 1}, "expected the type OrderedDict; got dict"),
        (b"a", bytearray(b"a"), "expected the type bytes; got bytearray"),
        (np.ones(3), np.ones(3, np.float16), "expected the dtype float64; got float16"),
        (np.float64(1.0), np.float16(1.0), "expected the dtype float64; got float16"),
        (np.ones(3, int), np.ones(3), "expected the dtype int64; got float64"),
        (np.ones((2, 2)), np.ma.masked_array(np.ones((2, 2))), "expected the type numpy.ndarray"),
        (np.ones(3), torch.ones(3, dtype=torch.float64), "expected the type numpy.ndarray; got"),
        (torch.ones(3), torch.ones(3).double(), "expected the dtype torch.float32"),
        (torch.ones(3), torch.ones(3, device="meta"), "expected the device cpu; got meta"),
        (torch.ones(2, 2), torch.ones(2, 2).to_sparse(), "expected the layout torch.strided"),
        (PARAMETER * 1.0, torch.ones(3), "expected the requires_grad True; got False"),
        (torch.ones(3), PARAMETER * 1.0, "expected the requires_grad False; got True"),
        (PARAMETER * 1.0, PARAMETER, "expected a result with its graph of gradients"),
        (torch.ones(3), INFERENCE, "got a tensor of inference mode"),
        ([torch.ones(3)], [torch.ones(3).half()], r"result\[0\]: expected the dtype"),
        (
            np.full(2, 2.0**-14, np.float16),
            np.full(2, 2.0**-14 + 2.0**-20, np.float16),
            "off by 0.0156",
        ),
        (1.0, "1.0", "expected 1.0; got '1.0'"),
        (1.0, np.ones(2), r"expected 1.0; got array\(\[1., 1.\]\)"),
        ("text", "test", "expected 'text'; got 'test'"),
        (None, 0, "expected None; got 0"),
        ([1.0, 2.0], [1.0], "expected a sequence of 2; got 1 items"),
        ([1.0, 2.0], 1.0, "expected a sequence of 2; got float"),
        ([1.0, [2.0, 3.0]], [1.0, [2.0, 4.0]], r"result\[1\]\[1\]: off by 0.333"),
        ({"a": 1.0}, {"b": 1.0}, "expected a mapping with the same keys"),
        ({"a": 1.0}, {"a": 2.0}, r"result\['a'\]: off by 1"),
        (np.ones(3), np.ones(4), r"expected the shape \(3,\); got the shape \(4,\)"),
        (np.ones(3), np.ones((3, 1)), "expected the shape"),
        (np.ones(3), [1.0, 1.0, 1.0], r"expected the shape \(3,\); got 3 items"),
        (np.ones((0, 3)), np.ones((3, 0)), "expected the shape"),
        (np.ones(3), np.array([1.0, 1.0, 1.1]), "off by 0.1"),
        (np.ones(3), np.array([1.0, NAN, 1.0]), "NaN, or infinite values differ|off by nan"),
        (np.array([NAN]), np.array([NAN]), "NaN, or infinite values differ"),
        (CUT, np.array([1.0, -INF, 110.0]), "off by 0.1"),
        (CUT, np.array([1.0, -5.0, 100.0]), "infinite values differ"),
        (CUT, np.array([1.0, INF, 100.0]), "infinite values differ"),
        (np.array([1.0, 2.0]), np.array([1.0, INF]), "off by inf"),
        (np.array([0, 1], np.uint8), np.array([255, 1], np.uint8), "off by 255"),
        (np.array([1, 0], np.uint8), np.array([1, 1], np.uint8), "off by 1"),
        (np.array([True, False]), np.array([True, True]), "bool values differ"),
        (np.array(["a"]), np.array(["b"]), "values differ"),
        (torch.ones(3), torch.tensor([1.0, 1.0, 2.0]), "off by 1"),
        (torch.ones(3), torch.tensor([1.0, 1.0, NAN]), "NaN|nan"),
        (torch.tensor([1.0, -INF]), torch.tensor([1.0, 0.0]), "infinite values differ"),
        (torch.ones(2, 3), torch.ones(3, 2), "expected the shape"),
        (
            torch.tensor([0], dtype=torch.uint8),
            torch.tensor([255], dtype=torch.uint8),
            "off by inf",
        ),
    ],
)
def test_does_not_pass(expected: Any, got: Any, says: str) -> None:
    with pytest.raises(WrongResult, match=says):
        compare(0.01, expected, got)


def test_integers_are_exact_without_tolerance() -> None:
    large = np.array([2**60, 1])
    compare(0.0, large, large.copy())
    with pytest.raises(WrongResult, match="int64 values differ"):
        compare(0.0, large, large + np.array([0, 1]))
    with pytest.raises(WrongResult, match="int64 values differ"):
        compare(0.0, large, large + np.array([1, 0]))


def test_a_function_judges_by_itself() -> None:
    compare(lambda expected, got: True, 1, 2)
    with pytest.raises(WrongResult, match="returned false"):
        compare(lambda expected, got: got > expected, 2, 1)
    compare(None, 1, 2)

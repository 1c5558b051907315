"""Wrong contents of a plan file are refused, even with a correct checksum."""

from __future__ import annotations

import collections
import copy
import io
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofError, TorchError
from bestof.torch.plan.file.container import read, write
from bestof.torch.plan.file.operators import target_of

Content = dict[str, Any]


def saved() -> bytes:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.AvgPool2d(3)),
        *(nn.Flatten(), nn.Linear(8, 5), nn.Softplus()),
    ).eval()
    file = io.BytesIO()
    bt.optimize(model, torch.randn(2, 3, 8, 8)).save(file)
    return file.getvalue()


def stored() -> tuple[Content, list[Tensor]]:
    return read(io.BytesIO(saved()))


def loaded(content: Content, tensors: list[Tensor]) -> bt.OptimizedModel:
    file = io.BytesIO()
    write(file, content, tensors)
    file.seek(0)
    return bt.load(file)


def node(content: Content, target: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one
        for one in content["programs"][0]["nodes"]
        if target in (one.get("target"), one.get("operation", {}).get("name"))
    )
    return found


def _output_shape(target: str) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        node(content, target)["val"] = {"tensor": [[1, 1, 1, 1], [1, 1, 1, 1], "torch.float32"]}

    return change


def _operator(content: Content) -> None:
    softplus = node(content, "aten.softplus.default")
    softplus["target"], softplus["args"] = "aten.from_file.default", ["a file", True, 4]


def _written(content: Content) -> None:
    """An operator that has no form that writes."""
    node(content, "aten.softplus.default")["operation"] = {"name": "written"}
    node(content, "aten.softplus.default")["label"] = "softplus"


def _without_operation(content: Content) -> None:
    del node(content, "pooling")["operation"]


def _unknown_operation(content: Content) -> None:
    node(content, "pooling")["operation"]["name"] = "sorting"


def _too_large_a_window(content: Content) -> None:
    node(content, "pooling")["operation"]["kernel"] = [4, 4]


def _other_geometry(content: Content) -> None:
    node(content, "convolution")["operation"]["padding"] = [7, 7]


def _unknown_activation(content: Content) -> None:
    node(content, "linear")["operation"]["activation"] = "square"


def _unchecked(content: Content) -> None:
    """Read behind the end of a tensor, as this operator does for any size."""
    softplus = node(content, "aten.softplus.default")
    softplus["target"] = "aten._reshape_alias.default"
    softplus["args"], softplus["kwargs"] = [softplus["args"][0], [2**30], [1]], {"dict": {}}


def _mutable(content: Content) -> None:
    node(content, "aten.softplus.default")["target"] = "aten.relu_.default"


def _decision(content: Content) -> None:
    content["programs"][0]["decisions"]["nothing"] = "direct"


def _structure(content: Content) -> None:
    content["programs"][0]["structure"] = ["collections.defaultdict", [["a", None]]]


def _input_shape(content: Content) -> None:
    content["programs"][0]["inputs"] = [{"tensor": [[1, 1, 1, 1], [1, 1, 1, 1], "torch.float32"]}]


def _stride(content: Content) -> None:
    node(content, "convolution")["operation"]["stride"] = 1


def _groups(content: Content) -> None:
    content["weights"][0]["groups"] = True


_CHANGES = [
    *map(_output_shape, ("convolution", "pooling", "linear", "rows")),
    *(_written, _without_operation, _unknown_operation, _too_large_a_window),
    *(_other_geometry, _unknown_activation, _stride, _groups),
    *(_operator, _mutable, _unchecked, _decision, _structure, _input_shape),
]


@pytest.mark.parametrize("change", _CHANGES)
def test_a_file_that_no_plan_has_written(change: Callable[[Content], None]) -> None:
    content, tensors = stored()
    change(content)
    with pytest.raises(TorchError, match="cannot be read here"):
        loaded(content, tensors)


def test_a_bias_that_is_too_short() -> None:
    content, tensors = stored()
    with pytest.raises(TorchError, match="bias"):
        loaded(content, [one[:2] if one.shape == (8,) else one for one in tensors])


@pytest.mark.parametrize(
    "place", [[0, 0, [2**40], [1], "torch.float32"], [0, -1, [2], [1], "torch.float32"]]
)
def test_a_tensor_outside_of_its_memory(place: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums are right, and PyTorch would allocate what is missing."""
    dumps = json.dumps

    def with_place(content: Content) -> str:
        content["tensors"][0] = place
        return dumps(content)

    monkeypatch.setattr(json, "dumps", with_place)
    with pytest.raises(TorchError, match="outside of its memory"):
        loaded(*stored())


def test_a_mutated_or_cut_file_gives_one_error() -> None:
    """Every byte is under a checksum, and no more is allocated than the file is long."""
    content = saved()
    generator = random.Random(0)
    for _ in range(1500):
        changed = bytearray(content)
        if generator.random() < 0.3:
            del changed[generator.randrange(len(changed)) :]
        else:
            for _ in range(generator.choice((1, 1, 4, 64))):
                # Half of them in the header, whose numbers say how much to read.
                end = generator.choice((56, len(changed)))
                changed[generator.randrange(end)] ^= generator.randrange(1, 256)
            if changed == content:
                continue
        with pytest.raises(TorchError, match="the given file object") as raised:
            bt.load(io.BytesIO(changed))
        assert "\n" not in str(raised.value)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values within a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, one in items:
        yield (*path, key)
        yield from _places(one, (*path, key))


def _other(value: Any, generator: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return generator.choice([True, False, None, 0, -1, "x"])
    if isinstance(value, int | float):
        return generator.choice([0, 1, -1, value + 1, value - 1, 2**31, 2**40, None, 2.5])
    if isinstance(value, str):
        names = ["aten.relu.default", "aten.cat.default", "convolution", "pooling", "written"]
        return generator.choice([value + "x", "", *names])
    return generator.choice([[], {}, None, [*value, *value]])


def test_wrong_content_under_right_checksums_never_crashes() -> None:
    """Kernels are given addresses: a file loads only if its shapes agree."""
    content, tensors = stored()
    places = [path for path in _places(content) if path[0] != "host"]
    generator, loads = random.Random(0), 0
    for _ in range(400):
        changed = copy.deepcopy(content)
        *path, last = generator.choice(places)
        holder = changed
        for key in path:
            holder = holder[key]
        holder[last] = _other(holder[last], generator)
        try:
            plan = loaded(changed, tensors)
        except TorchError:
            continue
        loads += 1
        with suppress(BestofError, IndexError), torch.no_grad():
            plan(torch.randn(2, 3, 8, 8))
    assert 0 < loads < 200


def _strides(content: Content) -> None:
    node(content, "linear")["val"]["tensor"][1] = [0, 0]
    content["programs"][0]["nodes"][-1]["args"] = [[{"node": node(content, "linear")["name"]}]]


def test_a_refusal_of_many_lines_is_shortened_to_one() -> None:
    content, tensors = stored()
    node(content, "aten.softplus.default")["args"] = ["text"]
    told = r"cannot be read here: RuntimeError: aten.*; optimise"
    with pytest.raises(TorchError, match=told) as raised:
        loaded(content, tensors)
    assert "\n" not in str(raised.value)


def test_a_plan_that_loads_and_cannot_run_gives_one_error_of_one_line() -> None:
    content, tensors = stored()
    _strides(content)
    plan = loaded(content, tensors)
    for _ in range(2):
        with pytest.raises(TorchError, match=r"that was loaded failed: .*optimise") as raised:
            plan(torch.randn(2, 3, 8, 8))
        assert "\n" not in str(raised.value)


def test_a_header_that_claims_more_than_the_file_allocates_nothing() -> None:
    content = bytearray(saved())
    content[16:24] = (2**62).to_bytes(8, "little")
    tracemalloc.start()
    try:
        with pytest.raises(TorchError, match="ends within its text"):
            bt.load(io.BytesIO(content))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_memory_that_tensors_share_is_written_once() -> None:
    weight = torch.arange(1000.0)
    file = io.BytesIO()
    write(file, {}, [weight, weight.view(10, 100).t(), weight[5:7]])
    assert len(file.getvalue()) < 6000
    file.seek(0)
    whole, turned, part = read(file)[1]
    assert torch.equal(whole, weight)
    assert torch.equal(turned, weight.view(10, 100).t())
    assert turned.stride() == (1, 100)
    assert torch.equal(part, weight[5:7])


def test_a_shorter_storage_at_the_same_address_is_written_apart() -> None:
    # NumPy's arrays are such: every view is a storage of its own.
    whole = numpy.arange(8, dtype=numpy.float32)
    file = io.BytesIO()
    write(file, {}, [torch.from_numpy(whole[:2]), torch.from_numpy(whole)])
    file.seek(0)
    part, again = read(file)[1]
    assert (part.tolist(), again.tolist()) == ([0, 1], whole.tolist())


@pytest.mark.parametrize(
    "name",
    [
        "_reshape_alias",
        "_reshape_alias_copy",
        "max_pool2d_with_indices_backward",
        "_ctc_loss",
        "segment_reduce",
        "_convert_indices_from_csr_to_coo",
    ],
)
def test_an_operator_that_checks_no_index_cannot_be_named(name: str) -> None:
    with pytest.raises(ValueError, match="no operator that a plan may hold"):
        target_of(f"aten.{name}.default")


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan"
    path.write_bytes(b"old")
    with pytest.raises(TorchError, match="dense tensors"):
        write(path, {}, [torch.ones(2).to_sparse()])
    with pytest.raises(TorchError, match=r"save: .*nowhere.* cannot be written"):
        write(tmp_path / "nowhere" / "plan", {}, [])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_outputs_that_nest_in_a_type_of_their_own() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return collections.OrderedDict(a=torch.sin(x))

    plan = bt.optimize(Named().eval(), torch.randn(3))
    with pytest.raises(TorchError, match="OrderedDict"):
        plan.save(io.BytesIO())

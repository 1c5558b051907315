"""Which configurations are valid, and what they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import bestof.torch as integration
from bestof.accuracy import ACCURACIES, allows
from bestof.configuration import Configuration, parse_configuration
from bestof.errors import InvalidArgument
from bestof.kernels import isa
from bestof.selection import Fixed, use_policy
from bestof.torch.dispatch.overrides import convolution_override, operation_overrides, overrides
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.onednn import has_bfloat16


@pytest.mark.parametrize(
    "config", [None, {}, {"kernel": None}, {"kernel": {}}, {"memory": None}, {"memory": {}}]
)
def test_omitted_keys_keep_their_defaults(config: Any) -> None:
    assert parse_configuration(config) == Configuration(True, "float32", 512, True, True)


def test_a_dict_and_a_file_say_the_same(tmp_path: Path) -> None:
    config = {"kernel": {"accuracy": "relaxed", "packed_mib": 3}, "memory": {"keep_freed": False}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    expected = Configuration(accuracy="relaxed", packed_mib=3, keep_freed=False)
    assert (
        parse_configuration(config)
        == parse_configuration(file)
        == parse_configuration(str(file))
        == expected
    )


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"kernels": {}}, r"unknown key 'kernels'; did you mean 'kernel';"),
        (
            {"kernel": {"acuracy": "exact"}},
            r"unknown key 'kernel.acuracy'; did you mean 'kernel.accuracy';",
        ),
        ({"accuracy": "exact"}, r"unknown key 'accuracy'; did you mean 'kernel.accuracy';"),
        (
            {"zebra": 1},
            r"unknown key 'zebra'; known keys: kernel, memory, threads, dataloader, layout, ranks",
        ),
        (
            {"kernel": {"accuracy": "fast"}},
            "kernel.accuracy: expected one of exact, float32, relaxed; got 'fast'",
        ),
        ({"kernel": {"accuracy": 1}}, "kernel.accuracy: expected one of"),
        ({"kernel": {"enable": 1}}, "kernel.enable: expected true or false; got 1"),
        ({"kernel": {"packed_mib": -1}}, "kernel.packed_mib: expected a whole number"),
        ({"kernel": {"packed_mib": True}}, "kernel.packed_mib: expected a whole number"),
        ({"kernel": {"locked": ""}}, "kernel.locked: expected the path of a file; got ''"),
        ({"kernel": {"locked": 3}}, "kernel.locked: expected the path of a file; got 3"),
        ({"kernel": {"locked": "no/such.lock"}}, "cannot read the lock file 'no/such.lock'"),
        ({"kernel": {"tuning_range": [1]}}, "kernel.tuning_range: expected two whole numbers"),
        ({"kernel": {"tuning_range": [3, 3]}}, "kernel.tuning_range: the range is empty: alter"),
        ({"kernel": []}, "kernel: expected a dict; got list"),
        ({"kernel": {"budget": 0}}, "kernel.budget: expected a share of the time above 0"),
        ({"kernel": {"budget": 1.5}}, "kernel.budget: expected a share of the time above 0"),
        ({"kernel": {"budget": True}}, "kernel.budget: expected a share of the time above 0"),
        ({"kernel": {"live_checks": 1}}, "kernel.live_checks: expected true or false; got 1"),
        ({"memory": {"keep_freed": 0}}, "memory.keep_freed: expected true or false; got 0"),
        (
            {"memory": {"keep": True}},
            r"unknown key 'memory.keep'; did you mean 'memory.keep_freed';",
        ),
        ({"keep_freed": True}, r"unknown key 'keep_freed'; did you mean 'memory.keep_freed';"),
        ({"memory": True}, "memory: expected a dict; got bool"),
        ({"dataloader": {"enable": "yes"}}, "dataloader.enable: expected true or false; got 'yes'"),
        (
            {"dataloader": {"tuning_step": 5}},
            r"unknown key 'dataloader.tuning_step'; did you mean 'dataloader.tuning_steps';",
        ),
        (
            {"dataloader": {"tuning_steps": 0}},
            "dataloader.tuning_steps: expected a whole number, 1",
        ),
        ({"dataloader": {"seconds": 0}}, "dataloader.seconds: expected a positive number"),
        ({"dataloader": {"seconds": 10**400}}, "dataloader.seconds: expected a positive number"),
        ({"dataloader": {"seconds": float("nan")}}, "dataloader.seconds: expected a positive"),
        ({"dataloader": {"seconds": True}}, "dataloader.seconds: expected a positive number"),
        ({"dataloader": {"workers": 4}}, r"dataloader.workers: expected two whole numbers"),
        ({"dataloader": {"workers": [0, 1.5]}}, r"dataloader.workers: expected two whole numbers"),
        (
            {"dataloader": {"workers": [4, 2]}},
            "dataloader.workers: the range is empty: 4 is above 2",
        ),
        ({"ranks": {"enable": 1}}, "ranks.enable: expected true or false; got 1"),
        ([], "expected a dict; got list"),
        ("no/such/file.json", "the file 'no/such/file.json' cannot be read"),
    ],
)
@pytest.mark.parametrize("face", [integration.enable, integration.set_config])
def test_unusable_arguments_are_refused_at_once(
    face: Callable[[Any], None], config: Any, told: str
) -> None:
    with pytest.raises(InvalidArgument, match=told):
        face(config)
    assert convolution_override() is None


@pytest.mark.parametrize("content", [b"", b"{kernel}", b"\xff\xfe{}", b"[" * 100_000, b"\0"])
def test_a_file_that_is_no_json_is_refused_with_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument, match="is no JSON") as error:
        parse_configuration(file)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("key", ["layout", "enable"])
def test_a_key_that_comes_twice_is_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "config.json"
    twice = {
        "layout": '{"layout": {"enable": true}, "layout": {"enable": false}}',
        "enable": '{"layout": {"enable": true, "enable": false}}',
    }
    file.write_text(twice[key])
    with pytest.raises(InvalidArgument, match=f"the key '{key}' comes twice; keep one of them"):
        parse_configuration(file)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"layout": {"enable": true}}', encoding="utf-8-sig")
    assert parse_configuration(file).layout


def test_paddlepaddles_dict_is_accepted_as_it_stands(tmp_path: Path) -> None:
    paddles = {
        "kernel": {"enable": True, "tuning_range": [1, 10]},
        "layout": {"enable": True},
        "dataloader": {"enable": True, "tuning_steps": 100},
    }
    (tmp_path / "paddle.json").write_text(json.dumps(paddles))
    for config in (paddles, tmp_path / "paddle.json"):
        parsed = parse_configuration(config)
        assert (parsed.tuning_range, parsed.layout, parsed.tuning_steps) == ((1, 10), True, 100)


def test_settings_that_start_processes_are_off_by_default() -> None:
    assert not parse_configuration(None).dataloader
    assert not parse_configuration({"dataloader": {"tuning_steps": 7}}).dataloader
    on = parse_configuration({"dataloader": {"enable": True, "workers": [1, 3], "seconds": 5}})
    assert (on.dataloader, on.workers, on.seconds, on.tuning_steps) == (True, (1, 3), 5.0, 500)


def met() -> list[ConvProblem]:
    """The problems of one call, which is of a shape of its own."""
    override = convolution_override()
    assert override is not None
    before = set(override.layer.forward_calls.totals())
    with torch.no_grad():
        torch.conv2d(torch.ones(1, 2, 6, 6), torch.ones(2, 2, 3, 3))
    return [problem for problem in override.layer.forward_calls.totals() if problem not in before]


def test_the_last_configuration_holds() -> None:
    integration.enable({"kernel": {"accuracy": "relaxed"}})
    assert [one.accuracy for one in met()] == ["relaxed"]
    integration.enable()
    assert [one.accuracy for one in met()] == ["float32"]
    integration.set_config({"kernel": {"accuracy": "exact"}})
    assert met() == []
    integration.set_config({"kernel": {"enable": False}})
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::convolution", "CPU")
    with pytest.raises(InvalidArgument, match=r"kernel\.enable"):
        integration.enable({"kernel": {"enable": False}})


def test_a_pass_that_is_left_out_leaves_training_to_pytorch() -> None:
    def calls() -> list[int]:
        """Return the calls of each pass, after one in inference and one in training."""
        x, w = (torch.ones(shape, requires_grad=True) for shape in ((1, 2, 7, 7), (2, 2, 3, 3)))
        with torch.no_grad():
            torch.conv2d(x, w)
        torch.conv2d(x, w).sum().backward()
        return [sum(one.calls.totals().values()) for one in operation_overrides()[:3]]

    integration.enable({"kernel": {"without": ["convolution input gradient"]}})
    assert calls() == [1, 0, 0]
    integration.enable()
    assert calls() == [3, 1, 1]
    integration.enable({"kernel": {"without": ["convolution forward"]}})
    assert calls() == [3, 1, 1]
    with pytest.raises(InvalidArgument, match="there is no operation or row 'convolution'"):
        integration.enable({"kernel": {"without": ["convolution"]}})


def test_the_innermost_block_holds_until_its_end() -> None:
    with integration.enabled({"kernel": {"accuracy": "relaxed"}}):
        with integration.enabled({"kernel": {"accuracy": "exact"}}):
            assert met() == []
        assert [one.accuracy for one in met()] == ["relaxed"]


def test_each_level_allows_all_that_stricter_levels_allow() -> None:
    assert [[allows(level, needed) for needed in ACCURACIES] for level in ACCURACIES] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_which_alternatives_a_level_has() -> None:
    problem = ConvProblem((2, 64, 24, 24), (64, 64, 3, 3), padding=(1, 1))
    for catalogue in PASSES:
        exact, float32, relaxed = (
            {row.name for row in catalogue.applying(problem._replace(accuracy=level))}
            for level in ACCURACIES
        )
        assert exact == {"as is"}
        # The gradient of the weight has no kernel by F(6).
        more = set() if catalogue.direction == "weight gradient" else {"native winograd6"}
        if catalogue.direction == "forward" and isa().endswith("_bf16"):
            more |= {"bfloat16 native"}
        assert relaxed - float32 == more | ({"bfloat16"} if has_bfloat16() else set())
        assert "native winograd4" in float32
    assert problem.canonical() != problem._replace(accuracy="relaxed").canonical()


def test_exact_is_exact() -> None:
    layer = torch.nn.Conv2d(8, 8, 3, padding=1)
    x = torch.randn(2, 8, 12, 12)

    def compute() -> list[torch.Tensor]:
        layer.zero_grad()
        source = x.clone().requires_grad_()
        out = layer(source)
        out.square().sum().backward()
        grads = [one.grad for one in (source, *layer.parameters())]
        return [out.detach(), *(grad.clone() for grad in grads if grad is not None)]

    expected = compute()
    with integration.enabled({"kernel": {"accuracy": "exact"}}):
        for _ in range(40):
            assert all(torch.equal(*pair) for pair in zip(compute(), expected, strict=True))


def test_a_policy_that_names_an_alternative_need_not_fit_every_selector() -> None:
    use_policy(Fixed("im2row"))
    with integration.enabled():
        assert [one.accuracy for one in met()] == ["float32"]
        override = convolution_override()
        assert override is not None
        (problem,) = override.layer.forward_pass.report().problems
        assert problem.decision == "im2row"


@pytest.mark.parametrize("budget", [0.5, None])
def test_every_selector_takes_the_budget(budget: float | None) -> None:
    integration.enable({"kernel": {"budget": budget}})
    selectors = [one.selector for made in overrides() for one in (made, *made.parts)]
    assert {one.budget for one in selectors} == {budget}
    integration.enable()
    assert {one.budget for one in selectors} == {0.05}

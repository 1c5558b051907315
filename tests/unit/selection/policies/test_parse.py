"""From text to a policy."""

from __future__ import annotations

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies import Fixed, Race, Rounds, Window, parse_policy
from bestof.selection.policies.policy import Policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("rounds", Rounds()),
        ("rounds:", Rounds()),
        ("rounds:rounds=5,pruning_speedup=4", Rounds(rounds=5, pruning_speedup=4.0)),
        ("rounds: rounds = 5", Rounds(rounds=5)),
        ("rounds:pruning_speedup=inf", Rounds(pruning_speedup=float("inf"))),
        ("race:tie=0.05", Race(tie=0.05)),
        ("race:max_trials=8,tie=0.1", Race(max_trials=8, tie=0.1)),
        ("race:hopeless=30", Race(hopeless=30.0)),
        ("window:1-10", Window(1, 10)),
        ("window:1-10,rounds:rounds=3", Window(1, 10, Rounds(rounds=3))),
        ("fixed:NAME", Fixed("NAME")),
        ("fixed:a:b,c=1", Fixed("a:b,c=1")),
    ],
)
def test_makes_the_policy(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "policy: expected one of race, rounds, window, fixed, got 'random'"),
        ("", "policy: expected one of race, rounds, window, fixed, got ''"),
        (
            "rounds:speed=4",
            "Rounds: expected one of rounds, pruning_speedup, prune_after_round, got 'speed'",
        ),
        ("rounds:rounds=1.5", "Rounds: rounds: expected an integer, got '1.5'"),
        ("rounds:rounds=0", "Rounds: rounds: expected an integer of at least 1; got 0"),
        ("race:tie", "Race: tie: expected a number, got ''"),
        ("window", "Window: expected START-STOP, two numbers of steps, got ''"),
        ("window:10", "Window: expected START-STOP"),
        ("window:10-1", "Window: stop_step: expected an integer of at least 11; got 1"),
        ("window:1-10,fixed:a", "Window: expected rounds or race inside the window, got 'fixed:a'"),
        ("fixed", "Fixed: name: expected the name of an alternative"),
    ],
)
def test_refuses_invalid_values(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_policy(text)
    assert str(refused.value).startswith(message)

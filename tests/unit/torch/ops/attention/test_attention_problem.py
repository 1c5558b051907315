"""What distinguishes one attention from another."""

from __future__ import annotations

import torch

from bestof.torch.ops.attention.problem import AttentionProblem, layout_of


def problem(**changes: object) -> AttentionProblem:
    q = torch.zeros(2, 4, 5, 8)
    return AttentionProblem.of(q, q, q, False, None)._replace(**changes)


def test_texts_of_different_problems_differ() -> None:
    changes = [
        {},
        {"batch": 3},
        {"heads": 8},
        {"shared_heads": 2},
        {"queries": 6},
        {"keys": 6},
        {"size": 16},
        {"layouts": ("tokens", "heads", "heads")},
        {"causal": True},
        {"mask": "keys"},
        {"mask": "scores"},
        {"dtype": "bfloat16"},
        {"threads": 7},
    ]
    assert len({problem(**change).canonical() for change in changes}) == len(changes)
    assert str(problem()) == "b2,h4,q5,k5,d8"
    assert (
        str(problem(shared_heads=2, causal=True, mask="keys", layouts=("tokens",) * 3))
        == "b2,h4/2,q5,k5,d8 tokens-tokens-tokens causal mask=keys"
    )


def test_layouts() -> None:
    assert layout_of(torch.zeros(2, 4, 5, 8)) == "heads"
    assert layout_of(torch.zeros(2, 5, 4, 8).transpose(1, 2)) == "tokens"
    joined = torch.zeros(2, 5, 3, 4, 8)[:, :, 1].transpose(1, 2)  # q, k and v of one product
    assert layout_of(joined) == "tokens"
    assert layout_of(torch.zeros(2, 4, 5, 16)[..., :8]) == "strided"


def test_masks() -> None:
    q = torch.zeros(2, 4, 5, 8)
    kinds = {
        mask.shape: AttentionProblem.of(q, q, q, True, mask).mask
        for mask in (torch.zeros(5, 5), torch.zeros(1, 5), torch.zeros(2, 1, 1, 5))
    }
    assert list(kinds.values()) == ["scores", "keys", "keys"]
    expanded = torch.zeros(2, 1, 1, 5).expand(2, 4, 5, 5)
    assert AttentionProblem.of(q, q, q, False, expanded).mask == "keys"

"""What a treatment has gained, in words."""

from __future__ import annotations

from bestof.doctor.gain import Gain


def test_a_gain_says_why_it_is_not_believed() -> None:
    wavering = Gain([(1.5, 1.0), (1.0, 1.1), (1.5, 1.0)])
    assert not wavering.is_real
    assert wavering.told.endswith("with the cure, which was not faster in each turn")


def test_a_real_gain_and_none_are_told_by_their_times() -> None:
    for gain in (Gain([(1.5, 1.0), (1.4, 1.0)]), Gain([(1.0, 1.1), (1.0, 1.0)])):
        assert gain.told.endswith("with the cure")

"""How problems are named on all ranks, and how the thread of a rank ends."""

from __future__ import annotations

from bestof.torch.ranks.agreement import Agreement
from bestof.torch.ranks.courier import Courier


class Selector:
    name = "toy"

    def race_again(self, problem: object) -> None:
        raise AssertionError("nothing was reopened")


class Empty:
    """A store in which nobody publishes anything."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return desired.encode()

    def check(self, keys: list[str]) -> bool:
        return False

    def get(self, key: str) -> bytes:
        raise AssertionError(f"{key} was never set")

    def add(self, key: str, amount: int) -> int:
        return 0

    def set(self, key: str, value: str) -> None:
        raise AssertionError(f"{key} was set")


def test_the_garbage_collector_of_a_rank_does_not_change_the_names_of_problems() -> None:
    """One rank still holds the first selector when the second one comes, the other does not."""
    keeping, forgetting = Agreement(), Agreement()
    first = Selector()
    keeping._key(first, "5")
    forgetting._key(Selector(), "5")
    second = Selector()
    assert keeping._key(second, "5") == forgetting._key(second, "5") == "toy/1/5"
    assert keeping._key(first, "5") == "toy/0/5"
    assert keeping._key(second, "6") == "toy/0/6"


def test_the_thread_has_ended_before_the_interpreter_does() -> None:
    courier = Courier(Empty(), lambda: 0, lambda key, race: None)
    courier.converse("toy/0/5/0")
    thread = courier._thread
    assert thread is not None
    assert thread.is_alive()
    courier._end()
    assert not thread.is_alive()
    assert courier.converse("toy/0/6/0").broken

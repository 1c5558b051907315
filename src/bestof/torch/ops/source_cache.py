"""What is made from tensors, kept as long as nothing changes them."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from time import perf_counter
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from torch import Tensor, UntypedStorage
from torch.nn import Parameter

from bestof.entries import entries
from bestof.selection.trials.trial import set_apart
from bestof.torch.ops.memory_bound import room, watch

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_MADE = 16384  # keys that are remembered

Owner: TypeAlias = UntypedStorage | Tensor
"""With what an entry leaves."""


def is_of_parameter(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter, or a view of one, and so will be met again."""
    return isinstance(tensor, Parameter) or isinstance(tensor._base, Parameter)


class Stamp(NamedTuple):
    """What tells that a tensor is as it was when something was made from it.

    Writes through `.data` and NumPy raise no version. The fingerprint notices those.
    """

    version: int
    address: int
    fingerprint: int


class Kept(NamedTuple, Generic[V]):
    """One entry of a cache."""

    owner: weakref.ref[Owner]
    stamp: Stamp
    value: V
    nbytes: int
    loan: object  # ends when this does


class SourceCache(Generic[K, V]):
    """Keeps what was made from tensors, in at most `limit` bytes: the oldest leave first.

    An entry leaves with its owner: the memory of the tensor that it was made from. The owner is not
    the tensor itself, because `torch.utils.swap_tensors` refuses tensors with weak references.
    `load_state_dict` and `module.half()` call it where they exchange parameters.

    There is no lock, because a weak reference may be cleared anywhere: each step is one operation
    on a dictionary. If two threads meet, a value may be made twice or lost, which only costs time.
    """

    holds = "weights"
    """What the values are, for `memory_bound.py`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: dict[K, Kept[V]] = {}
        self._made: dict[K, None] = {}
        watch(self)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that all values take."""
        return sum(kept.nbytes for kept in list(self._kept.values()))

    def clear(self) -> None:
        """Forget all entries."""
        self._kept.clear()

    def shrink(self, excess: float) -> None:
        """Forget the oldest entries, of so many bytes together."""
        for old, other in entries(self._kept):
            if excess <= 0:
                break
            self._kept.pop(old, None)
            excess -= other.nbytes

    def _find(self, key: K, owner: Owner, stamp: Stamp) -> V | None:
        """Return what has this key if its owner and stamp are the same. Otherwise forget it."""
        found = self._kept.get(key)
        if found is not None and found.owner() is owner and found.stamp == stamp:
            return found.value
        self._kept.pop(key, None)
        return None

    def _keep(
        self, key: K, owner: Owner, stamp: Stamp, value: V, nbytes: int, loan: object = None
    ) -> bool:
        """Keep a value as long as its owner lives, if the memory bound has room for it.

        It becomes the youngest. Return whether it is kept, and was made for the first time. What is
        made again, because the limit is low or the tensor changes, may be made at each call.

        nbytes: at most the limit. loan: is kept as long as the entry.
        """
        kept = self._kept

        def forget(owner: weakref.ref[Owner]) -> None:
            found = kept.get(key)
            if found is not None and found.owner is owner:
                kept.pop(key, None)

        kept.pop(key, None)
        if nbytes > room():
            return False
        kept[key] = Kept(weakref.ref(owner, forget), stamp, value, nbytes, loan)
        self.shrink(self.size - self.limit)
        is_new = key not in self._made
        if len(self._made) >= _MADE:
            self._made.clear()
        self._made[key] = None
        return is_new

    def _keep_packed(
        self,
        key: K,
        tensor: Tensor,
        stamp: Stamp,
        value: V,
        nbytes: int,
        loan: object,
        began: float,
    ) -> None:
        """Keep what was packed from a tensor, since `began` by `perf_counter`.

        Packing a parameter for the first time is no part of a trial.
        """
        is_new = self._keep(key, tensor.untyped_storage(), stamp, value, nbytes, loan)
        if is_new and is_of_parameter(tensor):
            set_apart(perf_counter() - began)

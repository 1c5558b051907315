from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor

ASKED_EVERY: int

def guards() -> dict[str, bool]: ...
def is_skipped() -> bool: ...
def enter_skipped() -> None: ...
def leave_skipped() -> None: ...
def forget_skipped() -> None: ...
def find(library: str) -> bool: ...
def find_gradients(library: str) -> bool: ...
def find_onednn(library: str) -> bool: ...
def find_registration(library: str) -> bool: ...
def find_guards(library: str) -> bool: ...
def find_tensor_version(library: str) -> bool: ...

class Count:
    calls: Final[int]
    def __next__(self) -> None: ...

class Native:
    packed: Final[int | None]

    def write(self, operands: Sequence[int], results: Sequence[int]) -> bool: ...

def native_convolution(
    owner: object,
    kernels: int,
    plan: int,
    x: tuple[int, int, int, int],
    w: tuple[int, int, int, int],
    y: tuple[int, int],
    channels_last: bool,
    key: int,
) -> Native: ...
def native_plan(
    owner: object,
    kernels: int,
    plan: int,
    operands: int,
    results: list[tuple[Any, ...]],
    packed: tuple[int, int, int],
) -> Native: ...
def onednn_product() -> Native: ...
def compute(shim: Shim, native: Native, handles: list[Any]) -> Any: ...

class Loan: ...

class Watch:
    def is_unchanged(self) -> bool: ...

def memory_sample(address: int, bytes: int) -> bytes: ...
def make_watch(
    tensors: list[Tensor],
    places: list[tuple[dict[str, Any], str] | None],
    handles: list[Any],
    bytes: list[int],
    children: list[tuple[dict[str, Any], str, object]],
    sized: list[dict[str, Any]],
    classed: list[object],
) -> Watch | None: ...

class Shim:
    refused: Final[bool]
    generation: Final[int]
    def put_in(self, key: str = "CPU") -> bool: ...
    def take_out(self) -> None: ...
    def forget(self) -> None: ...
    def set_level(self, level: int) -> None: ...
    def note(self, generation: int, counts: list[Count], native: Native | None) -> bool: ...
    def lend(
        self,
        packed: object,
        packed_address: int,
        address: int,
        key: int,
        version: int,
        fingerprint: int,
    ) -> Loan | None: ...

class OperatorShim(Shim):
    asked: Final[int]

def make_operator_shim(
    to_tensors: Callable[[Any], Any],
    to_handle: Callable[[Any], Any],
    answer: Callable[..., Any],
    operators: list[tuple[str, str, int]],
    kernels: list[Any],
    rule: str,
    least: float,
    waiting: dict[Any, Any],
    first_only: list[Any],
) -> OperatorShim | None: ...

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor

ASKED_EVERY: int
PRODUCTS: tuple[str, ...]

def guards() -> dict[str, bool]: ...
def find(library: str) -> bool: ...
def find_gradients(library: str) -> bool: ...
def find_onednn(library: str) -> bool: ...
def find_registration(library: str) -> bool: ...
def find_guards(library: str) -> bool: ...
def find_tensor_version(library: str) -> bool: ...

class Count:
    calls: Final[int]
    def __next__(self) -> None: ...

class NativeConvolution:
    def __init__(
        self,
        owner: object,
        kernels: int,
        plan: int,
        x: tuple[int, int, int, int],
        w: tuple[int, int, int, int],
        y: tuple[int, int],
        channels_last: bool,
        key: int,
    ) -> None: ...

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

class NativeAttention:
    def __init__(
        self,
        owner: object,
        kernels: int,
        plan: int,
        results: list[tuple[tuple[int, ...], tuple[int, ...], bool]],
    ) -> None: ...

class NativeProduct: ...

class Shim:
    refused: Final[bool]
    generation: Final[int]
    def put_in(self) -> bool: ...
    def take_out(self) -> None: ...
    def forget(self) -> None: ...
    def set_level(self, level: int) -> None: ...
    def lend(
        self,
        packed: object,
        packed_address: int,
        address: int,
        key: int,
        version: int,
        fingerprint: int,
    ) -> Loan | None: ...

class ConvolutionShim(Shim):
    def __init__(
        self,
        to_tensors: Callable[[Any], Any],
        to_handle: Callable[[Any], Any],
        forward: Callable[..., Any],
        backward: Callable[..., Any],
        kept: dict[Any, Any],
        first_only: list[Any],
    ) -> None: ...
    def note(
        self, generation: int, counts: list[Count], native: NativeConvolution | None
    ) -> bool: ...

class AttentionShim(Shim):
    @property
    def asked(self) -> int: ...
    def note(
        self, generation: int, counts: list[Count], native: NativeAttention | None
    ) -> bool: ...

class ProductShim(Shim):
    asked: Final[int]
    def note(self, generation: int, counts: list[Count], native: NativeProduct | None) -> bool: ...

def onednn_product() -> NativeProduct: ...
def planned_product(plan: object, kernels: int, address: int, key: int) -> NativeProduct: ...
def compute_attention(native: NativeAttention, handles: list[Any]) -> Any: ...
def compute_product(
    shim: ProductShim, native: NativeProduct, operation: int, handles: list[Any]
) -> Any: ...
def compute_convolution(
    shim: ConvolutionShim, native: NativeConvolution, handles: list[Any]
) -> Any: ...
def make_attention_shim(
    is_backward: bool,
    to_tensors: Callable[[Any], Any],
    to_handle: Callable[[Any], Any],
    answer: Callable[..., Any],
    kernel: Any,
    least: int,
    first_only: list[Any],
) -> AttentionShim | None: ...
def make_product_shim(
    to_tensors: Callable[[Any], Any],
    to_handle: Callable[[Any], Any],
    answer: Callable[..., Any],
    kernels: list[Any],
    least: int,
    first_only: list[Any],
) -> ProductShim | None: ...

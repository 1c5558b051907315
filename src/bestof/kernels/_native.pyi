from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

class Problem:
    def __init__(
        self,
        x: Sequence[int],
        w: Sequence[int],
        numbers: Sequence[int],
        dtype: str,
        planes: bool,
    ) -> None: ...
    x_shape: Final[tuple[int, ...]]
    w_shape: Final[tuple[int, ...]]
    y_shape: Final[tuple[int, ...]]

class PackedWeights:
    algorithm: Final[str]
    isa: Final[str]
    groups: Final[int]
    nbytes: Final[int]
    shape: Final[tuple[int, ...]]
    address: Final[int]

class Plan:
    def __init__(
        self,
        problem: Problem,
        direction: str,
        algorithm: str,
        activation: str,
        slope: float,
        pool: bool,
        look: bool,
        pitch: int,
    ) -> None: ...
    def run(self, first: int, second: int, out: int, bias: int, residual: int) -> bool: ...
    def run_packed(
        self, first: int, w: PackedWeights, out: int, bias: int, residual: int
    ) -> bool: ...
    address: Final[int]

class BoundPlan:
    def __init__(
        self, plan: Plan, w: PackedWeights, first: int, out: int, bias: int, residual: int
    ) -> None: ...
    def run(self) -> bool: ...

class ResidualLayer: ...

def pointwise_layer(
    problem: Problem, algorithm: str, activation: str, slope: float
) -> ResidualLayer: ...
def depthwise_layer(problem: Problem, activation: str, slope: float) -> ResidualLayer: ...
def has_rows_of_pairs() -> bool: ...

class InvertedResidualPlan:
    def __init__(
        self,
        expansion: ResidualLayer | None,
        depthwise: ResidualLayer,
        projection: ResidualLayer | None,
    ) -> None: ...
    def run(
        self,
        x: int,
        w_expansion: PackedWeights | None,
        b_expansion: int,
        w_depthwise: PackedWeights,
        b_depthwise: int,
        w_projection: PackedWeights | None,
        b_projection: int,
        residual: int,
        out: int,
    ) -> None: ...

def isas() -> list[str]: ...
def isa() -> str: ...
def use_isa(name: str) -> None: ...
def multiply_adds(steps: int, threads: int) -> float: ...
def level3_bytes() -> int: ...
def assume_level3(bytes: int) -> None: ...
def check_scratch(on: bool) -> None: ...

class ErrorBound:
    rms: Final[float]
    maximum: Final[float]

class Row:
    name: Final[str]
    shapes: Final[Literal["any", "kernel", "grouped kernel", "depthwise", "few rows"]]
    kernel_height: Final[int]
    kernel_width: Final[int]
    stride: Final[int]
    directions: Final[list[str]]
    error: Final[ErrorBound]
    rounding: Final[ErrorBound]
    rounds: Final[Literal["nothing", "weights", "both"]]
    accuracy: Final[Literal["float32", "relaxed"]]
    transforms: Final[bool]
    pools: Final[bool]
    pitches: Final[bool]
    dtypes: Final[list[tuple[str, str, str]]]  # of operands, results and sums
    parts: Final[bool]
    emulated: Final[bool]
    eager: Final[bool]
    linear: Final[bool]
    planes: Final[bool]

class Promise:
    name: Final[str]
    error: Final[ErrorBound]
    scratch_bytes: Final[int]
    flops: Final[float]
    packs: Final[bool]
    pools: Final[bool]
    pitches: Final[bool]

def rows() -> list[Row]: ...
def promises(problem: Problem, direction: str, threads: int) -> list[Promise]: ...
def fingerprint(memory: int, bytes: int) -> int: ...
def c_calls() -> int: ...
def pack_weights(
    w: Any, algorithm: str, groups: int, dtype: str, threads: int
) -> PackedWeights: ...
def forward(
    problem: Problem,
    algorithm: str,
    x: Any,
    w: Any,
    bias: Any,
    residual: Any,
    out: Any,
    activation: str,
    slope: float,
    threads: int,
) -> None: ...
def backward(
    problem: Problem, direction: str, algorithm: str, grad: Any, other: Any, out: Any, threads: int
) -> None: ...
def transpose(x: Any, axes: tuple[int, ...], out: Any, algorithm: str) -> None: ...

class ChannelPlan:
    def __init__(
        self,
        pixels: int,
        channels: int,
        step: int,
        dtype: str,
        runs: Sequence[tuple[int, int, int, int, int]],
    ) -> None: ...
    def set_norm(self, scale: Any, shift: Any, activation: str, slope: float) -> None: ...

class BoundChannels:
    def __init__(
        self, plan: ChannelPlan, sources: Sequence[int], residual: int, y: int
    ) -> None: ...
    def run(self) -> None: ...

class PoolPlan:
    def __init__(
        self,
        x: Sequence[int],
        numbers: Sequence[int],
        maximum: bool,
        count_padding: bool,
        dtype: str,
        pitch: int,
    ) -> None: ...
    y_shape: Final[tuple[int, ...]]
    def run(self, x: int, y: int) -> None: ...

def pool(
    x: Any,
    out: Any,
    numbers: Sequence[int],
    maximum: bool,
    count_padding: bool,
    dtype: str,
    threads: int,
) -> None: ...
def pool_backward(
    grad: Any,
    x: Any,
    out: Any,
    numbers: Sequence[int],
    maximum: bool,
    count_padding: bool,
    threads: int,
) -> None: ...
def focal_loss(
    x: Any,
    targets: Any,
    loss: Any,
    gradient: Any,
    alpha: float,
    gamma: float,
    scale: float,
    threads: int,
) -> float: ...
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    out: Any,
    logsumexp: Any,
    causal: bool,
    scale: float,
    dtype: str,
    mask_dtype: str,
    threads: int,
) -> None: ...
def attention_backward(
    given: Sequence[Any], causal: bool, scale: float, dtype: str, mask_dtype: str, threads: int
) -> None: ...
def normalize(
    x: Any,
    residual: Any,
    scale: Any,
    shift: Any,
    out: Any,
    epsilon: float,
    centred: bool,
    dtype: str,
    threads: int,
) -> None: ...
def rotary(x: Any, cos: Any, sin: Any, out: Any, dtype: str, threads: int) -> None: ...
def lamb(
    param: Any,
    grad: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    first: float,
    first_rest: float,
    second: float,
    second_rest: float,
    factor: float,
    term: float,
    decay: float,
    lr: float,
    threads: int,
) -> None: ...
def frozen_norm_forward(
    x: Any,
    mean: Any,
    variance: Any,
    weight: Any,
    bias: Any,
    out: Any,
    eps: float,
    channels_last: bool,
    relu: bool,
    dtype: str,
    threads: int,
) -> None: ...
def frozen_norm_backward(
    gradient: Any,
    y: Any,
    variance: Any,
    weight: Any,
    out: Any,
    eps: float,
    channels_last: bool,
    dtype: str,
    threads: int,
) -> None: ...

class AttentionBackwardPlan:
    address: Final[int]

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        strides: Sequence[Sequence[int]],
        masks: bool,
        causal: bool,
        scale: float,
        dtype: str,
        mask_dtype: str,
        threads: int,
    ) -> None: ...
    def run(self, addresses: Sequence[int]) -> None: ...

class AttentionPlan:
    address: Final[int]

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        strides: Sequence[Sequence[int]],
        masks: bool,
        sums: bool,
        causal: bool,
        scale: float,
        dtype: str,
        mask_dtype: str,
        threads: int,
    ) -> None: ...
    def run(self, q: int, k: int, v: int, mask: int, out: int, logsumexp: int) -> None: ...

class Product:
    def __init__(
        self,
        a: Sequence[int],
        a_strides: Sequence[int],
        b: Sequence[int],
        b_strides: Sequence[int],
        c: Sequence[int],
        c_strides: Sequence[int],
        dtype: str,
    ) -> None: ...

class PackedMatrix:
    algorithm: Final[str]
    isa: Final[str]
    nbytes: Final[int]
    shape: Final[tuple[int, ...]]
    address: Final[int]

class ProductPlan:
    def __init__(
        self, product: Product, algorithm: str, activation: str, slope: float, threads: int
    ) -> None: ...
    def run(
        self, a: int, b: int | PackedMatrix, out: int, bias: int, residual: int, factor: int
    ) -> None: ...
    algorithm: Final[str]
    address: Final[int]

class BoundProduct:
    def __init__(
        self,
        plan: ProductPlan,
        b: PackedMatrix,
        a: int,
        out: int,
        bias: int,
        residual: int,
        factor: int,
    ) -> None: ...
    def run(self) -> None: ...

class ProductRow:
    name: Final[str]
    error: Final[ErrorBound]
    rounding: Final[ErrorBound]
    relaxed: Final[bool]
    few_rows: Final[bool]
    least_rows: Final[int]
    dtypes: Final[list[tuple[str, str, str]]]  # of operands, results and sums
    emulated: Final[bool]

class ProductPromise:
    name: Final[str]
    error: Final[ErrorBound]
    scratch_bytes: Final[int]
    flops: Final[float]
    packs: Final[bool]

def product_rows() -> list[ProductRow]: ...
def product_promises(product: Product, threads: int) -> list[ProductPromise]: ...
def product_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]: ...
def pack_matrix(b: Any, algorithm: str, dtype: str, threads: int) -> PackedMatrix: ...
def matmul(
    a: Any,
    b: Any,
    bias: Any,
    residual: Any,
    factor: Any,
    out: Any,
    algorithm: str,
    dtype: str,
    activation: str,
    slope: float,
    threads: int,
) -> None: ...

class Runnable:
    """A plan; see native/bindings/runnable.h for its operands and results."""

    address: Final[int]
    def run(self, operands: Sequence[int], results: Sequence[int]) -> None: ...

def activation(count: int, name: str, dtype: str) -> Runnable: ...
def activation_backward(count: int, name: str, dtype: str) -> Runnable: ...
def run_steps(functions: list[Callable[[], object]], begin: int) -> int: ...
def bernoulli(count: int, probability: float, dtype: str) -> Runnable: ...
def group_norm_backward(images: int, pixels: int, channels: int, groups: int) -> Runnable: ...
def layer_norm(rows: int, size: int, epsilon: float) -> Runnable: ...
def layer_norm_backward(rows: int, size: int) -> Runnable: ...
def norm(rows: int, size: int, epsilon: float, centred: bool, dtype: str) -> Runnable: ...
def rotary_plan(
    shapes: Sequence[Sequence[int]], strides: Sequence[Sequence[int]], dtype: str, threads: int
) -> Runnable: ...
def excitation(
    shape: Sequence[int],
    hard: bool,
    inner: str,
    inner_slope: float,
    last: str,
    last_slope: float,
) -> Runnable: ...
def softmax(outer: int, size: int, inner: int) -> Runnable: ...

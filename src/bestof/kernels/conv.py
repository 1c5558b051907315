"""2-D convolution, forward and backward, by an algorithm of the caller's choice.

x is [N, H, W, C], w is [O, H, W, C / groups], y is [N, H', W', O]: float32, C-contiguous, on the
CPU. PyTorch stores channels-last tensors so, and `t.permute(0, 2, 3, 1)` passes one without a copy.
The forward pass of algorithms with `planes` also takes x as [N, C, H, W], with
`x_layout="channels_first"`.

The forward pass also takes bfloat16 for x, w, residual and y. The bias stays float32; sums are
float32 and are rounded once. NumPy lacks the type: pass arrays of ml_dtypes, or the bits as uint16
with `dtype="bfloat16"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import PackedWeights
from bestof.kernels.algorithms import Promise, promises_of
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import Pair, integer_of, pitch_of, shape_tuple, threads_of
from bestof.kernels.problem import (
    Activation,
    Padding,
    activation_of,
    algorithm_of,
    direction_of,
    problem_of,
)

# The algorithm of a call that names none, by the type of its operands.
_DEFAULT_ALGORITHM = {"float32": "direct", "bfloat16": "convgemm_bf16"}


def conv2d(
    x: Array,
    w: Array | PackedWeights,
    bias: Array | None = None,
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    algorithm: str | None = None,
    activation: Activation = None,
    residual: Array | None = None,
    out: Array | None = None,
    dtype: str | None = None,
    x_layout: str = "channels_last",
    threads: int | None = None,
) -> Array:
    """Return y = activation(x * w + bias + residual), where * is the cross-correlation.

    w: an array, or weights from `pack_weights`.
    padding: an integer, (y, x), or ((top, bottom), (left, right)).
    algorithm: a name of `conv2d_algorithms`. The default is that of the packed weights, or else
    `direct`, or `convgemm_bf16` for bfloat16.
    activation: relu, relu6, silu, hard_swish, gelu, gelu_tanh (its approximation by tanh),
    leaky_relu (slope 0.01), or ("leaky_relu", slope).
    residual: an array like y. out: the array to write to; it may be `residual`, and must not
    overlap any other argument.
    dtype: of x, w, residual and y, float32 or bfloat16; by default that of x.
    x_layout: channels_last or channels_first. w, y and the residual are in channels last always.
    threads: by default as many as OpenMP uses, which torch shares.
    Raises KernelError before anything is written.
    """
    check_detached(x=x, w=w, bias=bias, residual=residual, out=out)
    packed = isinstance(w, PackedWeights)
    dtype = dtype_of(x, dtype)
    shapes = shape_of(x, "x"), w.shape if packed else shape_of(w, "w")
    problem = problem_of(*shapes, stride, padding, dilation, groups, dtype, x_layout)
    if algorithm is None:
        algorithm = w.algorithm if packed else _DEFAULT_ALGORITHM[dtype]
    name, slope = activation_of(activation)
    if out is None:
        out = empty_like(x, problem.y_shape, dtype)
    x, w, bias, residual, result = map(bits_of, (x, w, bias, residual, out))
    _native.forward(
        problem,
        algorithm_of(algorithm),
        x,
        w,
        bias,
        residual,
        result,
        name,
        slope,
        threads_of(threads),
    )
    return out


def conv2d_backward_input(
    grad: Array,
    w: Array,
    x_shape: Sequence[int],
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    algorithm: str = "convgemm",
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Return the gradient of x, of `x_shape`, from `grad`, the gradient of y; else as `conv2d`."""
    check_detached(grad=grad, w=w, out=out)
    problem = problem_of(
        shape_tuple(x_shape, "x_shape"),
        shape_of(w, "w"),
        stride,
        padding,
        dilation,
        groups,
    )
    if out is None:
        out = empty_like(grad, problem.x_shape)
    _native.backward(
        problem, "backward_input", algorithm_of(algorithm), grad, w, out, threads_of(threads)
    )
    return out


def conv2d_backward_weight(
    grad: Array,
    x: Array,
    w_shape: Sequence[int],
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    algorithm: str = "convgemm",
    out: Array | None = None,
    threads: int | None = None,
) -> Array:
    """Return the gradient of w, of `w_shape`, from `grad`, the gradient of y; else as `conv2d`."""
    check_detached(grad=grad, x=x, out=out)
    problem = problem_of(
        shape_of(x, "x"), shape_tuple(w_shape, "w_shape"), stride, padding, dilation, groups
    )
    if out is None:
        out = empty_like(grad, problem.w_shape)
    _native.backward(
        problem, "backward_weight", algorithm_of(algorithm), grad, x, out, threads_of(threads)
    )
    return out


def conv2d_algorithms(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
    direction: str = "forward",
    dtype: str = "float32",
    x_layout: str = "channels_last",
    threads: int | None = None,
) -> Mapping[str, Promise]:
    """Return what each algorithm that applies to a problem promises, by the algorithm's name.

    direction: forward, backward_input or backward_weight. dtype: that of the tensors, float32 or
    bfloat16. x_layout: as in `conv2d`; `x_shape` is in the same order. threads: those that the
    scratch memory is for; by default as in `conv2d`.
    """
    problem = problem_of(
        shape_tuple(x_shape, "x_shape"),
        shape_tuple(w_shape, "w_shape"),
        stride,
        padding,
        dilation,
        groups,
        dtype_of(None, dtype),
        x_layout,
    )
    return promises_of(problem, direction_of(direction), threads_of(threads))


def pack_weights(
    w: Array,
    algorithm: str,
    *,
    groups: int = 1,
    dtype: str | None = None,
    threads: int | None = None,
) -> PackedWeights:
    """Return weights in the layout of `algorithm`, for any number of forward passes.

    Packed weights serve the instruction set in use, and images of every size and dtype that the
    algorithm takes. The result has `algorithm`, `isa`, `shape`, `groups` and `nbytes`.
    dtype: that of w, as in `conv2d`.
    """
    check_detached(w=w)
    return _native.pack_weights(
        bits_of(w),
        algorithm_of(algorithm),
        integer_of(groups, "groups"),
        dtype_of(w, dtype),
        threads_of(threads),
    )


class Conv2dPlan:
    """A convolution whose problem and algorithm are checked once, at construction.

    This is the cheapest call. `run` takes the addresses of arrays of `dtype` (the bias is float32)
    in the layouts of this module, and does not check them.
    direction, dtype, x_layout: as in `conv2d_algorithms`.
    pool: y holds the largest of each 2x2 results, NaN if one of them is NaN. The last row or column
    of an odd number is left out. It needs an algorithm with `pools`, an activation that never
    falls, and no residual.
    pitch: elements from pixel to pixel of y, by default its channels. With a pitch, y is a part of
    the channels of wider pixels, and the other channels stay as they are. It needs an algorithm
    with `pitches`, and neither a residual nor `pool`.
    looks: an algorithm whose `reach` is a tile looks at its operands first. If an element stands
        out, `run` returns False and writes nothing: another algorithm should compute the call.
    Construction raises KernelError for a problem that cannot be computed.
    """

    __slots__ = ("_plan", "algorithm", "direction", "w_shape", "x_shape", "y_shape")

    def __init__(
        self,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        *,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        algorithm: str,
        direction: str = "forward",
        activation: Activation = None,
        dtype: str = "float32",
        x_layout: str = "channels_last",
        pool: bool = False,
        looks: bool = False,
        pitch: int | None = None,
    ) -> None:
        problem = problem_of(
            shape_tuple(x_shape, "x_shape"),
            shape_tuple(w_shape, "w_shape"),
            stride,
            padding,
            dilation,
            groups,
            dtype_of(None, dtype),
            x_layout,
        )
        name, slope = activation_of(activation)
        self._plan = _native.Plan(
            problem,
            direction_of(direction),
            algorithm_of(algorithm),
            name,
            slope,
            bool(pool),
            bool(looks),
            pitch_of(pitch),
        )
        self.algorithm, self.direction = algorithm, direction
        self.x_shape, self.w_shape, self.y_shape = problem.x_shape, problem.w_shape, problem.y_shape
        if pool:
            n, h, w, k = problem.y_shape
            self.y_shape = n, h // 2, w // 2, k

    def run(
        self, first: int, second: int | PackedWeights, out: int, bias: int = 0, residual: int = 0
    ) -> bool:
        """Run the convolution on addresses; 0 leaves out the bias or the residual.

        Return whether the convolution ran. Only a plan that `looks` may return False.

        first, second and out are x, w, y forward; grad, w, x for the input gradient; grad, x, w for
        the weight gradient.
        """
        try:
            # Empty arrays have no address.
            if not (first and second and out) and all(
                (*self.x_shape, *self.w_shape, *self.y_shape)
            ):
                raise KernelError(
                    f"addresses: expected three that are not 0; got {first!r}, {second!r}, {out!r}"
                )
            if isinstance(second, PackedWeights):
                return self._plan.run_packed(first, second, out, bias, residual)
            return self._plan.run(first, second, out, bias, residual)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):  # arrays have no truth value
            given = first, second, out, bias, residual
            raise KernelError(
                f"addresses: expected integers from 0 on, or packed weights; got {given}"
            ) from None

    def bind(
        self, first: int, second: PackedWeights, out: int, bias: int = 0, residual: int = 0
    ) -> Callable[[], bool]:
        """Return `run` on these addresses with packed weights, for calls without a check.

        A call takes 0.25 us less than `run`. Raises KernelError as `run` does.
        """
        try:
            if not (first and out) and all((*self.x_shape, *self.y_shape)):
                raise KernelError(
                    f"addresses: expected two that are not 0; got {first!r} and {out!r}"
                )
            return _native.BoundPlan(self._plan, second, first, out, bias, residual).run
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):  # arrays have no truth value
            given = first, second, out, bias, residual
            raise KernelError(
                f"addresses: expected integers from 0 on, and packed weights; got {given}"
            ) from None

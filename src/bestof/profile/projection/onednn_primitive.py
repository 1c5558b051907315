"""Build a primitive of oneDNN from a verbose line: with the layouts of the line, or with those that
oneDNN prefers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from bestof.profile.projection.onednn_library import ANY, DTYPES, Library, Unsupported, dims
from bestof.profile.verbose.line import Line
from bestof.profile.verbose.work import sizes_of

_ALGORITHMS = {"convolution_direct": 1, "convolution_winograd": 2, "convolution_auto": 3}
_KINDS = {"forward_training": 64, "forward_inference": 96}
_SCRATCH_OF_USER = 1
_SCRATCHPAD_ROLE = 80
# The numbers of arguments, and of queries for the chosen layout, of each role in each direction.
_FORWARD = {"src": (1, 129), "wei": (33, 131), "bia": (41, 131), "dst": (17, 133)}
_DATA = {"src": (129, 130), "wei": (33, 131), "dst": (145, 134)}
_WEIGHTS = {"src": (1, 129), "wei": (161, 132), "bia": (169, 132), "dst": (145, 134)}
_REORDER = {"src": (1, 129), "dst": (17, 133)}


@dataclass(slots=True)
class Operand:
    """One tensor of a primitive: the number of its argument, its descriptor, and its bytes."""

    role: int
    descriptor: int
    bytes: int


@dataclass(slots=True)
class Primitive:
    """One implementation, ready to run on buffers; `destroy` frees it."""

    library: Library
    implementation: str
    handle: int
    operands: tuple[Operand, ...]

    @property
    def bytes(self) -> int:
        """The bytes of one set of buffers."""
        return sum(one.bytes for one in self.operands)

    def bind(self) -> Callable[[], None]:
        """Return a function that runs it on buffers of its own, which live as long as the
        function."""
        # Of finite values: denormals would slow some kernels down.
        buffers = [torch.ones(-(-one.bytes // 4) + 16) for one in self.operands]
        memories = {
            one.role: self.library.create(
                "dnnl_memory_create", one.descriptor, self.library.engine, _aligned(buffer)
            )
            for one, buffer in zip(self.operands, buffers, strict=True)
        }

        def run(_held: object = buffers) -> None:
            self.library.execute(self.handle, memories)

        return run

    def destroy(self) -> None:
        """Free the primitive and its descriptors; nothing may run it any more."""
        self.library.call("dnnl_primitive_destroy", self.handle)
        for one in self.operands:
            self.library.call("dnnl_memory_desc_destroy", one.descriptor)


def _aligned(buffer: torch.Tensor) -> int:
    return (buffer.data_ptr() + 63) // 64 * 64


def primitives_of(library: Library, line: Line, free_layouts: bool) -> Iterator[Primitive]:
    """Yield the implementations in oneDNN's order, the one that it chooses first.

    `free_layouts` leaves the layouts to oneDNN in place of those of the line. Raises Unsupported
    for a line that cannot be replayed, with the reason.
    """
    build = _BUILDERS.get(line.primitive)
    if build is None:
        raise Unsupported(f"{line.primitive} is not replayed")
    if line.engine != "cpu":
        raise Unsupported(f"it ran on {line.engine}")
    extra = [word for word in line.attributes.split() if not word.startswith("attr-scratchpad")]
    if extra:
        raise Unsupported(f"attributes are not replayed: {' '.join(extra)}")
    attributes = library.create("dnnl_primitive_attr_create")
    library.call("dnnl_primitive_attr_set_scratchpad_mode", attributes, _SCRATCH_OF_USER)
    description, roles, hint = build(library, line, free_layouts, attributes)
    try:
        while True:
            yield _primitive(library, description, roles)
            if not library.next(description):
                return
    finally:
        library.call("dnnl_primitive_desc_destroy", description)
        if hint:
            library.call("dnnl_primitive_desc_destroy", hint)
        library.call("dnnl_primitive_attr_destroy", attributes)


def _primitive(
    library: Library, description: int, roles: Mapping[str, tuple[int, int, int]]
) -> Primitive:
    operands = []
    for number, query, given in roles.values():
        # Only a tensor whose layout was left open has to be asked for. The answer lives as long as
        # `description`.
        asked = given or library.layout(description, query)
        descriptor = library.create("dnnl_memory_desc_clone", asked)
        operands.append(Operand(number, descriptor, library.bytes_of(descriptor)))
    scratch = library.scratchpad(description)
    if scratch:
        scratch = library.create("dnnl_memory_desc_clone", scratch)
        operands.append(Operand(_SCRATCHPAD_ROLE, scratch, library.bytes_of(scratch)))
    handle = library.create("dnnl_primitive_create", description)
    return Primitive(library, library.implementation(description), handle, tuple(operands))


# A primitive descriptor, its tensors, and its hint, which oneDNN reads again for each further
# implementation.
Built = tuple[int, dict[str, tuple[int, int, int]], int]


def _layouts(
    library: Library, line: Line, shapes: Mapping[str, tuple[int, ...]], free: bool
) -> dict[str, int]:
    """A descriptor for each tensor of the line; the bias has one layout only."""
    found = {}
    for one in line.descriptors:
        if one.absent or one.role not in shapes:
            continue
        if one.kind not in ("blocked", "any") or one.dtype not in DTYPES:
            raise Unsupported(
                f"the tensor {one.role} has a layout that is not replayed: {line.layout}"
            )
        tag = ANY if free and one.role != "bia" else one.tag
        strides = [int(step) for step in one.strides.split("x")] if one.strides else []
        if strides and not (one.tag.isalpha() and one.tag.islower()):
            raise Unsupported(f"the tensor {one.role} is blocked and has strides: {line.layout}")
        found[one.role] = library.descriptor(shapes[one.role], one.dtype, tag, strides)
    return found


def _roles(
    numbers: Mapping[str, tuple[int, int]], layouts: Mapping[str, int], free: bool
) -> dict[str, tuple[int, int, int]]:
    return {
        role: (*numbers[role], 0 if free and role != "bia" else layout)
        for role, layout in layouts.items()
    }


def _convolution(library: Library, line: Line, free: bool, attributes: int) -> Built:
    size = sizes_of(line.problem)
    axes = [axis for axis in "dhw" if f"i{axis}" in size]
    shapes = _convolution_shapes(size, axes)
    layouts = _layouts(library, line, shapes, free)
    strides, dilation = ([size[f"{name}{axis}"] for axis in axes] for name in "sd")
    before = [size[f"p{axis}"] for axis in axes]
    after = [
        (size[f"o{axis}"] - 1) * size[f"s{axis}"]
        + (size[f"k{axis}"] - 1) * (size[f"d{axis}"] + 1)
        + 1
        - size[f"i{axis}"]
        - size[f"p{axis}"]
        for axis in axes
    ]
    geometry = [dims(values) for values in (strides, dilation, before, after)]
    algorithm = _ALGORITHMS.get(line.auxiliary.removeprefix("alg:"), 1)
    tensors = [layouts.get(role) for role in ("src", "wei", "bia", "dst")]
    create = "dnnl_convolution_{}_primitive_desc_create"
    if line.direction in _KINDS:
        description = library.create(
            create.format("forward"),
            *(library.engine, _KINDS[line.direction], algorithm, *tensors, *geometry, attributes),
        )
        return description, _roles(_FORWARD, layouts, free), 0
    # A backward primitive wants a hint: the forward one, whose layouts are not prescribed.
    open_ = _layouts(library, line, shapes, free=True)
    hint = library.create(
        create.format("forward"),
        *(library.engine, _KINDS["forward_training"], algorithm),
        *(open_.get(role) for role in ("src", "wei", "bia", "dst")),
        *(*geometry, None),
    )
    if line.direction == "backward_data":
        source, weights, _, result = tensors
        given, numbers = (source, weights, result), _DATA
        layouts.pop("bia", None)
    elif line.direction == "backward_weights":
        given, numbers = tuple(tensors), _WEIGHTS  # type: ignore[assignment]  # four of them
    else:
        raise Unsupported(f"the direction {line.direction!r} is not replayed")
    description = library.create(
        create.format(line.direction),
        *(library.engine, algorithm, *given, *geometry, hint, attributes),
    )
    return description, _roles(numbers, layouts, free), hint


def _convolution_shapes(size: Mapping[str, int], axes: list[str]) -> dict[str, tuple[int, ...]]:
    groups = size.get("g", 0)
    split = max(groups, 1)
    weights = (size["oc"] // split, size["ic"] // split, *(size[f"k{axis}"] for axis in axes))
    return {
        "src": (size["mb"], size["ic"], *(size[f"i{axis}"] for axis in axes)),
        "wei": (groups, *weights) if groups else weights,
        "bia": (size["oc"],),
        "dst": (size["mb"], size["oc"], *(size[f"o{axis}"] for axis in axes)),
    }


def _reorder(library: Library, line: Line, free: bool, attributes: int) -> Built:
    if free:
        raise Unsupported("the layouts of a reorder are its problem")
    shape = tuple(int(one) for one in line.problem.split("x"))
    layouts = _layouts(library, line, {"src": shape, "dst": shape}, free)
    description = library.create(
        "dnnl_reorder_primitive_desc_create",
        *(layouts["src"], library.engine, layouts["dst"], library.engine, attributes),
    )
    return description, _roles(_REORDER, layouts, free), 0


def _matmul(library: Library, line: Line, free: bool, attributes: int) -> Built:
    left, right = (tuple(map(int, one.split("x"))) for one in line.problem.split(":")[:2])
    batch = tuple(max(pair) for pair in zip(left[:-2], right[:-2], strict=True))
    result = (*batch, left[-2], right[-1])
    bias = (*(1 for _ in result[:-1]), right[-1])
    shapes = {"src": left, "wei": right, "dst": result, "bia": bias}
    layouts = _layouts(library, line, shapes, free)
    description = library.create(
        "dnnl_matmul_primitive_desc_create",
        *(library.engine, layouts["src"], layouts["wei"], layouts.get("bia"), layouts["dst"]),
        attributes,
    )
    return description, _roles(_FORWARD, layouts, free), 0


_BUILDERS: dict[str, Callable[[Library, Line, bool, int], Built]] = {
    "convolution": _convolution,
    "reorder": _reorder,
    "matmul": _matmul,
}

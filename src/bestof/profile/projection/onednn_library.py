"""Calls the oneDNN inside PyTorch by its C functions.

PyTorch does not export these functions, but the symbol table of its library lists them. An unknown
version raises ProfileError. So does a wrong result of a small reorder, as a test. Nothing is
replayed by guesswork.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache

import torch

from bestof.errors import ProfileError
from bestof.profile.projection.symbols import addresses

_LIBRARY = "libtorch_cpu.so"
_MAJOR = 3
_DIMENSIONS = 12

Pointer = ctypes.c_void_p
_PD = ctypes.POINTER(Pointer)
_INT = ctypes.c_int

# The functions and their arguments. Each returns a status, which is 0 for success.
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "dnnl_engine_create": (_PD, _INT, ctypes.c_size_t),
    "dnnl_stream_create": (_PD, Pointer, _INT),
    "dnnl_stream_wait": (Pointer,),
    "dnnl_memory_desc_create_with_string_tag": (_PD, _INT, Pointer, _INT, ctypes.c_char_p),
    "dnnl_memory_desc_create_with_tag": (_PD, _INT, Pointer, _INT, _INT),
    "dnnl_memory_desc_create_with_strides": (_PD, _INT, Pointer, _INT, Pointer),
    "dnnl_memory_desc_clone": (_PD, Pointer),
    "dnnl_memory_desc_destroy": (Pointer,),
    "dnnl_memory_create": (_PD, Pointer, Pointer, Pointer),
    "dnnl_memory_destroy": (Pointer,),
    "dnnl_primitive_attr_create": (_PD,),
    "dnnl_primitive_attr_destroy": (Pointer,),
    "dnnl_primitive_attr_set_scratchpad_mode": (Pointer, _INT),
    "dnnl_primitive_desc_query": (Pointer, _INT, _INT, Pointer),
    "dnnl_primitive_desc_next_impl": (Pointer,),
    "dnnl_primitive_desc_destroy": (Pointer,),
    "dnnl_primitive_create": (_PD, Pointer),
    "dnnl_primitive_execute": (Pointer, Pointer, _INT, Pointer),
    "dnnl_primitive_destroy": (Pointer,),
    "dnnl_convolution_forward_primitive_desc_create": (_PD, Pointer, _INT, _INT, *[Pointer] * 9),
    "dnnl_convolution_backward_data_primitive_desc_create": (_PD, Pointer, _INT, *[Pointer] * 9),
    "dnnl_convolution_backward_weights_primitive_desc_create": (
        _PD,
        Pointer,
        _INT,
        *[Pointer] * 10,
    ),
    "dnnl_matmul_primitive_desc_create": (_PD, Pointer, *[Pointer] * 5),
    "dnnl_reorder_primitive_desc_create": (_PD, *[Pointer] * 5),
}
_OTHERS = ("dnnl_version", "dnnl_memory_desc_get_size", "dnnl_primitive_desc_query_md")

DTYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6, "f64": 7}
# The tag with which oneDNN chooses the layout.
ANY = "any"
_TAG_ANY = 1
_IMPLEMENTATION, _SCRATCHPAD = 8, 136


class _Version(ctypes.Structure):
    _fields_ = [("major", _INT), ("minor", _INT), ("patch", _INT)]


class _Argument(ctypes.Structure):
    _fields_ = [("role", _INT), ("memory", Pointer)]


class Unsupported(ProfileError):
    """oneDNN has no implementation for the request."""


class Library:
    """Calls oneDNN. Descriptors, primitives and memories are addresses, which the caller frees."""

    def __init__(self) -> None:
        found = addresses(_LIBRARY, [*_SIGNATURES, *_OTHERS])
        missing = sorted({*_SIGNATURES, *_OTHERS} - found.keys())
        if missing:
            raise ProfileError(f"{_LIBRARY} has no function {missing[0]} in its symbol table")
        self._functions = {
            name: ctypes.CFUNCTYPE(_INT, *arguments)(found[name])  # type: ignore[arg-type]
            for name, arguments in _SIGNATURES.items()
        }
        version = ctypes.CFUNCTYPE(ctypes.POINTER(_Version))(found["dnnl_version"])().contents
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != _MAJOR:
            raise ProfileError(
                f"oneDNN {self.version} is not known here; only versions {_MAJOR}.x are"
            )
        self._size = ctypes.CFUNCTYPE(ctypes.c_size_t, Pointer)(found["dnnl_memory_desc_get_size"])
        self._query = ctypes.CFUNCTYPE(Pointer, Pointer, _INT, _INT)(
            found["dnnl_primitive_desc_query_md"]
        )
        self.engine = self.create("dnnl_engine_create", 1, 0)
        self.stream = self.create("dnnl_stream_create", self.engine, 1)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises Unsupported if it fails."""
        status = self._functions[name](*arguments)
        if status != 0:
            raise Unsupported(f"{name} failed with status {status}")

    def create(self, name: str, *arguments: object) -> int:
        """Call a function that makes an object, and return the address of the object."""
        made = Pointer()
        self.call(name, ctypes.byref(made), *arguments)
        assert made.value is not None
        return made.value

    def descriptor(
        self, sizes: Sequence[int], dtype: str, tag: str, strides: Sequence[int] = ()
    ) -> int:
        """Return a memory descriptor.

        The tag may be `any`. Strides, in elements, replace the tag.
        """
        dimensions = dims(sizes)
        if strides and tag != ANY:
            name = "dnnl_memory_desc_create_with_strides"
            return self.create(name, len(sizes), dimensions, DTYPES[dtype], dims(strides))
        if tag == ANY:
            name = "dnnl_memory_desc_create_with_tag"
            return self.create(name, len(sizes), dimensions, DTYPES[dtype], _TAG_ANY)
        return self.create(
            "dnnl_memory_desc_create_with_string_tag",
            len(sizes),
            dimensions,
            DTYPES[dtype],
            tag.encode(),
        )

    def bytes_of(self, descriptor: int) -> int:
        """Return the bytes of a tensor, with its padding."""
        return int(self._size(descriptor))

    def layout(self, primitive: int, what: int) -> int:
        """Return the descriptor that a primitive descriptor chose for a tensor, or 0 without
        one."""
        return int(self._query(primitive, what, 0) or 0)

    def scratchpad(self, primitive: int) -> int:
        """Return the descriptor of a primitive's scratch memory, or 0 without one."""
        found = self.layout(primitive, _SCRATCHPAD)
        return found if found and self.bytes_of(found) else 0

    def implementation(self, primitive: int) -> str:
        """Return the name of the implementation of a primitive descriptor."""
        name = ctypes.c_char_p()
        self.call("dnnl_primitive_desc_query", primitive, _IMPLEMENTATION, 0, ctypes.byref(name))
        return (name.value or b"").decode()

    def next(self, primitive: int) -> bool:
        """Move a primitive descriptor to its next implementation. Return whether there is one."""
        return bool(self._functions["dnnl_primitive_desc_next_impl"](primitive) == 0)

    def execute(self, primitive: int, memories: Mapping[int, int]) -> None:
        """Run a primitive, and wait for it."""
        arguments = (_Argument * len(memories))(*(_Argument(*one) for one in memories.items()))
        self.call("dnnl_primitive_execute", primitive, self.stream, len(memories), arguments)
        self.call("dnnl_stream_wait", self.stream)


def dims(sizes: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return sizes in the form that oneDNN takes."""
    return (ctypes.c_int64 * _DIMENSIONS)(*sizes)


@cache
def library() -> Library:
    """Return the tested library of this process. Raises ProfileError if it cannot be used."""
    if not torch._C._has_mkldnn:
        raise ProfileError("this PyTorch was built without oneDNN")
    found = Library()
    _test(found)
    return found


def _test(one: Library) -> None:
    """Transpose a matrix by a reorder, and check the result."""
    source = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    target = torch.zeros(4, 3)
    layouts = [one.descriptor((3, 4), "f32", tag) for tag in ("ab", "ba")]
    description = one.create(
        "dnnl_reorder_primitive_desc_create", layouts[0], one.engine, layouts[1], one.engine, None
    )
    primitive = one.create("dnnl_primitive_create", description)
    memories = [
        one.create("dnnl_memory_create", layout, one.engine, tensor.data_ptr())
        for layout, tensor in zip(layouts, (source, target), strict=True)
    ]
    one.execute(primitive, {1: memories[0], 17: memories[1]})
    if not torch.equal(target, source.t()):
        raise ProfileError(f"the oneDNN {one.version} of this PyTorch does not answer as expected")
    one.call("dnnl_primitive_destroy", primitive)
    one.call("dnnl_primitive_desc_destroy", description)
    for memory, layout in zip(memories, layouts, strict=True):
        one.call("dnnl_memory_destroy", memory)
        one.call("dnnl_memory_desc_destroy", layout)

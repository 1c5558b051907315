"""The identity of an alternative: where its functions live, and a digest of what they do.

Stored evidence is valid for one identity. If a function is edited, its digest changes, and it is
measured again. A function of the same name in another program has another place, so two programs do
not share decisions by accident. A script is named by its file, without the folder: evidence in a
lock file is valid wherever the script is copied. A module of bestof is named `bestof`: bestof's own
functions move between its modules, and stay what they are.

The digest reads code objects (bytecode, constants, names, defaults), the functions that closures
and partials hold, and plain data: numbers, texts, tuples, lists, dicts and sets. It reads the
attributes of a callable object, and of the object that a method belongs to, one level deep. For a
compiled function it takes the version of the module that holds the function. It does not read
global variables, or objects that are neither plain data nor callable. State these in `depends=`.

A digest contains no address, and does not depend on the order of hashes. Every process computes the
same digest.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from bestof.selection.interrupts import reraise_from_outside

_DEEPEST = 24  # levels of functions and data that are read
_MOST = 5_000  # the most values that are read; a closure may hold a whole data set
_LONG = 1_000  # characters or bytes; a longer text is read as a digest
_MAIN = ("__main__", "__mp_main__")
_CODE, _DATA = 12, 8  # digits of the two parts of a digest
_IDENTITY = re.compile(rf"(?:^|(?<= ))(\S+)#([0-9a-f]{{{_CODE}}})[0-9a-f]{{{_DATA}}}(?= |$)")
_OWN = __name__.partition(".")[0]
_OWN_PLACE = re.compile(rf"^{_OWN}\.(?:(?!\.py:)[\w.])+:")
_Naming = Callable[[str], str]
_SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))


def version_of(functions: Sequence[Callable[..., Any]], depends: Sequence[str]) -> str:
    """Return the text for which stored evidence of these functions is valid.

    If `depends` is given, it replaces the data: only the functions in closures and objects are
    read. State that differs between processes (a path, a counter) then does not make the evidence
    invalid.
    """
    return _version_text(functions, depends, _present_name)


def is_former(
    version: str, functions: Sequence[Callable[..., Any]], depends: Sequence[str]
) -> bool:
    """Return whether a version of an earlier bestof is that of these functions.

    Earlier versions named the script by its path, in the digest of classes too; its folder does not
    matter. They named each module of bestof.
    """
    scripts: list[str | None] = [None]
    for place, _ in _IDENTITY.findall(version):
        path = re.sub(r"%([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), place)
        path = path.rpartition(":")[0]
        if ("/" in path or "\\" in path) and _without_folder(path) == _former_name("__main__"):
            scripts.append(path)
    for script in scripts:
        if version == _version_text(functions, depends, partial(_former_name, script=script)):
            return True
    # The function may have moved since, if no class of bestof is in its digest.
    moved = _IDENTITY.sub(lambda found: _OWN_PLACE.sub(f"{_OWN}:", found[0]), version)
    return moved != version and moved == version_of(functions, depends)


def is_renamed(version: str, formerly: Sequence[str], depends: Sequence[str]) -> bool:
    """Return whether a version is that of functions at these places, with the same `depends`."""
    rest = _IDENTITY.sub("", version).strip()
    return rest == " ".join(depends) and places(version) == tuple(formerly)


def places(version: str) -> tuple[str, ...]:
    """Return where the functions of a version live. Empty for a version without identities."""
    found = (_OWN_PLACE.sub(f"{_OWN}:", place) for place, _ in _IDENTITY.findall(version))
    return tuple(_without_folder(place) for place in found)


def has_code_of(version: str, other: str) -> bool:
    """Return whether the functions of two versions are the same, apart from the data they hold."""
    one, two = ([code for _, code in _IDENTITY.findall(text)] for text in (version, other))
    return one == two and places(version) == places(other)


def _version_text(
    functions: Sequence[Callable[..., Any]], depends: Sequence[str], naming: _Naming
) -> str:
    identities = (_identity(function, naming, data=not depends) for function in functions)
    return " ".join([*identities, *depends])


def _identity(function: Callable[..., Any], naming: _Naming, *, data: bool) -> str:
    code = _digest(function, naming, _CODE, data=False)
    held = _digest(function, naming, _DATA, data=True) if data else "0" * _DATA
    return f"{_place(function, naming)}#{code}{held}"


def _digest(function: Callable[..., Any], naming: _Naming, digits: int, *, data: bool) -> str:
    digest = hashlib.blake2b(digest_size=digits // 2)
    try:
        for token in _Reader(naming, data=data).tokens(function):
            digest.update(f"{len(token)}:{token}".encode("utf-8", "backslashreplace"))
    except Exception as error:  # a user's object may raise whatever it likes when it is read
        reraise_from_outside()
        # What was read before the error stays in the digest. The code is read first.
        digest.update(type(error).__name__.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _place(function: Any, naming: _Naming) -> str:
    """Return the module and the name of a function, without blanks."""
    while type(function) is partial:
        function = function.func
    try:
        module, name = _attribute(function, "__module__"), _name(function)
    except Exception:  # a user's object may raise whatever it likes when it is read
        reraise_from_outside()
        module, name = None, type(function).__qualname__
    module = module if isinstance(module, str) else type(function).__module__
    place = f"{naming(module)}:{name}"
    return re.sub(r"[\s#%]", lambda found: f"%{ord(found[0]):02x}", place)


def _present_name(module: str) -> str:
    """Return the name of a module in a version: `bestof` for all modules of bestof."""
    return _OWN if module.partition(".")[0] == _OWN else _former_name(module)


def _former_name(module: str, script: str | None = None) -> str:
    """Return the name of a module as earlier versions of bestof wrote it.

    For the main program, this is the module that was run, or the name of the script's file. If
    `script` is given, it stands for that file.
    """
    if module not in _MAIN:
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and module == "__main__":
        return str(spec.name)
    path = getattr(main, "__file__", None)
    if not isinstance(path, str):
        return "__main__"
    return script or os.path.basename(os.path.realpath(path))


def _without_folder(place: str) -> str:
    """Return a place without the folder of its script, which earlier versions of bestof wrote."""
    return re.split(r"[/\\]", place)[-1]


class _TooMuchError(Exception):
    """The limit of values is reached. The digest covers what was read so far."""


class _Reader:
    """Turns one function into tokens.

    Equal values give equal tokens, whether or not they are the same object.
    """

    def __init__(self, naming: _Naming, *, data: bool) -> None:
        self._naming = naming
        self._data = data
        self._inside: set[int] = set()  # the ids of the values being read, outermost first
        self._left = _MOST
        self._looked_at = 0  # values in containers that are searched for functions only

    def tokens(self, value: Any, depth: int = 0) -> Iterator[str]:
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError
        kind = type(value)
        if kind in _SCALARS:
            yield f"{kind.__name__} {_text(value)}"
            return
        if depth >= _DEEPEST or id(value) in self._inside:
            yield f"again or deep {self._class_place(kind)}"
            return
        self._inside.add(id(value))
        yield from self._compound(value, kind, depth)
        self._inside.discard(id(value))

    def _compound(self, value: Any, kind: type, depth: int) -> Iterator[str]:
        if kind in (tuple, list):
            yield f"{kind.__name__} of {len(value)}"
            for member in value:
                yield from self.tokens(member, depth + 1)
        elif kind in (set, frozenset):
            yield f"{kind.__name__} of {len(value)}"
            yield from sorted(self._joined(member, depth) for member in value)
        elif kind is dict:
            yield f"dict of {len(value)}"
            yield from sorted(
                f"{self._joined(key, depth)} -> {self._joined(item, depth)}"
                for key, item in value.items()
            )
        else:
            yield from self._other(value, kind, depth)

    def _joined(self, value: Any, depth: int) -> str:
        return "\0".join(self.tokens(value, depth + 1))

    def _other(self, value: Any, kind: type, depth: int) -> Iterator[str]:
        if kind is FunctionType:
            yield from self._function(value, depth)
        elif kind is CodeType:
            yield from self._code(value, depth)
        elif kind is MethodType:
            yield "method"
            yield from self.tokens(value.__func__, depth + 1)
            yield from self._object(value.__self__, depth)
        elif isinstance(value, partial):
            yield f"partial {self._class_place(kind)}"
            yield from self.tokens(value.func, depth + 1)
            yield from self._if_data(value.args, depth)
            yield from self._if_data(value.keywords, depth)
        elif isinstance(value, type):
            yield f"class {self._class_place(value)} {_version(value.__module__)}"
        elif isinstance(value, ModuleType):
            yield f"module {value.__name__} {_version(value.__name__)}"
        elif isinstance(value, Enum):
            yield f"{self._class_place(kind)}.{value.name}"
        elif getattr(kind, "_is_selector", False):
            # The alternatives of a selector have identities of their own. Inside its own
            # alternatives, the selector does not exist yet.
            yield "empty"
        elif kind in (range, slice):
            yield kind.__name__
            for member in (value.start, value.stop, value.step):
                yield from self.tokens(member, depth + 1)
        elif callable(value):
            yield from self._callable(value, kind, depth)
        else:
            yield f"object {self._class_place(kind)}"

    def _function(self, function: FunctionType, depth: int) -> Iterator[str]:
        yield "function"
        yield from self.tokens(function.__code__, depth + 1)
        yield from self._if_data(function.__defaults__, depth)
        yield from self._if_data(function.__kwdefaults__, depth)
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            # the variable is assigned later, such as the name of a selector that calls itself
            except ValueError:
                yield from ["empty"] if self._data else []
                continue
            yield from self._if_data(held, depth)

    def _code(self, code: CodeType, depth: int) -> Iterator[str]:
        arguments = code.co_argcount + code.co_kwonlyargcount
        yield f"code {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount}"
        yield f"{code.co_flags} {code.co_code.hex()}"
        yield getattr(code, "co_exceptiontable", b"").hex()  # from Python 3.11 on
        yield " ".join((*code.co_varnames[:arguments], ";", *code.co_names))
        for constant in code.co_consts:
            yield from self.tokens(constant, depth + 1)

    def _callable(self, value: Any, kind: type, depth: int) -> Iterator[str]:
        yield f"callable {self._class_place(kind)}"
        wrapped = _attribute(value, "__wrapped__")
        if callable(wrapped):
            yield from self.tokens(wrapped, depth + 1)
        owner = _attribute(value, "__self__")
        if isinstance(value, BuiltinFunctionType) and not isinstance(owner, ModuleType | None):
            yield from self._object(owner, depth)
        call = inspect.getattr_static(kind, "__call__", None)
        if isinstance(call, FunctionType):
            yield from self.tokens(call, depth + 1)
            yield from self._object(value, depth)
            return
        name = _attribute(value, "__module__")
        yield (
            f"compiled {_name(value)} "
            f"{_version(name if isinstance(name, str) else kind.__module__)}"
        )
        if callable(wrapped):
            return
        yield from self._object(value, depth)

    def _object(self, value: Any, depth: int) -> Iterator[str]:
        """Yield the class of an object, and its attributes unless `depends` replaces them."""
        if isinstance(value, type | ModuleType):
            yield from self.tokens(value, depth + 1)
            return
        if type(value) in _SCALARS or type(value) in (tuple, list, dict, set, frozenset):
            yield from self._if_data(value, depth)
            return
        yield f"of {self._class_place(type(value))}"
        for name, held in sorted(_attributes(value), key=itemgetter(0)) if self._data else ():
            yield name
            if _is_readable(held):
                yield from self.tokens(held, depth + 1)
            else:
                yield self._class_place(type(held))

    def _if_data(self, value: Any, depth: int) -> Iterator[str]:
        """Yield a held value, or only its functions if `depends` replaces the data."""
        if self._data or _is_code(value):
            yield from self.tokens(value, depth + 1)
        elif type(value) in (tuple, list) and depth < _DEEPEST and id(value) not in self._inside:
            self._inside.add(id(value))
            for member in value:
                self._looked_at += 1
                if self._looked_at > _MOST:
                    break
                yield from self._if_data(member, depth + 1)
            self._inside.discard(id(value))

    def _class_place(self, kind: type) -> str:
        return f"{self._naming(kind.__module__)}.{kind.__qualname__}"


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute, or None if it cannot be read."""
    try:
        return getattr(value, name, None)
    except Exception:  # a user's object may raise whatever it likes when it is read
        reraise_from_outside()
        return None


def _text(value: Any) -> str:
    """Return the text of a plain value. A long one gives its length and a digest."""
    if isinstance(value, int) and value.bit_length() > 64:
        return hex(value)  # Python refuses to write more than 4,300 decimal digits
    if isinstance(value, str | bytes) and len(value) > _LONG:
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return f"{len(value)} {hashlib.blake2b(data, digest_size=16).hexdigest()}"
    return repr(value)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | MethodType | BuiltinFunctionType | partial | type)


def _is_readable(value: Any) -> bool:
    """Return whether an attribute is read: a function or plain data.

    Other objects are not read, because they may reach the whole program.
    """
    return _is_code(value) or type(value) in (*_SCALARS, tuple, list, dict, set, frozenset)


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        yield from ((name, held) for name, held in own.items() if name != "__wrapped__")
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                try:
                    yield name, object.__getattribute__(value, name)
                except AttributeError:  # not set, or its name is mangled
                    continue


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__qualname__


@cache
def _version(module: str) -> str:
    """Return the version of the package that holds a module.

    If the package has none, return a digest of the module's file.
    """
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in _MAIN:
        # the host holds Python's version, and the functions of a script are read themselves
        return ""
    package = sys.modules.get(top)
    stated = getattr(package, "__version__", None)
    if isinstance(stated, str):
        return stated
    from importlib import metadata  # noqa: PLC0415 - it takes longer to import than bestof

    try:
        return metadata.version(top)
    except (metadata.PackageNotFoundError, ValueError):
        pass
    path = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(path, str):
        return ""
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return ""

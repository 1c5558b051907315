"""A Python program that runs inside this process exactly as `python script.py` would run it.

A program can see four differences: modules that were imported before it began, three more frames
at the bottom of its stack, `sys.orig_argv`, and what `bestof run` adds to the environment for the
processes that the program starts. Everything else is Python's own. The namespace is
that of a module which lives as long as the process, so threads and exit handlers find their
globals. Exceptions go to the interpreter, which prints them and picks the exit status or the signal
to die by.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from bestof.errors import InvalidArgument

_GetCode = Callable[[str], CodeType | None]


@dataclass(frozen=True, slots=True)
class Script:
    """A program that was found and has not started.

    `compiled` returns its code, and may raise as the program would. `path_entry` becomes
    `sys.path[0]`, or is None if the interpreter was told to add none (`-P`) for a script.
    """

    name: str
    argv: tuple[str, ...]
    path_entry: str | None
    attributes: dict[str, Any]
    compiled: Callable[[], CodeType]

    def run(self, prepare: Callable[[], object] = lambda: None) -> int:
        """Become the main program and run to its end. Return 0, or raise what the program raises.

        `prepare` is called after `sys.path` is set for the program. Call this once per process,
        with no exception being handled, and from as near to the bottom of the stack as possible.
        """
        main = ModuleType("__main__")
        vars(main).update(self.attributes)
        sys.modules["__main__"] = main
        sys.argv = list(self.argv)
        if self.path_entry is not None:
            # With -P there is no entry to replace. A folder or a zip file is added all the same.
            sys.path[: 0 if _safe_path() else 1] = [self.path_entry]
        prepare()
        try:
            code = self.compiled()
        except Exception as error:
            # The interpreter shows no traceback for a program that never started.
            sys.excepthook = _OwnTraceback(error, None, sys.excepthook)
            raise
        try:
            exec(code, vars(main))
        except SystemExit:
            raise
        except BaseException as error:
            beneath = error.__traceback__
            assert beneath is not None
            sys.excepthook = _OwnTraceback(error, beneath.tb_next, sys.excepthook)
            raise
        return 0


def split_arguments(
    argv: Sequence[str], valued: Collection[str]
) -> tuple[list[str], bool, list[str]]:
    """Return bestof's own options, whether `-m` was given, and the program with its arguments.

    `valued` are the options with a value. Such a value is not the program.
    """
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return list(argv[:position]), False, list(argv[position + 1 :])
        if word == "-m":
            return list(argv[:position]), True, list(argv[position + 1 :])
        if not word.startswith("-") or word == "-":
            break
        position += 2 if word in valued else 1
    return list(argv[:position]), False, list(argv[position:])


def find_script(path: str, arguments: Sequence[str]) -> Script:
    """Return the program in a file, a folder or a zip file. Raises InvalidArgument if there is
    none."""
    importer = _importer(path)
    if importer is not None:
        return _find_main(path, importer, arguments)
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        raise InvalidArgument(f"cannot run {path!r}: {error.strerror or error}") from error
    # Join without resolving ".", ".." or links, as the interpreter does, because tracebacks show
    # the name.
    file_name = os.path.join(os.getcwd(), path)
    attributes = {
        "__loader__": SourceFileLoader("__main__", file_name),
        "__builtins__": builtins,
        "__file__": file_name,
        "__cached__": None,
    }
    return Script(
        name=path,
        argv=(path, *arguments),
        path_entry=None if _safe_path() else os.path.dirname(os.path.realpath(path)),
        attributes=_with_annotations(attributes),
        compiled=lambda: compile(source, file_name, "exec", dont_inherit=True),
    )


def _importer(path: str) -> Any:
    """Return what finds modules in a folder or a zip file; None for another file.

    The interpreter asks the same hooks.
    """
    if not (os.path.isdir(path) or os.path.isfile(path)):
        return None
    return pkgutil.get_importer(os.path.join(os.getcwd(), path))  # as the interpreter joins them


def _find_main(path: str, importer: Any, arguments: Sequence[str]) -> Script:
    """Return the program `__main__` in a folder or a zip file, as `python FOLDER` runs it."""
    spec = importer.find_spec("__main__")
    get_code = None if spec is None else getattr(spec.loader, "get_code", None)
    if spec is None or get_code is None:
        raise InvalidArgument(
            f"cannot run {path!r}: it has no file __main__.py; name the script in it, or use -m "
            "PACKAGE"
        )
    return Script(
        name=path,
        argv=(path, *arguments),
        path_entry=os.path.join(os.getcwd(), path),
        attributes=_attributes_of(spec),
        compiled=partial(_module_code, get_code, "__main__"),
    )


def find_module(name: str, arguments: Sequence[str]) -> Script:
    """Return the program that `python -m name` would run. Raises InvalidArgument if none exists."""
    entry = None if _safe_path() else os.getcwd()
    before = sys.path[:]
    if entry is not None:
        sys.path[0] = entry
    try:
        spec = _main_spec(name)
    finally:
        sys.path[:] = before
    loader = spec.loader
    # Loaders of editable installs pass `get_code` on, and are no InspectLoader.
    get_code = getattr(loader, "get_code", None)
    if get_code is None or not _has_code(get_code, spec.name):
        raise InvalidArgument(f"cannot run the module {name!r}: it has no Python code")
    return Script(
        name=f"-m {name}",
        argv=(spec.origin or name, *arguments),
        path_entry=entry,
        attributes=_attributes_of(spec),
        compiled=partial(_module_code, get_code, spec.name),
    )


def _attributes_of(spec: ModuleSpec) -> dict[str, Any]:
    return _with_annotations(
        {
            "__loader__": spec.loader,
            "__builtins__": builtins,
            "__file__": spec.origin,
            "__cached__": spec.cached,
            "__package__": spec.parent,
            "__spec__": spec,
        }
    )


def _module_code(get_code: _GetCode, name: str) -> CodeType:
    code = get_code(name)
    assert code is not None
    return code


def _has_code(get_code: _GetCode, name: str) -> bool:
    try:
        return get_code(name) is not None
    except Exception:  # such as a SyntaxError, which the program raises when it runs
        return True


def _main_spec(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise InvalidArgument(f"cannot run the module {name!r}: {error}") from error
    if spec is None:
        raise InvalidArgument(
            f"cannot run the module {name!r}: there is no such module on sys.path"
        )
    return spec


def _safe_path() -> bool:
    return bool(getattr(sys.flags, "safe_path", False))  # since Python 3.11


def _with_annotations(attributes: dict[str, Any]) -> dict[str, Any]:
    # Until Python 3.13, the main module has an empty dict of annotations. Later versions make it on
    # demand.
    return attributes if sys.version_info >= (3, 14) else {"__annotations__": {}, **attributes}


class _OwnTraceback:
    """An exception hook that shows one error without bestof's frames below the program's."""

    def __init__(
        self,
        error: BaseException,
        traceback: TracebackType | None,
        hook: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    ) -> None:
        self._error = error
        self._traceback = traceback
        self._hook = hook

    def __call__(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        sys.excepthook = self._hook
        if error is self._error:
            traceback = self._traceback
            error.__traceback__ = traceback
            sys.last_traceback = traceback
        self._hook(kind, error, traceback)

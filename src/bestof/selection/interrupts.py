"""Tell exceptions that arrive from outside from those that a called function raises itself.

The interpreter runs a signal handler or a trace function between two instructions of whatever
function is running, and raises what it raises there. Another thread may also set an exception,
which then appears between two instructions. Such an exception is meant for the program. It says
nothing about the function that happened to run.

How each kind is told:

- A signal handler is known by its frame in the traceback: its code is that of a handler which was
  registered when the call began, or is registered now. A handler that the called function registers
  for itself and takes back, such as a time limit of its own, is no outsider.
- A trace function is known by its arguments: it gets the frame that it interrupts.
- An exception of another thread (`PyThreadState_SetAsyncExc`) has no frame. It is known if it
  appears at an instruction that cannot raise (a jump backwards, the beginning of a function). It is
  also known if it appears after a call, without a frame of the callee, and if its class can be
  called without arguments to make it, as the interpreter does. Compiled code that raises a class
  written in Python, without arguments, cannot be told from this.

Not told: a handler written in C that raises an Exception with a message, after a call of compiled
code.
"""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Iterator
from opcode import opname
from types import CodeType, FrameType, MethodType, TracebackType
from typing import Any

try:
    from _signal import getsignal  # type: ignore[import-not-found]  # without the enumerations of `signal`: 0.03 us in place of 0.5
except ImportError:
    from signal import getsignal

_LINKS = 16  # the most exceptions of a chain that are searched
_WRAPPERS = 8  # the most wrappers around a handler that are taken off
_EVENTS = ("call", "line", "return", "exception", "opcode")
# Instructions at which the interpreter looks for signals, and which cannot raise by themselves.
_HARMLESS = ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
# Others at which it looks.
_LOOKS = ("CALL", "PRECALL", "POP_JUMP")
# Compiled code raises these without arguments.
_BARE = (StopIteration, StopAsyncIteration, MemoryError)

_SIGNALS = tuple(sorted(map(int, signal.valid_signals())))
# Those that end what a program does: all that a handler can take back as it raises. Reading all 64
# takes 4 us, a whole trial.
_ENDING = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"),
        *("SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGBREAK"),
    )
    if hasattr(signal, name)
)

Handlers = tuple[Any, ...]
_NO_HANDLERS: Handlers = ()


def registered_handlers() -> Handlers:
    """Return the handlers of the signals that end what a program does. Takes 0.5 us."""
    return tuple(map(getsignal, _ENDING))


def comes_from_outside(error: BaseException, handlers: Handlers = _NO_HANDLERS) -> bool:
    """Return whether an exception, or one that it was raised from, came from outside.

    Call this in the function that has caught the exception. `handlers` are those that were
    registered before the call that raised it.
    """
    if isinstance(error, RecursionError):
        # A handler has no reason to raise it, and each of a thousand frames would search them all.
        return False
    code_owners = _code_owners((*handlers, *map(getsignal, _SIGNALS)))
    return any(_has_handler(link, code_owners) or _is_set_by_thread(link) for link in _links(error))


def reraise_from_outside(handlers: Handlers = _NO_HANDLERS) -> None:
    """Raise the exception that is being handled again, if it comes from outside."""
    error = sys.exc_info()[1]
    if error is not None and comes_from_outside(error, handlers):
        raise error


def _links(error: BaseException) -> Iterator[BaseException]:
    """Give an exception, and those from which it was raised during the same call.

    An exception that the program was handling when it made the call is no part of the call.
    """
    waiting, seen = [error], {id(error)}
    live: set[int] | None = None
    while waiting and len(seen) <= _LINKS:
        link = waiting.pop()
        if link is not error and link.__traceback__ is not None:
            live = _live_frames() if live is None else live
            if id(link.__traceback__.tb_frame) in live:
                continue
        yield link
        for other in (link.__cause__, link.__context__, *getattr(link, "exceptions", ())):
            if isinstance(other, BaseException) and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)


def _live_frames() -> set[int]:
    frames: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        frames.add(id(frame))
        frame = frame.f_back
    return frames


def _code_owners(handlers: Handlers) -> dict[CodeType, list[Any]]:
    """Return the objects whose methods handle signals, by code; None for a plain function."""
    owners: dict[CodeType, list[Any]] = {}
    for handler in handlers:
        if not callable(handler) or handler is signal.default_int_handler:
            continue
        for code, owner in _codes(handler):
            owners.setdefault(code, []).append(owner)
    return owners


def _codes(handler: Any) -> Iterator[tuple[CodeType, Any]]:
    """Give the code of a handler and of what it wraps, each with the object that it belongs to."""
    owner = None
    for _ in range(_WRAPPERS):
        if isinstance(handler, functools.partial):
            handler = handler.func
        elif isinstance(handler, MethodType):
            owner, handler = handler.__self__, handler.__func__
        elif isinstance(getattr(handler, "__code__", None), CodeType):
            yield handler.__code__, owner
            handler = getattr(handler, "__wrapped__", None)
        elif hasattr(handler, "__wrapped__"):
            handler = handler.__wrapped__
        else:
            owner, handler = handler, type(handler).__call__
        if handler is None:
            return


def _has_handler(error: BaseException, code_owners: dict[CodeType, list[Any]]) -> bool:
    """Return whether a traceback has the frame of a signal handler or of a trace function."""
    entry, before = error.__traceback__, None
    made: set[CodeType] = set()  # the functions that the call itself makes
    while entry is not None:
        frame = entry.tb_frame
        code = frame.f_code
        if before is not None:
            owners = code_owners.get(code)
            if owners is not None and code not in made and _belongs(frame, owners):
                return True
            if _traces(frame, before):
                return True
            made.update(one for one in code.co_consts if isinstance(one, CodeType))
        before, entry = frame, entry.tb_next
    return False


def _belongs(frame: FrameType, owners: list[Any]) -> bool:
    """Return whether a frame runs a handler of one of these objects, or a plain function."""
    if None in owners or not frame.f_code.co_argcount:
        return True
    own = frame.f_locals.get(frame.f_code.co_varnames[0])
    return any(own is owner for owner in owners)


def _traces(frame: FrameType, before: FrameType) -> bool:
    """Return whether a frame is that of a trace function, called for the frame before."""
    code = frame.f_code
    if code.co_argcount < 2 and not code.co_flags & 4:  # CO_VARARGS
        return False
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4)
    values: list[Any] = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        values += value if type(value) is tuple else (value,)
    return any(one is before for one in values) and any(
        type(one) is str and one in _EVENTS for one in values
    )


def _is_set_by_thread(error: BaseException) -> bool:
    """Return whether another thread has set an exception (see the head of this file)."""
    entry: TracebackType | None = error.__traceback__
    if entry is None:
        return False
    while entry.tb_next is not None:
        entry = entry.tb_next
    code, place = entry.tb_frame.f_code.co_code, entry.tb_lasti
    if place < 0:  # before the first instruction, Python 3.10
        return True
    name = opname[code[place]] if place < len(code) else ""
    if name in _HARMLESS:
        return True
    return name.startswith(_LOOKS) and _is_made_without_arguments(error)


def _is_made_without_arguments(error: BaseException) -> bool:
    kind = type(error)
    if isinstance(error, _BARE):
        return False
    if kind.__module__ == "builtins":
        return error.args == ()
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ != "__main__" and not str(file).endswith((".py", ".pyc")):
        return False  # made by compiled code
    try:
        return bool(kind().args == error.args)
    except Exception:  # it needs arguments, or refuses these
        return False

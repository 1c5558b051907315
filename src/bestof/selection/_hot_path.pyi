from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from bestof.selection.passes import OpenPasses
from bestof.selection.trials.trial import Trial

class Winner:
    functions: tuple[Callable[..., Any], ...]
    calls: int
    sample_at: int
    earlier: OpenPasses | None
    def __init__(self, functions: tuple[Callable[..., Any], ...], sample_at: int = ...) -> None: ...
    def begin(self) -> bool: ...
    def withdraw(self) -> None: ...
    def answers(self, stage: int) -> bool: ...
    def take(self, stage: int) -> bool: ...
    def take_anyones(self, stage: int) -> bool: ...
    def pass_over_earlier(self) -> None: ...
    def is_open(self, own: bool) -> bool: ...

class HotPath:
    detours: list[object]
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

def timed(
    detours: list[object],
    current_trial: ContextVar[Trial | None],
    trial: Trial,
    clock: Callable[[], float],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[float, Any]: ...

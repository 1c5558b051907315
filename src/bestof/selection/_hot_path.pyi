from collections.abc import Callable
from typing import Any

class Winner:
    functions: tuple[Callable[..., Any], ...]
    calls: int
    sample_at: int
    def __init__(self, functions: tuple[Callable[..., Any], ...], sample_at: int = ...) -> None: ...

class HotPath:
    detours: list[object]
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

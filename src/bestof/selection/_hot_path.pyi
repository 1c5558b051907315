from typing import Any

class HotPath:
    detours: list[object]
    settled_calls: int
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

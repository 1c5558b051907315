"""Call a function when the program imports a module.

PyTorch reads its environment (`OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES`) during its import, and
programs set these variables in their first lines. If bestof imported PyTorch earlier, these
settings would have no effect. A program that never uses PyTorch would also wait seconds for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from bestof_autoload import when_ready


def after_import(name: str, action: Callable[[], object]) -> None:
    """Call `action` once, right after the module `name` is imported.

    If the module has been imported already, call it now. If `bestof.torch` imports the module, call
    it when `bestof.torch` is there, too.
    """
    if name in sys.modules:
        when_ready(action)
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


class _Watcher(MetaPathFinder):
    """A finder that comes first until the module is imported, and then removes itself."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        # Those before were asked already. One that asks the others in turn would come back here.
        place = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[place:]:
            find = getattr(finder, "find_spec", None)  # the interpreter passes over one without
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        # `importlib.util.find_spec`, which only asks whether the module exists, comes here too. So
        # the watcher stays until the module is executed.
        if spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self)
        return spec

    def imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            when_ready(self._action)


class _WatchedLoader(Loader):
    """Wraps the loader of the module, to tell the watcher when the module has been executed.

    The module sees its own loader only.
    """

    def __init__(self, loader: Loader, watcher: _Watcher) -> None:
        self._loader = loader
        self._watcher = watcher

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watcher.imported()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

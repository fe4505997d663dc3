"""In a process started with this folder on PYTHONPATH, `import exllamav2` works without a GPU.

For tests that start the service as users do: the engine's process is a grandchild of the test, and
only the environment reaches it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Prepared(Loader):
    """Hand out the module that `install` has imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """It is complete."""


class _Finder(MetaPathFinder):
    """Prepare the library at its first import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "exllamav2":
            return None
        sys.meta_path.remove(self)
        from tests.support.exllamav2.library import install

        install()
        return ModuleSpec(fullname, _Prepared(sys.modules[fullname]))


sys.meta_path.insert(0, _Finder())

"""Let the installed exllamav2 run where there is no GPU. Call `install` before it is imported.

Patched, all of it because the library takes CUDA for granted when it loads: `torch.cuda.synchronize`,
its device numbers (they mean the CPU here), moving a tensor between devices, and the stream of a
device context. The generator, its jobs, the cache and the sampler are left alone.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from service.adapters.engines.exllamav2.attention_import import import_library
from tests.support.exllamav2.extension import build
from tests.support.exllamav2.kernels import KERNELS


class _Extension(ModuleType):
    """`exllamav2_ext` with what can run here; anything else says that it needs a GPU."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_: object) -> None:
            raise RuntimeError(f"exllamav2_ext.{name} needs a GPU")

        return missing


def install() -> None:
    """Prepare the import of exllamav2. On a machine with a GPU nothing is changed. Idempotent."""
    if torch.cuda.is_available() or "exllamav2" in sys.modules:
        return
    host = build()
    extension = _Extension("exllamav2_ext")
    extension.__dict__.update(
        {name: value for name, value in vars(host).items() if not name.startswith("__")}
    )
    extension.__dict__.update(KERNELS)
    sys.modules["exllamav2_ext"] = extension
    torch.cuda.synchronize = _nothing
    import_library()
    modules: dict[str, Any] = dict(sys.modules)
    for name in ("module", "model", "device"):
        modules[f"exllamav2.{name}"]._torch_device = _cpu
    for name, module in modules.items():
        if name.startswith("exllamav2.") and hasattr(module, "safe_move_tensor"):
            module.safe_move_tensor = _stay
    modules["exllamav2.device"].ExLlamaV2DeviceContext.__init__ = _device_context


def _nothing(*_: object, **__: object) -> None:
    """Stand in for what waits for a GPU."""


def _cpu(_: int) -> str:
    return "cpu"


def _stay(tensors: Any, *_: object, **__: object) -> Any:
    return tensors


def _device_context(self: Any, model: Any, device: int, scratch_bytes: int, archparams: Any = None) -> None:
    """Make a device context without a CUDA stream."""
    self.model, self.device_idx, self.ready = model, device, False
    self.scratch, self.scratch_bytes, self.scratch_idx, self.stream = None, 0, 0, None
    self.archparams = archparams or model.config.arch.lm

"""Whether a folder's weight files are whole.

The library maps them without a look at their length: one that was cut short by a broken download
ends the process with a segmentation fault. Format: safetensors, README "Format".
"""

from __future__ import annotations

import json
from pathlib import Path

from service.ports.engine import EngineLoadError

_MAX_HEADER_BYTES = 100_000_000
"""As safetensors itself allows."""
_INDEX = "model.safetensors.index.json"


def check_weights(folder: Path) -> None:
    """Raise EngineLoadError naming a file that is missing, cut short or something else."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineLoadError(f"{folder} has no .safetensors files: convert the model, or name another")
    for path in files:
        _check_file(path)
    index = folder / _INDEX
    if index.is_file():
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise EngineLoadError(f"{index} cannot be read: fetch it again") from error
        if missing := sorted(str(name) for name in named - {path.name for path in files}):
            raise EngineLoadError(f"{folder} lacks {', '.join(missing)}: fetch the rest of the model")


def _check_file(path: Path) -> None:
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size):
                raise ValueError("no header")
            header = json.loads(file.read(length))
        end = max(
            (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise EngineLoadError(f"{path} is not a safetensors file: fetch it again") from error
    if 8 + length + end > size:
        raise EngineLoadError(f"{path} is cut short ({size} of {8 + length + end} bytes): fetch it again")

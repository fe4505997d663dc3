"""What a model folder's small files say: config, end-of-turn tokens, chat template.

Owns the reading and the refusals. Weights are the library's to read. Where config.json must be
changed for the library (see `rope`), `open_folder` gives a folder that holds the changed one and
links to everything else; the model's own folder is never written to.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.adapters.engines.exllamav2.rope import RopeRefusal, translated
from service.adapters.engines.exllamav2.weights import check_weights
from service.adapters.prompts.named_templates import TOOL_USE, joined
from service.ports.engine import EngineLoadError

_MAX_JSON_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model folder, read."""

    folder: Path
    config: Mapping[str, Any]
    """config.json in the library's words."""
    changed: bool
    """Whether that differs from the file."""
    tokenizer: Mapping[str, Any]
    """tokenizer.json."""
    eos_token_ids: tuple[int, ...]
    """From config.json and generation_config.json, without what is no id."""
    eos_text: str
    bos_text: str
    """As tokenizer_config.json names them; empty where it does not."""
    adds_bos: bool
    """Whether tokenizer_config.json asks for a beginning-of-sequence token."""
    chat_template: str
    """Empty where there is none."""


def read_model_files(folder: Path) -> ModelFiles:
    """Read. Raises EngineLoadError that says what to do."""
    if not folder.is_dir():
        raise EngineLoadError(f"{folder} is not a folder: exllamav2 needs a model's folder, not a file")
    found = _json(folder / "config.json", needed=True)
    check_weights(folder)
    architectures = found.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise EngineLoadError(f"{folder / 'config.json'} must name exactly one architecture")
    try:
        config = translated(found)
    except RopeRefusal as refusal:
        raise EngineLoadError(f"{folder} cannot be served by exllamav2: {refusal}") from refusal
    tokenizer_config = _json(folder / "tokenizer_config.json")
    return ModelFiles(
        folder=folder,
        config=config,
        changed=config != found,
        tokenizer=_json(folder / "tokenizer.json", needed=True),
        eos_token_ids=eos_ids(found, _json(folder / "generation_config.json")),
        eos_text=_token_text(tokenizer_config.get("eos_token")),
        bos_text=_token_text(tokenizer_config.get("bos_token")),
        adds_bos=tokenizer_config.get("add_bos_token") is True,
        chat_template=_chat_template(folder, tokenizer_config),
    )


def eos_ids(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return all end-of-turn ids that the configs name, each an id or a list of them."""
    found: set[int] = set()
    for config in configs:
        text = config.get("text_config")
        for level in (config, text if isinstance(text, Mapping) else {}):
            value = level.get("eos_token_id")
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, int) and not isinstance(one, bool) and one >= 0:
                    found.add(one)
    return tuple(sorted(found))


@contextmanager
def open_folder(files: ModelFiles) -> Iterator[Path]:
    """Give the folder that the library is to read, for as long as it reads."""
    if not files.changed:
        yield files.folder
        return
    with tempfile.TemporaryDirectory(prefix="tailrace-model-") as name:
        view = Path(name)
        for path in files.folder.resolve().iterdir():
            if path.name != "config.json":
                (view / path.name).symlink_to(path)
        (view / "config.json").write_text(json.dumps(dict(files.config)), encoding="utf-8")
        yield view


def _json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise EngineLoadError(f"{path} is larger than a model's {path.name} can be")
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            raise EngineLoadError(f"{path} is missing: name a complete model folder") from None
        return {}
    except (OSError, ValueError) as error:
        raise EngineLoadError(f"{path} cannot be read ({error}): fetch the model again") from error
    if not isinstance(found, dict):
        raise EngineLoadError(f"{path} does not hold a JSON object: fetch the model again")
    return found


def _token_text(value: object) -> str:
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else ""


def _chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    for found in (
        _json(folder / "chat_template.json").get("chat_template"),
        tokenizer_config.get("chat_template"),
    ):
        if isinstance(found, str):
            return found
        if isinstance(found, list):
            named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
            default, tool_use = named.get("default"), named.get(TOOL_USE)
            if isinstance(default, str):
                return joined(default, tool_use if isinstance(tool_use, str) else "")
    return ""

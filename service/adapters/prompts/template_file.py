"""A chat template from a file of the operator's, in the place of the model's own."""

from __future__ import annotations

from pathlib import Path

from service.ports.engine import EngineLoadError

MAX_BYTES = 1024 * 1024
"""The largest template of a known model has 30 KB."""


def read_template_file(path: Path) -> str:
    """Return the template's source. Raises EngineLoadError that says what to do."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise EngineLoadError(f"{path} is larger than a chat template can be: name a Jinja file")
        source = data.decode()
    except OSError as error:
        raise EngineLoadError(
            f"the chat template {path} cannot be read ({error.strerror}): name an existing Jinja file"
        ) from error
    except UnicodeDecodeError as error:
        raise EngineLoadError(f"the chat template {path} is not UTF-8 text: name a Jinja file") from error
    if not source.strip():
        raise EngineLoadError(f"the chat template {path} is empty: name another, or unset it")
    return source

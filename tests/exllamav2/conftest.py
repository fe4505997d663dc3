"""The real exllamav2 for every test here; without it they are skipped, with the reason."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.exllamav2 import tiny_model

if importlib.util.find_spec("exllamav2") is None or importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]  # `make test-exllamav2` installs them
else:
    from tests.support.exllamav2.library import install

    install()
    from tests.support.exllamav2.engines import Opened, opened


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the tiny model."""
    return tiny_model.make(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tiny(model_folder: Path) -> Iterator[Opened]:
    """Give one engine for all tests that leave it idle."""
    with opened(model_folder) as found:
        yield found

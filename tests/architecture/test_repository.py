"""The repository is what its pages say: paths exist, commands exist, generated files are fresh."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, name

MAKEFILE = (ROOT / "Makefile").read_text()
PAGES = sorted(
    page
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / "clients").rglob("README.md"),
    ]
    if "node_modules" not in page.parts
)
TOP = "|".join(("service", "edge", "protos", "clients", "tests", "docs", "deploy", "benchmarks", r"\.ci"))
PATH = re.compile(rf"`((?:{TOP})/[A-Za-z0-9_./-]*)`")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
TARGET = re.compile(r"`make ([a-z][a-z0-9-]*)")


def targets() -> dict[str, str]:
    """Return the Makefile's phony targets and their help lines."""
    declared = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)
    helped = dict(re.findall(r"^([a-z0-9-]+):.*?## (.+)$", MAKEFILE, re.MULTILINE))
    return {target: helped.get(target, "") for line in declared for target in line.split()}


def test_every_command_has_its_line_of_help() -> None:
    assert {target for target, text in targets().items() if not text} == set()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_and_links_in_docs_exist(page: Path) -> None:
    text = page.read_text()
    missing = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    missing += [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_docs_exist(page: Path) -> None:
    assert set(TARGET.findall(page.read_text())) - targets().keys() == set()


@pytest.mark.parametrize("module", ["protos.generate", "docs.generate"])
def test_generated_files_are_fresh(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


FORBIDDEN: list[tuple[str, Callable[[str], bool]]] = [
    (
        "an index's address",
        lambda line: bool(re.match(r"\s*(--index-url|--extra-index-url|--find-links|-f|-i)\b", line)),
    ),
    ("a package's address", lambda line: "://" in line),
]


LOCKS = (
    "requirements.lock",
    "requirements-exllamav2.lock",
    "requirements-exllamav2-nodeps.lock",
    "benchmarks/load_test/requirements.lock",
    "tests/conformance/callers/requirements.lock",
    "tests/conformance/llm/python/requirements.lock",
    "tests/conformance/llm/python/old-anthropic.lock",
)


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize(("what", "matches"), FORBIDDEN, ids=[what for what, _ in FORBIDDEN])
def test_the_locks_name_no_host(lock: str, what: str, matches: Callable[[str], bool]) -> None:
    lines = (ROOT / lock).read_text().splitlines()
    assert [line for line in lines if matches(line)] == [], what


NPM_LOCKS = sorted(p for p in ROOT.rglob("package-lock.json") if not {"node_modules", ".venv"} & {*p.parts})


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=name)
def test_the_npm_locks_name_no_registry(lock: Path) -> None:
    packages = json.loads(lock.read_text())["packages"]
    assert {found for found, package in packages.items() if "resolved" in package} == set()
    assert (lock.parent / ".npmrc").read_text().startswith("omit-lockfile-registry-resolved=true")


def test_the_lock_has_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(d for group in project["optional-dependencies"].values() for d in group),
    ]
    names = {re.split(r"[<>=\[~! ]", d, maxsplit=1)[0].lower() for d in wanted}
    text = "".join((ROOT / lock).read_text() for lock in LOCKS if lock.startswith("requirements"))
    locked = set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE))
    # torch is another build on every kind of machine; the Makefile names its version.
    assert names - locked == {"torch"}, "run `make lock`"

"""The pure modules of the web pages, tested by Node's own test runner."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent

pytestmark = pytest.mark.node


def test_the_modules_pass_their_tests_in_node() -> None:
    node = shutil.which("node")
    if node is None:
        if os.environ.get("CI") and not os.environ.get("TAILRACE_NO_NODE"):
            pytest.fail("Node.js is needed for the tests of the web pages' modules")
        pytest.skip("Node.js is needed for the tests of the web pages' modules")
    tests = sorted(path.name for path in FOLDER.glob("*.test.mjs"))
    command = [node, "--test", "--test-reporter=tap", *tests]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout and "# skipped 0" in done.stdout

"""Every case from public bug reports that we took on has a test, and the page that says so is true."""

from __future__ import annotations

import ast
import re

import pytest

from tests.architecture.sources import ROOT, name, typescript_files

PAGE = ROOT / "docs" / "testing-cases.md"
TAKEN_ON = frozenset(
    """
    B001 B002 B004 B005 B006 B008 B012 B013 B014 B018 B019 B020 B021 B027 B029 B031 B033
    B034 B038 B040 B042 B043 B044 B048 B050 B051 B055 B056 B057 B060 B061 B062 B064 B065
    B066 B070 B072 B073 B077 B078 B080 B081 B083 B086 B092 B093 B094 B096 B097 B101 B102
    B104 B106 B107 B108 B109 B112 B115 B116 B119 B120 B122 B123 B126 B128 B130 B132 B136
    B138 B140 B142 B146 B147 B148 B150 B151 B153 B157 B158 B159 B161 B163 B166 B168
    B171 B172 B173 B174 B175 B180 B181 B182 B183 B186 B190 B191 B193
    """.split()
)
# A test of vitest has a title instead of a name.
ROW = re.compile(r"^\| (B\d{3}) \| [^|]+ \| `([^`:]+\.py::\w+|[^`:]+\.test\.ts::[^`|]+)` \|$", re.MULTILINE)
TITLE = re.compile(r"""^ *(?:test|.*\))\(\s*"([^"]+)",""", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())


def test_every_case_taken_on_has_a_row_and_every_row_is_readable() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| B")]
    assert len(ROWS) == len(lines), "a row of another form"
    assert {case for case, _ in ROWS} == TAKEN_ON


@pytest.mark.parametrize(("case", "test"), ROWS, ids=[f"{case}-{test}" for case, test in ROWS])
def test_the_named_test_exists(case: str, test: str) -> None:
    file, _, wanted = test.partition("::")
    text = (ROOT / file).read_text()
    if file.endswith(".ts"):
        assert wanted in TITLE.findall(text)
        return
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert wanted in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)}


def test_tests_named_after_a_case_are_on_the_page() -> None:
    named = {
        f"{name(path)}::{found}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for found in re.findall(r"def (test_b\d{3}_\w+)", path.read_text())
    }
    named |= {
        f"{name(path)}::{found}"
        for path in typescript_files("clients")
        for found in TITLE.findall(path.read_text())
        if re.match(r"B\d{3} ", found)
    }
    assert named - {test for _, test in ROWS} == set()

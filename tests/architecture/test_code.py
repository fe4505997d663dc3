"""Rules about the code that neither ruff nor import-linter knows (docs/style.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import name, python_files, typescript_files

MODULE_LINES = 400
TEST_LINES = 600
SCOPES = frozenset(
    {"create_task_group", "fail_after", "fail_at", "move_on_after", "move_on_at", "CancelScope"}
)
BANNED_NAMES = {
    "create_task": "every task has an owner: an anyio task group (A1)",
    "BaseHTTPMiddleware": "it buffers bodies and hides disconnects: write pure ASGI",
}
PRODUCT = python_files("service", "edge", "clients")


def called_name(call: ast.Call) -> str:
    """Return the last part of what is called: `create_task` for `loop.create_task(...)`."""
    match call.func:
        case ast.Name(id=found) | ast.Attribute(attr=found):
            return found
    return ""


@pytest.mark.parametrize("path", [*python_files(), *typescript_files("clients")], ids=name)
def test_files_stay_readable_in_one_go(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    is_test = name(path).startswith("tests/") or path.name.endswith(".test.ts")
    limit = TEST_LINES if is_test else MODULE_LINES
    assert lines <= limit, f"{lines} lines: which noun has it swallowed?"


@pytest.mark.parametrize("path", typescript_files("clients/typescript/src"), ids=name)
def test_each_typescript_module_says_what_it_owns(path: Path) -> None:
    assert path.read_text().startswith("// ")


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_no_task_without_an_owner_and_no_buffering_middleware(path: Path) -> None:
    # TID251 does not see a method of a loop object.
    for node in ast.walk(ast.parse(path.read_text())):
        used = called_name(node) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.alias):
            used = node.name
        assert used not in BANNED_NAMES, f"line {getattr(node, 'lineno', 0)}: {BANNED_NAMES[used]}"


def yields_in_scopes(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of `yield` inside a cancel scope of an async generator (PEP 789).

    An `@asynccontextmanager` may: its one yield is entered and left by the same task.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        if any(
            "contextmanager" in ast.unparse(d) or "fixture" in ast.unparse(d) for d in function.decorator_list
        ):
            continue
        for block in ast.walk(function):
            if isinstance(block, ast.With | ast.AsyncWith) and any(
                isinstance(item.context_expr, ast.Call) and called_name(item.context_expr) in SCOPES
                for item in block.items
            ):
                yield from (n.lineno for n in ast.walk(block) if isinstance(n, ast.Yield | ast.YieldFrom))


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_no_generator_yields_inside_a_cancel_scope(path: Path) -> None:
    assert list(yields_in_scopes(ast.parse(path.read_text()))) == []


def test_the_check_for_yields_sees_one() -> None:
    source = "async def f():\n    async with anyio.create_task_group():\n        yield 1\n"
    assert list(yields_in_scopes(ast.parse(source))) == [3]


@pytest.mark.parametrize("path", PRODUCT, ids=name)
def test_no_cleanup_in_a_finalizer(path: Path) -> None:
    names = {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)}
    assert "__del__" not in names


def late_askers(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of async tests and helpers that could ask for a fixture while they run.

    An async fixture that nothing has set up yet cannot be set up then: such a test passes or fails by
    the order of all tests. A fixture that is no coroutine may ask.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        if any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list):
            continue
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if argument.annotation is not None and "FixtureRequest" in ast.unparse(argument.annotation):
                yield function.lineno


@pytest.mark.parametrize("path", python_files("tests"), ids=name)
def test_no_running_test_asks_for_a_fixture(path: Path) -> None:
    assert list(late_askers(ast.parse(path.read_text()))) == []


def test_the_check_for_late_askers_sees_one() -> None:
    source = "async def test_x(request: pytest.FixtureRequest) -> None:\n    request.getfixturevalue('a')\n"
    assert list(late_askers(ast.parse(source))) == [1]

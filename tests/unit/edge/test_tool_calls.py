"""Tool calls read from text: whatever the cuts, nothing lost and nothing invented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.protocol.call_scan import MAX_DEPTH
from edge.protocol.tool_calls import (
    MAX_CALLS,
    MAX_SPACES,
    Arguments,
    CallBegun,
    CallEnded,
    Form,
    Piece,
    Text,
    ToolCallReader,
)

Said = list[str | tuple[str, str]]
"""Texts, and calls as name and arguments."""

NAMES = ("f", "get_weather", "a-b")
SNIPPETS = (
    "<tool_call>", "</tool_call>", "<tool_", "[TOOL_CALLS]", "[TOOL", "<|python_tag|>", '{"name": "f"',
    ', "arguments": {"a": [1, -2.5e+3, true, null, "}\\u00e9\\n"]}', ', "parameters": {}', '"{\\"a\\": 1}"',
    '{"name": "f", "arguments": {"a": {"b": []}}}', '{"arguments": {"x": 1}, "name": "a-b"}', '{"foo": 1}',
    "}", "{", "[", "]", ",", ";", ":", '"', "\\", "\\ud83d\\ude00", "\n", "  ", "text", "01", "-", "tru", "n",
    "🙂",
)  # fmt: skip
TANGLES = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=3), max_size=12).map("".join)
FORMS = st.sampled_from(Form)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)
CALLS = st.tuples(st.sampled_from(NAMES), OBJECTS)
WORDS = st.text(min_size=1).filter(lambda text: text == text.strip(" \t\n\r") and not {"<", "["} & set(text))
SPACES = st.text(" \t\n\r", max_size=3)


def read(form: Form, pieces: Sequence[str], most: int | None = None) -> list[Piece]:
    reader = ToolCallReader(form, names=NAMES, most=most)
    said = [piece for text in pieces for piece in reader.take(text)] + reader.finish()
    assert reader.finish() == [] and reader.calls == sum(isinstance(piece, CallBegun) for piece in said)
    return said


def summary(pieces: Sequence[Piece]) -> Said:
    """Join what belongs together, and check the order of what does not."""
    said: Said = []
    begun = -1
    is_open = False
    for piece in pieces:
        match piece:
            case Text(text):
                assert text and not is_open
                if said and isinstance(said[-1], str):
                    text = said.pop() + text  # type: ignore[operator]  # it is text
                said.append(text)
            case CallBegun(index, name):
                begun += 1
                assert index == begun and not is_open
                is_open = True
                said.append((name, ""))
            case Arguments(index, text):
                assert text and index == begun and is_open
                name, before = said.pop()
                said.append((name, before + text))
            case CallEnded(index):
                assert index == begun and is_open
                is_open = False
    assert not is_open
    return said


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


def hermes(*bodies: str) -> str:
    return "".join(f"<tool_call>{body}</tool_call>" for body in bodies)


@given(FORMS, TANGLES, st.lists(st.integers(0, 500), max_size=8), st.sampled_from([None, 1, 2]))
def test_the_cuts_of_a_text_change_nothing(
    form: Form, text: str, places: list[int], most: int | None
) -> None:
    whole = summary(read(form, [text], most))
    assert summary(read(form, cut(text, places), most)) == whole
    assert summary(read(form, list(text), most)) == whole


@given(FORMS, TANGLES)
@example(Form.HERMES, "<tool_call><tool_call>{")
def test_a_text_without_calls_comes_out_as_it_is(form: Form, text: str) -> None:
    said = summary(read(form, [text]))
    calls = [entry for entry in said if not isinstance(entry, str)]
    if not calls:
        assert "".join(entry for entry in said if isinstance(entry, str)) == text
    for name, arguments in calls:
        assert name in NAMES or form is not Form.LLAMA3
        assert (
            arguments == ""
            or arguments.startswith(tuple('{["-0123456789tfn'))
            or '\\"' in text
            or "\\" in text
        )


@st.composite
def written_calls(draw: st.DrawFn, form: Form) -> tuple[str, Said]:
    """Draw calls as a model of this family writes them, and what must be read."""
    key = "parameters" if form is Form.LLAMA3 else "arguments"

    def call() -> tuple[str, tuple[str, str]]:
        name, given = draw(CALLS)
        raw = json.dumps(given, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        members: list[tuple[str, str]] = [("name", json.dumps(name)), ("id", '{"x": [1]}')]
        members.append((key, json.dumps(raw) if draw(st.booleans()) else raw))
        if not given and draw(st.booleans()):
            members.pop()
            raw = "{}"
        body = ", ".join(f'"{key}": {value}' for key, value in draw(st.permutations(members)))
        return "{" + body + "}", (name, raw)

    def calls(least: int = 1) -> list[tuple[str, tuple[str, str]]]:
        return [call() for _ in range(draw(st.integers(least, 3)))]

    def spaces() -> str:
        return draw(SPACES)

    def array(made: Sequence[tuple[str, tuple[str, str]]]) -> str:
        between = f"{spaces()},{spaces()}"
        return f"[{spaces()}{between.join(body for body, _ in made)}{spaces()}]"

    match form:
        case Form.FORCED:
            body, expected = call()
            return spaces() + body + spaces(), [expected]
        case Form.LLAMA3:
            made = calls()
            tag = draw(st.sampled_from(["", "<|python_tag|>"]))
            between = f"{spaces()};{spaces()}"
            return spaces() + tag + between.join(body for body, _ in made) + spaces(), [e for _, e in made]
        case Form.MISTRAL:
            made = calls()
            text = draw(st.none() | WORDS)
            written = f"{text or ''}{spaces()}[TOOL_CALLS]{spaces()}{array(made)}{spaces()}"
            return written, [*([text] if text else []), *(e for _, e in made)]
        case Form.HERMES:
            written, said = "", []
            for _ in range(draw(st.integers(1, 4))):
                text = draw(st.none() | WORDS) if not said or not isinstance(said[-1], str) else None
                if text:
                    written += text
                    said.append(text)
                made = calls()
                bodies = [array(made)] if draw(st.booleans()) else [body for body, _ in made]
                written += spaces() + hermes(*(f"{spaces()}{body}{spaces()}" for body in bodies)) + spaces()
                said += [expected for _, expected in made]
            return written, said


@pytest.mark.parametrize("form", Form)
@settings(max_examples=25)
@given(st.data())
def test_what_a_model_writes_is_read_back(form: Form, data: st.DataObject) -> None:
    written, expected = data.draw(written_calls(form))
    places = data.draw(st.lists(st.integers(0, 2000), max_size=6))
    said = summary(read(form, cut(written, places)))
    assert said == expected
    for entry in said:
        if not isinstance(entry, str):
            assert isinstance(json.loads(entry[1]), dict)


@pytest.mark.parametrize("form", Form)
@settings(max_examples=25)
@given(st.data())
def test_a_cut_leaves_the_beginning_of_what_would_have_come(form: Form, data: st.DataObject) -> None:
    written, expected = data.draw(written_calls(form))
    end = data.draw(st.integers(0, len(written)))
    calls = [e for e in summary(read(form, [written[:end]])) if not isinstance(e, str)]
    whole = [e for e in expected if not isinstance(e, str)]
    assert [name for name, _ in calls] == [name for name, _ in whole][: len(calls)]
    for (_, arguments), (_, all_of_them) in zip(calls, whole, strict=False):
        assert all_of_them.startswith(arguments)


ONE = '{"name": "f", "arguments": {"a": 1}}'
CALL = ("f", '{"a": 1}')
BROKEN = '{"name": "f", "arguments": '


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (Form.HERMES, f"so\n{hermes(ONE)}\n{hermes(ONE)}\nthen", ["so", CALL, CALL, "then"]),
        (Form.HERMES, hermes(ONE) + " and " + hermes(ONE), [CALL, "and", CALL]),
        (Form.HERMES, hermes(ONE + "\n" + ONE), [CALL, CALL]),
        (Form.HERMES, " a\n\n", [" a\n\n"]),
        (Form.HERMES, "a < b <tool_", ["a < b <tool_"]),
        (Form.HERMES, "<tool_call>", ["<tool_call>"]),
        (Form.HERMES, '<tool_call>{"na', ['<tool_call>{"na']),
        (Form.HERMES, '<tool_call> {"name": 5}</tool_call>', ['<tool_call> {"name": 5}</tool_call>']),
        (Form.HERMES, hermes('{"name": "no such name!"}'), [hermes('{"name": "no such name!"}')]),
        (Form.HERMES, hermes('{"name": "\\ud800"}'), [hermes('{"name": "\\ud800"}')]),
        (Form.HERMES, hermes("[]"), [hermes("[]")]),
        (Form.HERMES, hermes('{"arguments": {}}'), [hermes('{"arguments": {}}')]),
        (Form.HERMES, f"x <tool_call>no{hermes(ONE)}", ["x <tool_call>no", CALL]),
        (Form.HERMES, f"<tool_call>{hermes(ONE)}", ["<tool_call>", CALL]),
        (Form.HERMES, f"<tool_call>{ONE}", [CALL]),
        (Form.HERMES, f"<tool_call>{ONE}\n</tool_", [CALL]),
        (Form.HERMES, f"<tool_call>[{ONE}, ", [CALL]),
        (Form.HERMES, f"<tool_call>[{ONE}]\n</tool", [CALL]),
        (Form.HERMES, f"<tool_call>{ONE}\n oh </tool_call>", [CALL, "oh </tool_call>"]),
        (Form.HERMES, f'<tool_call>[{ONE}, {{"x": 1}}]', [CALL, ', {"x": 1}]']),
        (Form.HERMES, hermes('{"name": "f"}'), [("f", "{}")]),
        (Form.HERMES, hermes('{"name": "f", "arguments": null}'), [("f", "{}")]),
        (Form.HERMES, hermes('{"name": "f", "arguments": ""}'), [("f", "{}")]),
        (Form.HERMES, hermes('{"arguments": {"x": 1}, "name": "f", "arguments": 2}'), [("f", '{"x": 1}')]),
        (Form.HERMES, hermes('{"name": "f", "name": "g"}'), [("f", "{}")]),
        (Form.HERMES, hermes(BROKEN + '"[\\"\\ud83d\\ude00\\ud83d\\"]"}'), [("f", '["😀\ufffd"]')]),
        (Form.HERMES, hermes(BROKEN + '"\\udc00\\ud800"}'), [("f", "\ufffd\ufffd")]),
        (Form.HERMES, hermes(BROKEN + '"\\ud800\\ud800x"}'), [("f", "\ufffd\ufffdx")]),
        (Form.HERMES, hermes(BROKEN + '{"a": "x\ny\x01"}}'), [("f", '{"a": "x\\ny\\u0001"}')]),
        (Form.HERMES, hermes(BROKEN + "{'a': 1}}"), [("f", "{"), "'a': 1}}</tool_call>"]),
        (Form.HERMES, hermes(BROKEN + '{"a": True}}'), [("f", '{"a": '), "True}}</tool_call>"]),
        (Form.HERMES, BROKEN, [BROKEN]),
        (Form.HERMES, f"<tool_call>{BROKEN}", [("f", "")]),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a": [1, 2', [("f", '{"a": [1, 2')]),
        (Form.HERMES, f"<tool_call>{BROKEN}null x", [("f", ""), ', "arguments": null x']),
        (Form.HERMES, '<tool_call>{"name" "f"}', ['<tool_call>{"name" "f"}']),
        (Form.HERMES, '<tool_call>{"name": "f" "x"}', [("f", ""), '"x"}']),
        (Form.HERMES, '<tool_call>{"name": "f",}', [("f", ""), ",}"]),
        (Form.HERMES, f'<tool_call>{BROKEN}"\\q"', [("f", ""), ', "arguments": "\\q"']),
        (Form.HERMES, f'<tool_call>{BROKEN}"{{\\u12x"', [("f", "{"), '\\u12x"']),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a": "\\u12x"', [("f", '{"a": "\\u12'), 'x"']),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a": "\\q"', [("f", '{"a": "\\'), 'q"']),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a": trux', [("f", '{"a": tru'), "x"]),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a": -}}', [("f", '{"a": -'), "}"]),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a" 1', [("f", '{"a" '), "1"]),
        (Form.HERMES, f'<tool_call>{BROKEN}{{"a": [1}}', [("f", '{"a": [1'), "}"]),
        (Form.HERMES, f"<tool_call>{BROKEN}{{1", [("f", "{"), "1"]),
        (Form.MISTRAL, f"[TOOL_CALLS] [{ONE};", [CALL, ";"]),
        (Form.MISTRAL, f"so [TOOL_CALLS] [{ONE},{ONE}] then", ["so", CALL, CALL, "then"]),
        (Form.MISTRAL, "[TOOL_CALLS]f{}", ["[TOOL_CALLS]f{}"]),
        (Form.MISTRAL, "[TOOL] [1]", ["[TOOL] [1]"]),
        (Form.LLAMA3, f"<|python_tag|>{ONE}; {ONE}", [CALL, CALL]),
        (Form.LLAMA3, f"{ONE}\n{ONE}", [CALL, CALL]),
        (Form.LLAMA3, f"{ONE} ;", [CALL]),
        (Form.LLAMA3, f"{ONE}; so", [CALL, "; so"]),
        (Form.LLAMA3, f"{ONE} \n so ", [CALL, "so "]),
        (Form.LLAMA3, f" so {ONE}", [f" so {ONE}"]),
        (Form.LLAMA3, '{"name": "Bob", "age": 5}', ['{"name": "Bob", "age": 5}']),
        (Form.LLAMA3, '<|python_tag|>import "x"', ['<|python_tag|>import "x"']),
        (Form.LLAMA3, ' {"a": 1} ', [' {"a": 1} ']),
        (Form.FORCED, ONE, [CALL]),
        (Form.FORCED, f"{ONE}{ONE}", [CALL, ONE]),
        (Form.FORCED, f"no {ONE}", [f"no {ONE}"]),
    ],
)  # fmt: skip
def test_what_is_a_call_and_what_is_not(form: Form, text: str, expected: Said) -> None:
    assert summary(read(form, [text])) == expected
    assert summary(read(form, list(text))) == expected


def test_after_the_last_call_asked_for_all_is_dropped() -> None:
    text = f"a {hermes(ONE)} b {hermes(ONE)} c"
    assert summary(read(Form.HERMES, [text], most=1)) == ["a", CALL]
    reader = ToolCallReader(Form.HERMES, most=1)
    reader.take(f"<tool_call>{ONE[:-1]}")
    assert not reader.is_closed
    reader.take("}")
    assert reader.is_closed and not ToolCallReader(Form.HERMES).is_closed


def test_bounds() -> None:
    said = summary(read(Form.HERMES, [hermes(ONE) * (MAX_CALLS + 1)]))
    assert said == [CALL] * MAX_CALLS + [hermes(ONE)]
    spaces = " " * (MAX_SPACES + 5)
    assert summary(read(Form.HERMES, [*spaces, hermes(ONE)])) == [" " * 5, CALL]
    deep = '{"a":' * MAX_DEPTH + "{"
    assert summary(read(Form.HERMES, [f"<tool_call>{BROKEN}{deep}}}"])) == [("f", deep[:-1]), "{}"]


def test_arguments_go_out_as_they_come() -> None:
    reader = ToolCallReader(Form.HERMES)
    assert reader.take('<tool_call>{"name":"f","arg') == [CallBegun(0, "f")]
    assert reader.take('uments": {"a"') == [Arguments(0, '{"a"')]
    assert reader.take(": 1}") == [Arguments(0, ": 1}")]
    assert reader.take("}") == [CallEnded(0)]

"""Tools, calls and results reach the templates of known families, and a caller's text stays text there."""

from __future__ import annotations

import functools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.adapters.prompts.chat_template import ChatTemplate
from service.adapters.prompts.named_templates import joined
from service.adapters.prompts.special_ids import Segment
from service.domain.chat import ChatMessage, Tool, ToolCall
from service.ports.engine import PromptError
from tests.support.chat_templates import FORMATS, source

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "<|eot_id|>", "[INST]", "[TOOL_CALLS]", "<filename>")
ANY_TOKEN = re.compile("|".join(map(re.escape, SPECIAL)))
KNOWING = ["hermes", *(name for name, written in FORMATS.items() if written)]
WEATHER = Tool(
    "get_weather",
    "Weather of a city.",
    '{"type": "object", "properties": {"city": {"type": "string", "description": "Where"}}}',
)
CALL = ToolCall("call_123", "get_weather", '{"city": "Ulm", "days": [1, {"of": null}]}')
TALK = (
    ChatMessage("user", "Is it warm?"),
    ChatMessage("assistant", "", (CALL,)),
    ChatMessage("tool", '{"degrees": 31}', (), "call_123"),
)


@functools.cache
def template(name: str, special: tuple[str, ...] = SPECIAL) -> ChatTemplate:
    """Return a family's template."""
    return ChatTemplate(source(name), bos_text="<s>", eos_text="</s>", special_tokens=special)


def text(segments: tuple[Segment, ...]) -> str:
    """Join a rendering."""
    return "".join(segment.text for segment in segments)


def live_tokens(segments: tuple[Segment, ...]) -> list[str]:
    """Return the special tokens that would count as such, in order."""
    return ANY_TOKEN.findall("\0".join(segment.text for segment in segments if segment.special))


class TestFormats:
    @pytest.mark.parametrize(("name", "written"), [("hermes", "hermes"), *FORMATS.items()])
    def test_the_format_is_known_by_the_template(self, name: str, written: str) -> None:
        found = template(name).tool_format
        assert (found.name if found else "") == written

    def test_a_template_that_only_speaks_of_tools_has_no_format(self) -> None:
        assert "tools" in source("deaf") and "<tool_call>" in source("deaf") and "arguments" in source("deaf")

    @pytest.mark.parametrize("name", KNOWING)
    def test_tools_calls_and_results_are_all_there(self, name: str) -> None:
        rendered = text(template(name).render(TALK, (WEATHER,)))
        for part in ("get_weather", "Weather of a city.", '"city": {', "Ulm", '{"of": null}', "degrees"):
            assert part in rendered
        key = "parameters" if FORMATS.get(name) == "llama3" else "arguments"
        assert f'"{key}": ' + json.dumps(json.loads(CALL.arguments)) in rendered

    @pytest.mark.parametrize("name", KNOWING)
    def test_a_forced_call_goes_on_as_an_earlier_one_was_written(self, name: str) -> None:
        made = template(name)
        opened = text(made.render(TALK[:1], (WEATHER,), call=True))
        assert opened == text(made.render(TALK[:1], (WEATHER,))) + made.tool_format.opener
        earlier = text(made.render(TALK, (WEATHER,)))
        assert made.tool_format.opener + '{"name": "get_weather", "' in earlier

    def test_without_tools_nothing_is_said_of_them(self) -> None:
        assert template("qwen2_5").render(TALK[:1]) == template("smollm2").render(TALK[:1])

    def test_a_template_of_its_own_for_tools_is_taken_with_tools_only(self) -> None:
        made = ChatTemplate(joined(source("smollm2"), source("hermes_2_pro")), "<s>", "</s>", SPECIAL)
        assert made.tool_format is not None and made.tool_format.name == "hermes"
        assert made.render(TALK[:1]) == template("smollm2").render(TALK[:1])
        assert made.render(TALK, (WEATHER,)) == template("hermes_2_pro").render(TALK, (WEATHER,))
        assert joined("a", "") == "a" and joined("", "b") == "b"

    def test_a_tool_without_parameters_has_an_empty_schema(self) -> None:
        rendered = text(template("hermes").render(TALK[:1], (Tool("now"),)))
        assert '"parameters": {"type": "object", "properties": {}}' in rendered

    def test_the_name_of_a_result_is_that_of_its_call(self) -> None:
        naming = ChatTemplate("{{ messages[-1].name or 'none' }} {{ messages[-1].tool_call_id }}")
        assert text(naming.render(TALK)) == "get_weather call_123"
        stray = ChatMessage("tool", "x", (), "another")
        assert text(naming.render((*TALK, stray))) == "none another"

    def test_long_ids_are_shortened_where_only_short_ones_are_taken(self) -> None:
        made = template("mistral_v0_3")
        rendered = text(made.render(TALK, (WEATHER,)))
        assert "call_123" not in rendered
        short = rendered.split('"id": "')[1][:9]
        assert f'"call_id": "{short}"' in rendered
        call = ToolCall("abcDEF123", "get_weather")
        kept = made.render((TALK[0], ChatMessage("assistant", "", (call,))), (WEATHER,))
        assert "abcDEF123" in text(kept)

    def test_a_refusal_by_the_template_is_told(self) -> None:
        twice = ChatMessage("assistant", "", (CALL, CALL))
        with pytest.raises(PromptError, match="single tool-calls"):
            template("llama_3_1").render((TALK[0], twice, TALK[2]), (WEATHER,))

    @pytest.mark.parametrize("bad", ["[]", "{", "nonsense"])
    def test_text_that_is_no_object_is_a_prompt_error(self, bad: str) -> None:
        with pytest.raises(PromptError):
            template("hermes").render(TALK[:1], (Tool("a", "", bad),))
        with pytest.raises(PromptError):
            template("hermes").render((ChatMessage("assistant", "", (ToolCall("", "a", bad),)),))


HOSTILE = st.text("<|>/im_endstar[]INSTOCL filename\ue0f1\ue0f20", min_size=1, max_size=14) | st.sampled_from(
    [*SPECIAL, "a<|im_end|>b", "<|im_", "end|>", "<", ">", "s", "file", "type", "string"]
)


def talk(parts: list[str]) -> tuple[tuple[ChatMessage, ...], tuple[Tool, ...]]:
    """Put a text into each place that takes one."""
    a, b, c, d, e, f, g, h, i, j = parts
    schema = {"type": "object", "properties": {a: {"type": "string", "description": b, "enum": [c]}}}
    tools = (Tool(d, e, json.dumps(schema)),)
    call = ToolCall(f, g, json.dumps({h: [{i: j}]}))
    messages = (
        ChatMessage("user", a),
        ChatMessage("assistant", "", (call,)),
        ChatMessage("tool", b, (), f),
        ChatMessage("assistant", c),
        ChatMessage("user", d),
    )
    return messages, tools


class TestInjection:
    @pytest.mark.parametrize("name", KNOWING)
    @settings(max_examples=40)
    @given(parts=st.lists(HOSTILE, min_size=10, max_size=10))
    def test_no_text_of_a_caller_makes_a_token(self, name: str, parts: list[str]) -> None:
        made = template(name)
        rendered = made.render(*talk(parts))
        harmless = made.render(*talk(["k"] * 10))
        assert live_tokens(rendered) == live_tokens(harmless)
        assert text(rendered) == text(template(name, special=()).render(*talk(parts)))

    def test_keys_and_values_are_cut_even_where_json_is_written_in_ascii(self) -> None:
        made = ChatTemplate("{{ tools | tojson(ensure_ascii=True) }}", special_tokens=SPECIAL)
        rendered = made.render(TALK, (Tool("a", "<s>", '{"properties": {"<|im_end|>": {}}}'),))
        assert live_tokens(rendered) == [] and "<|im_end|>" in text(rendered)

    def test_a_key_between_the_templates_own_brackets_makes_no_token(self) -> None:
        made = ChatTemplate(
            "{% for name in tools[0].function.parameters.properties %}<{{ name }}>{% endfor %}",
            special_tokens=SPECIAL,
        )
        rendered = made.render(TALK, (Tool("a", "", '{"properties": {"s": {}, "filename": {}}}'),))
        assert text(rendered) == "<s><filename>" and live_tokens(rendered) == []

    def test_words_of_schemas_stay_whole_for_templates_that_ask_for_them(self) -> None:
        typed = "<{{ 's' }}>{% for p in tools[0].function.parameters.properties.values() %}"
        made = ChatTemplate(
            typed + "{{ p.type == 'string' }}{% endfor %}{{ messages[0].content }}",
            special_tokens=("<s>", "<string>", "<type>", "x>"),
        )
        rendered = made.render(
            (ChatMessage("user", ">"),), (Tool("a", "", '{"properties": {"b": {"type": "string"}}}'),)
        )
        assert "True" in text(rendered)


class TestUnfinished:
    @pytest.mark.parametrize("name", ["hermes", *(name for name in FORMATS if name != "hermes_2_pro")])
    @pytest.mark.parametrize("content", ["Once upon", "  two blanks ", "ends\n", "<|im_end|> is text", " "])
    def test_it_ends_with_the_content_to_the_letter(self, name: str, content: str) -> None:
        made = template(name)
        open_ = made.render((TALK[0], ChatMessage("assistant", content)), unfinished=True)
        assert text(open_).endswith(content)
        begun = text(made.render(TALK[:1]))
        assert text(open_).startswith(begun) or name in ("qwen3", "mistral_v0_3")
        harmless = made.render((TALK[0], ChatMessage("assistant", "k")), unfinished=True)
        assert live_tokens(open_) == live_tokens(harmless)

    @given(st.text("<|>im_end s\n\ue0f1\ue0f20", min_size=1))
    def test_any_content_stays_as_it_is(self, content: str) -> None:
        open_ = template("qwen2_5").render((TALK[0], ChatMessage("assistant", content)), unfinished=True)
        assert text(open_).endswith(f"assistant\n{content}")

    def test_a_thought_that_is_over_goes_on_behind_it(self) -> None:
        content = "<think>\nEasy.\n</think>\n\nThe answer"
        open_ = template("qwen3").render((TALK[0], ChatMessage("assistant", content)), unfinished=True)
        assert text(open_).endswith(f"<|im_start|>assistant\n{content}")

    @pytest.mark.parametrize(
        "bad",
        [
            "{{ messages[-1].content }}{{ messages[-1].content }}",
            "{{ messages[0].content }}",
            "{{ messages[-1].content | upper }}",
            "{{ messages[-1].content | replace('o', '') }}",
            "{{ messages[-1].content[:-1] }}",
        ],
    )
    def test_a_template_that_does_not_write_it_once_and_whole_is_refused(self, bad: str) -> None:
        with pytest.raises(PromptError, match="cannot go on"):
            ChatTemplate(bad).render((TALK[0], ChatMessage("assistant", "Once upon")), unfinished=True)

"""Tools on the real library: a template file, a forced call, and marks that are control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from service.domain.chat import ChatMessage, ChatPrompt, ForcedTool, Tool
from service.domain.request import GenerationRequest, Sampling, TextPrompt
from service.domain.tools import effective_constraint, forced_schema
from service.ports.engine import ConstraintError, EndReason, EngineLoadError
from tests.contract.engines.recorder import run
from tests.contract.engines.suite import job
from tests.support.chat_templates import HERMES_FILE
from tests.support.exllamav2 import tiny_model
from tests.support.exllamav2.engines import Opened, opened

PARAMETERS = {
    "type": "object",
    "properties": {"n": {"$ref": "#/$defs/n"}, "of": {"enum": ["a", "b"]}},
    "required": ["n", "of"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
}
TOOLS = (Tool("now"), Tool("count", "Count.", json.dumps(PARAMETERS)))
ASKED = ChatMessage("user", "one")


@pytest.fixture(scope="module")
def hermes(model_folder: Path) -> Iterator[Opened]:
    """Give an engine with the template that we ship."""
    with opened(model_folder, chat_template=HERMES_FILE) as found:
        yield found


@pytest.mark.parametrize("forced", ["count", ""])
@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_is_valid(hermes: Opened, forced: str, seed: int) -> None:
    assert hermes.info.tool_format == "hermes"
    prompt = ChatPrompt((ASKED,), TOOLS, ForcedTool(forced))
    constraint = effective_constraint(GenerationRequest(prompt))
    assert constraint is not None
    hermes.engine.check(constraint)
    wanted = replace(job(hermes.engine.prepare(prompt), 400), constraint=constraint)
    recorder = run(hermes.engine, replace(wanted, sampling=Sampling(seed=seed)))
    assert recorder.ended().reason is EndReason.EOS
    call = json.loads(recorder.data)
    assert list(call) == ["name", "arguments"]
    jsonschema.validate(call, json.loads(forced_schema(TOOLS, ForcedTool(forced))))


def test_a_schema_that_cannot_be_kept_is_refused(hermes: Opened) -> None:
    odd = Tool("odd", "", '{"type": "object", "properties": {"a": {"type": "nonsense"}}}')
    constraint = effective_constraint(GenerationRequest(ChatPrompt((ASKED,), (odd,), ForcedTool())))
    assert constraint is not None
    with pytest.raises(ConstraintError):
        hermes.engine.check(constraint)


def test_an_unfinished_message_is_fed_as_raw_text_is(tiny: Opened) -> None:
    begun = ChatMessage("assistant", "three is ")
    prompt = ChatPrompt((ASKED, begun), continue_final_message=True)
    raw = TextPrompt("<s><|user|>one<|end|><|assistant|>three is ")
    assert tiny.engine.prepare(prompt) == tiny.engine.prepare(raw)


def test_marks_that_are_control_tokens_are_put_out(tmp_path: Path) -> None:
    folder, mark = tiny_model.make(tmp_path / "model"), tiny_model.UNKNOWN
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"<unk>"', '"<tool_call>"'))
    biased = Sampling(temperature=0.0, logit_bias=((mark, 100.0),))
    for template, text in ((HERMES_FILE, b"<tool_call><tool_call>"), (None, b"")):
        with opened(folder, chat_template=template) as found:
            wanted = replace(job(found.engine.prepare(TextPrompt("one")), 2), sampling=biased)
            recorder = run(found.engine, wanted)
            assert (recorder.data, recorder.token_ids) == (text, (mark, mark))


def test_a_template_file_that_cannot_be_used_is_refused(model_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    for path in (tmp_path / "missing.jinja", broken):
        with pytest.raises(EngineLoadError, match="template"), opened(model_folder, chat_template=path):
            pass

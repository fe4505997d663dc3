"""The scripted engine keeps the engine port's contract, and its scripts do what they say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.adapters.engines.scripted import tokens
from service.adapters.engines.scripted.engine import ScriptedEngine, ScriptedSettings
from service.domain.request import (
    ChatMessage,
    ChatPrompt,
    JsonSchema,
    Sampling,
    TextPrompt,
    Tool,
    ToolCall,
)
from service.ports.engine import EndReason, Engine, Job, PromptError
from tests.contract.engines.recorder import Recorder, run
from tests.contract.engines.suite import GREEDY, EngineContract, Loaded, job, load

SETTINGS = ScriptedSettings(slots=4, text_tokens=2000, context_tokens=8192)


def script(**fields: object) -> TextPrompt:
    """Return a prompt that makes the engine do this."""
    return TextPrompt("Please say script:" + json.dumps(fields))


@pytest.fixture(scope="module")
def scripted() -> Iterator[Loaded]:
    """Load one engine for all tests of the module."""
    loaded = load(ScriptedEngine(SETTINGS))
    yield loaded
    loaded.engine.close()


class TestScriptedContract(EngineContract):
    """The suite, on scripts."""

    @pytest.fixture
    def loaded(self, scripted: Loaded) -> Loaded:
        return scripted

    @pytest.fixture
    def new_engine(self) -> Callable[[], Engine]:
        return lambda: ScriptedEngine(SETTINGS)

    @pytest.fixture
    def broken_engine(self) -> Engine:
        return ScriptedEngine(ScriptedSettings(load_error="no such model: name another in the settings"))

    @pytest.fixture
    def prompt_ids(self, engine: Engine) -> tuple[int, ...]:
        return engine.prepare(TextPrompt("Tell me of the river"))

    @pytest.fixture
    def long_prompt_ids(self, engine: Engine) -> tuple[int, ...]:
        return engine.prepare(TextPrompt("long " * 600))

    @pytest.fixture
    def ending_job(self, engine: Engine) -> Job:
        return job(engine.prepare(script(pieces=["one", " two"])))

    @pytest.fixture
    def eos_texts(self) -> tuple[bytes, ...]:
        return (b"<|im_end|>",)

    @pytest.fixture
    def failing_job(self, engine: Engine) -> Job:
        return job(engine.prepare(script(pieces=["a"], raise_after=0)))


def said(
    engine: Engine, prompt: TextPrompt | ChatPrompt, continuation: str = "", **changes: object
) -> Recorder:
    """Run a prompt to its end."""
    wanted = job(engine.prepare(prompt, continuation), 64)
    return run(engine, replace(wanted, **changes))  # type: ignore[arg-type]  # names come from Job


def test_pieces_hex_and_repeat_are_said_in_order(scripted: Loaded) -> None:
    recorder = said(scripted.engine, script(pieces=["a", "b"], hex=["f09f98"], repeat=2))
    assert [e.piece.data for e in recorder.pieces] == [b"a", b"b", b"\xf0\x9f\x98"] * 2
    assert recorder.ended().output_tokens == 7


def test_a_piece_can_stand_for_several_tokens(scripted: Loaded) -> None:
    recorder = said(scripted.engine, script(pieces=[{"text": "ab", "count": 3}, "c"]))
    assert [e.piece.token_count for e in recorder.pieces] == [3, 1]
    assert recorder.pieces[0].piece.token_ids == ()


@pytest.mark.parametrize("chat", [False, True])
@given(cut=st.integers(0, 40), by_ids=st.booleans(), scripted_text=st.booleans())
def test_generation_goes_on_exactly_where_it_was_cut(
    scripted: Loaded, chat: bool, cut: int, by_ids: bool, scripted_text: bool
) -> None:
    engine = scripted.engine
    content = script(pieces=["é", "x ", "💧", "!"], repeat=10).text if scripted_text else "a river"
    prompt = ChatPrompt((ChatMessage("user", content),)) if chat else TextPrompt(content)
    whole = said(engine, prompt, max_tokens=40)
    context = engine.prepare(prompt) + whole.token_ids[:cut]
    if not by_ids:
        text = b"".join(e.piece.data for e in whole.pieces[:cut]).decode()
        context = engine.prepare(prompt, text)
    if cut == 40:
        return
    rest = run(engine, job(context, 40 - cut))
    assert rest.data == b"".join(e.piece.data for e in whole.pieces[cut:])
    assert rest.token_ids == whole.token_ids[cut:]


def test_a_text_cut_inside_a_piece_goes_on_with_the_rest_of_it(scripted: Loaded) -> None:
    assert said(scripted.engine, script(pieces=["beta", " gamma"]), "be").data == b"ta gamma"


def test_a_text_with_a_broken_character_goes_on_after_it(scripted: Loaded) -> None:
    prompt = script(pieces=["a", "b"], hex=["f09f98", "c3"])
    assert said(scripted.engine, prompt, "ab\N{REPLACEMENT CHARACTER}").data == b"\xc3"


def test_minimum_length_and_ignore_eos_say_it_again(scripted: Loaded) -> None:
    assert said(scripted.engine, script(pieces=["a", "b"]), min_tokens=3).data == b"aba"
    assert said(scripted.engine, script(pieces=["a", "b"]), ignore_eos=True, max_tokens=5).data == b"ababa"


def test_a_stop_token_ends_it_with_its_piece(scripted: Loaded) -> None:
    recorder = said(scripted.engine, script(pieces=["a", "b", "c"]), stop_token_ids=(tokens.PIECE_BASE + 1,))
    assert recorder.data == b"ab" and recorder.ended().reason is EndReason.EOS
    assert recorder.ended().output_tokens == 2


def test_a_script_can_end_by_length(scripted: Loaded) -> None:
    recorder = said(scripted.engine, script(pieces=["a"], end="length"))
    assert recorder.ended().reason is EndReason.LENGTH and recorder.ended().output_tokens == 1


def test_the_seed_matters_only_above_temperature_zero(scripted: Loaded) -> None:
    def text(sampling: Sampling) -> bytes:
        return said(scripted.engine, TextPrompt("hello"), sampling=sampling).data

    assert text(Sampling(seed=1)) == text(Sampling(seed=1)) != text(Sampling(seed=2))
    assert text(Sampling(temperature=0, seed=1)) == text(GREEDY)


def test_logit_bias_bans_and_forces(scripted: Loaded) -> None:
    plain = said(scripted.engine, TextPrompt("hello"), max_tokens=1)
    banned = replace(GREEDY, logit_bias=((plain.token_ids[0], -100.0),))
    other = said(scripted.engine, TextPrompt("hello"), max_tokens=1, sampling=banned)
    assert other.token_ids != plain.token_ids
    forced = replace(GREEDY, logit_bias=((65, 100.0),))
    assert said(scripted.engine, TextPrompt("hello"), max_tokens=3, sampling=forced).data == b"AAA"


def test_logprobs_join_to_the_text(scripted: Loaded) -> None:
    recorder = said(scripted.engine, script(pieces=["a", "é"], hex=["f0"]), logprobs=3)
    found = [entry for e in recorder.pieces for entry in e.piece.logprobs]
    assert b"".join(entry.data for entry in found) == recorder.data
    assert all(len(entry.top) == 3 and entry.top[0].token_id == entry.token_id for entry in found)


def test_a_failure_is_the_scripts_own(scripted: Loaded) -> None:
    recorder = said(scripted.engine, script(pieces=["a", "b"], fail_after=1, fail_message="x", fail_repeat=3))
    assert recorder.data == b"a" and recorder.ended().error == "xxx"


def test_constraints_are_refused(scripted: Loaded) -> None:
    recorder = said(scripted.engine, TextPrompt("a"), constraint=JsonSchema("{}"))
    assert recorder.ended().reason is EndReason.FAILED and recorder.ended().invalid


@pytest.mark.parametrize("bad", ['script:{"piece":[]}', "script:{", 'script:{"hex":["x"]}', "\ud800"])
def test_a_script_that_cannot_be_read_is_the_prompts_fault(scripted: Loaded, bad: str) -> None:
    with pytest.raises(PromptError):
        scripted.engine.prepare(TextPrompt(bad))


def test_special_tokens_in_messages_are_plain_text(scripted: Loaded) -> None:
    ids = scripted.engine.prepare(ChatPrompt((ChatMessage("user", "<|im_end|><|bos|>"),)))
    assert ids.count(tokens.TURN_END) == 1 and ids.count(tokens.BOS) == 1
    raw = scripted.engine.prepare(TextPrompt("<|bos|>a<|im_end|>"))
    assert raw == (tokens.BOS, 97, tokens.TURN_END)


def test_tools_are_claimed_and_are_no_part_of_the_prompt(scripted: Loaded) -> None:
    assert scripted.info.tool_format == "hermes" and "chat.tools" in scripted.info.request_fields
    turns = (ChatMessage("user", "hi"), ChatMessage("assistant", "", (ToolCall("c", "f"),)))
    plain = scripted.engine.prepare(ChatPrompt((turns[0], ChatMessage("assistant", ""))))
    assert scripted.engine.prepare(ChatPrompt(turns, (Tool("f"),))) == plain
    deaf = load(ScriptedEngine(replace(SETTINGS, tool_format="")))
    assert "chat.tools" not in deaf.info.request_fields
    deaf.engine.close()


def test_an_unfinished_message_is_what_was_said_of_the_script(scripted: Loaded) -> None:
    asked = ChatMessage("user", script(pieces=["one", " two", " three"]).text)
    prompt = ChatPrompt((asked, ChatMessage("assistant", "one t")), continue_final_message=True)
    assert said(scripted.engine, prompt).data == b"wo three"
    assert said(scripted.engine, prompt, "wo").data == b" three"


def test_a_paced_engine_gives_all_jobs_a_token_in_the_same_turn() -> None:
    engine = ScriptedEngine(replace(SETTINGS, rate=500.0))
    load(engine)
    order: list[str] = []
    recorders = [Recorder(lambda event: order.append(event.job_id)) for _ in range(3)]
    for recorder in recorders:
        engine.submit(job(engine.prepare(TextPrompt("hello")), 20), recorder.deliver)
    for recorder in recorders:
        assert recorder.ended().output_tokens == 20
    engine.close()
    middle = order[15:45]
    assert all(len(set(middle[i : i + 3])) == 3 for i in range(0, 30, 3))


def test_a_slow_cancel_keeps_the_slot_until_it_is_over(scripted: Loaded) -> None:
    recorder = Recorder()
    prompt = script(pieces=["a"], repeat=10**6, delay_ms=1, cancel_takes_ms=30)
    submitted = job(scripted.engine.prepare(prompt), 4000)
    scripted.engine.submit(submitted, recorder.deliver)
    recorder.wait_for_output()
    scripted.engine.cancel(submitted.id)
    assert recorder.ended().reason is EndReason.CANCELED

"""llama.cpp on a model whose tokenizer adds a BOS and a blank, with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.request import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt
from service.ports.engine import EndReason, Engine
from tests.contract.engines.recorder import run
from tests.contract.engines.suite import Loaded, job, load

pytest.importorskip("xllamacpp", reason="the llama.cpp engine is not installed")
pytest.importorskip("gguf", reason="the llama.cpp engine is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BOS, TURN = 1, 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """Load the model once."""
    from service.adapters.engines.llama_cpp.engine import LlamaCppEngine
    from service.adapters.engines.llama_cpp.settings import LlamaCppSettings
    from tests.support.tiny_gguf import write_sentencepiece_model

    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_sentencepiece_model(path)
    loaded = load(LlamaCppEngine(LlamaCppSettings(path, slots=2, context_tokens=256, threads=1)))
    yield loaded
    loaded.engine.close()


@pytest.fixture
def engine(tiny: Loaded) -> Engine:
    """Give the engine."""
    return tiny.engine


def test_raw_text_gets_exactly_one_bos(engine: Engine) -> None:
    for text in ("ab", "<s>ab", "<s><s>ab"):
        ids = engine.prepare(TextPrompt(text))
        assert ids[0] == BOS and ids.count(BOS) == 1


def test_a_template_that_writes_the_bos_gets_exactly_one(engine: Engine) -> None:
    ids = engine.prepare(ChatPrompt((ChatMessage("user", "ab"),)))
    assert ids[0] == BOS and ids.count(BOS) == 1 and ids.count(TURN) == 2


def test_control_tokens_in_content_do_not_count(engine: Engine) -> None:
    ids = engine.prepare(ChatPrompt((ChatMessage("user", "<s>a<|turn|></s>"),)))
    assert (ids.count(BOS), ids.count(TURN), ids.count(2)) == (1, 2, 0)


def test_token_prompts_get_no_bos(engine: Engine) -> None:
    assert engine.prepare(TokenPrompt((5, 6))) == (5, 6)


def test_a_continuation_gets_no_blank_of_the_tokenizers_own(engine: Engine) -> None:
    prompt = engine.prepare(TextPrompt("a"))
    joined = engine.prepare(TokenPrompt(prompt), "b")
    assert joined == (*prompt, 262)
    spaced = engine.prepare(TokenPrompt(prompt), " b")
    assert spaced == (*prompt, 265)


def test_it_runs_and_counts_exactly(engine: Engine) -> None:
    recorder = run(engine, job(engine.prepare(TextPrompt("ab")), 40))
    assert recorder.ended().reason in {EndReason.LENGTH, EndReason.EOS}
    assert recorder.token_count == recorder.ended().output_tokens - (recorder.ended().reason is EndReason.EOS)


def test_bytes_that_are_no_text_harm_nobody(engine: Engine) -> None:
    for first in (0xE5 + 4, 0x80 + 4, 0x41 + 4):
        recorder = run(engine, job((BOS, first), 30))
        assert recorder.ended().reason in {EndReason.LENGTH, EndReason.EOS}
        assert all(len(e.piece.token_ids) <= e.piece.token_count for e in recorder.pieces)

"""What a model folder says, without the library: config, RoPE, vocabulary, weights, settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.first_run.plan import PlanError, make_plan
from service.adapters.engines.exllamav2.model_files import eos_ids, open_folder, read_model_files
from service.adapters.engines.exllamav2.rope import RopeRefusal, translated
from service.adapters.engines.exllamav2.sampling import cuts_itself, is_greedy, sampler_values
from service.adapters.engines.exllamav2.settings import ExLlamaV2Settings, pages
from service.adapters.engines.exllamav2.vocabulary import read_vocabulary
from service.adapters.engines.exllamav2.weights import check_weights
from service.domain.request import Sampling
from service.main import engine_settings
from service.ports.engine import EngineLoadError
from service.settings import Settings

LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
BYTE_LEVEL = {"decoder": {"type": "ByteLevel"}, "pre_tokenizer": None}
PIECES = {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rope_theta": 500000.0},
        {"rope_theta": 10000, "rope_scaling": None},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ],
    ids=str,
)
def test_a_config_that_the_library_reads_is_left_as_it_is(config: dict[str, Any]) -> None:
    assert translated(config) == config


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, {"rope_theta": 1e6}),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_type": "default"}},
            {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
        ),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
        ),
        (
            {"rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [16, 24, 24]}},
            {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        ),
        (
            {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0],
                                 "original_max_position_embeddings": 4096, "rope_theta": 1e4}},
            {"original_max_position_embeddings": 4096},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_rope_is_put_in_the_librarys_words(config: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = translated(config)
    assert {key: found[key] for key in wanted} == wanted
    nested = translated({"text_config": config})["text_config"]
    assert {key: nested[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1, "mscale": 2}, "mscale"),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 1,
                "attention_factor": 1,
            },
            "att",
        ),
    ],
    ids=str,
)
def test_rope_that_the_library_has_not_is_refused(scaling: dict[str, Any], said: str) -> None:
    for config in ({"rope_scaling": scaling}, {"rope_parameters": scaling}):
        with pytest.raises(RopeRefusal, match=said):
            translated(config)


def test_end_of_turn_ids_are_united() -> None:
    assert eos_ids({"eos_token_id": 2}, {"eos_token_id": [7, 2]}) == (2, 7)
    assert eos_ids({"text_config": {"eos_token_id": [1]}}, {}) == (1,)
    assert eos_ids({"eos_token_id": None}, {"eos_token_id": [True, -1, "x", 3]}) == (3,)


def test_a_byte_level_vocabulary_gives_bytes() -> None:
    found = read_vocabulary(
        BYTE_LEVEL
        | {
            "model": {"vocab": {"a": 0, "Ġthe": 1, "Ã": 2, "<s>": 3}},
            "added_tokens": [
                {"id": 3, "content": "<s>", "special": True},
                {"id": 5, "content": "<tool>", "special": False},
            ],
        }
    )
    assert found.pieces == (b"a", b" the", b"\xc3", b"", b"", b"<tool>")
    assert found.special == {3: "<s>"} and not found.space_prefix
    assert found.id_of("<s>") == 3 and found.id_of("a") is None


def test_a_sentencepiece_vocabulary_gives_bytes() -> None:
    vocab = {"<0x0A>": 0, "\u2581Hello": 1, "é": 2}
    found = read_vocabulary(PIECES | {"model": {"vocab": vocab}})
    assert found.pieces == (b"\n", b" Hello", "é".encode()) and found.space_prefix
    unigram = read_vocabulary(
        {"decoder": {"type": "Metaspace"}, "model": {"vocab": [["\u2581a", -1.0], ["b", -2.0]]}}
    )
    assert unigram.pieces == (b" a", b"b")


@pytest.mark.parametrize("tokenizer", [{}, {"model": {"vocab": {}}}, {"model": {"vocab": {"a": 0}}}], ids=str)
def test_a_vocabulary_of_another_kind_is_refused(tokenizer: dict[str, Any]) -> None:
    with pytest.raises(EngineLoadError, match=r"tokenizer\.json"):
        read_vocabulary(tokenizer)


def weights(path: Path, size: int = 8, cut: int = 0) -> None:
    header = json.dumps(
        {"__metadata__": {}, "a": {"dtype": "F16", "shape": [4], "data_offsets": [0, size]}}
    ).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(size)
    path.write_bytes(whole[: len(whole) - cut])


def test_whole_weights_pass_and_others_are_named(tmp_path: Path) -> None:
    weights(tmp_path / "model.safetensors")
    check_weights(tmp_path)
    for cut, said in ((1, "cut short"), (8 + 60, "not a safetensors file")):
        weights(tmp_path / "model.safetensors", cut=cut)
        with pytest.raises(EngineLoadError, match=said):
            check_weights(tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.example/spec/v1\noid sha256:0\n")
    with pytest.raises(EngineLoadError, match="not a safetensors file"):
        check_weights(tmp_path)


def test_a_missing_part_of_the_weights_is_named(tmp_path: Path) -> None:
    weights(tmp_path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineLoadError, match="model-00002-of-00002"):
        check_weights(tmp_path)


@given(st.binary(max_size=200))
def test_no_file_of_weights_breaks_the_check(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "x.safetensors").write_bytes(data)
    try:
        check_weights(folder)
    except EngineLoadError as error:
        assert "x.safetensors" in str(error)


def model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    weights(folder / "model.safetensors")
    whole = {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2} | config
    (folder / "config.json").write_text(json.dumps(whole))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}}))
    return folder


def test_a_changed_config_is_given_in_a_folder_of_its_own(tmp_path: Path) -> None:
    plain = read_model_files(model(tmp_path / "plain", rope_theta=1.0))
    with open_folder(plain) as folder:
        assert folder == plain.folder
    changed = read_model_files(
        model(tmp_path / "new", rope_parameters={"rope_theta": 2.0, "rope_type": "default"})
    )
    with open_folder(changed) as folder:
        assert folder != changed.folder
        assert json.loads((folder / "config.json").read_text())["rope_theta"] == 2.0
        assert (folder / "model.safetensors").read_bytes() == (
            changed.folder / "model.safetensors"
        ).read_bytes()
    assert "rope_theta" not in json.loads((changed.folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"tokenizer_config.json": {"chat_template": "A"}}, "A"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool", "template": "T"},
                                                     {"name": "default", "template": "D"}]}}, "D"),
        ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "T"},
                                                      {"name": "default", "template": "D"}]}},
         "{% if tools %}T{% else %}D{% endif %}"),
        ({"chat_template.json": {"chat_template": "J"},
          "tokenizer_config.json": {"chat_template": "A"}}, "J"),
        ({}, ""),
    ],
    ids=str,
)  # fmt: skip
def test_the_chat_template_is_found_where_models_have_it(
    tmp_path: Path, files: dict[str, object], wanted: str
) -> None:
    folder = model(tmp_path / "model")
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))
    assert read_model_files(folder).chat_template == wanted
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert read_model_files(folder).chat_template == "{{ messages }}"


def test_texts_of_tokens_may_be_objects(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = read_model_files(folder)
    assert (found.bos_text, found.eos_text, found.adds_bos) == ("<s>", "</s>", True)


@pytest.mark.parametrize("content", ["", "[]", "{", "\xff"])
def test_a_broken_json_file_is_named(tmp_path: Path, content: str) -> None:
    folder = model(tmp_path / "model")
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(EngineLoadError, match=r"config\.json"):
        read_model_files(folder)


def test_chunks_and_pages_are_whole() -> None:
    settings = ExLlamaV2Settings(Path("m"), batch_tokens=300)
    assert settings.chunk_tokens == 512 and [pages(n) for n in (1, 256, 257)] == [1, 1, 2]
    assert settings.drafted_tokens == 0 and replace(settings, ngram_draft=True).drafted_tokens == 4
    settings.check()
    with pytest.raises(EngineLoadError, match=r"slots.*batch_tokens"):
        replace(settings, slots=0, batch_tokens=0).check()


def test_sampling_is_neutral_unless_asked() -> None:
    values = sampler_values(Sampling())
    assert values["temperature"] == 1.0 and values["token_repetition_penalty"] == 1.0
    assert not any(
        values[name] for name in ("top_k", "top_p", "min_p", "typical", "top_a", "tfs", "skew", "mirostat")
    )
    for greedy in (Sampling(temperature=0), Sampling(top_p=0), Sampling(min_p=1), Sampling(top_k=1)):
        assert is_greedy(greedy) and not cuts_itself(greedy) and sampler_values(greedy)["top_k"] == 1
    cut = Sampling(top_p=0.9, top_k=5, min_p=0.1)
    assert cuts_itself(cut) and sampler_values(cut)["top_k"] == 0 and sampler_values(cut)["min_p"] == 0


def test_the_service_tells_the_engine_what_it_knows() -> None:
    settings = Settings(
        engine="exllamav2", model_path="/models/a", engine_slots=4, engine_options={"cache_type": "q6"}
    )
    told = {"model_path": "/models/a", "slots": 4, "context_tokens": 2048, "cache_type": "q6"}
    assert engine_settings(settings) == told
    given = settings.model_copy(update={"engine_batch_tokens": 512})
    assert engine_settings(given) == told | {"batch_tokens": 512}
    with pytest.raises(ValueError, match="SERVICE_MODEL_PATH"):
        Settings(engine="exllamav2")


def test_make_run_wants_a_folder_and_an_installed_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PlanError, match="setup-exllamav2"):
        make_plan({"ENGINE": "exllamav2", "MODEL": str(tmp_path)})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    plan = make_plan({"ENGINE": "exllamav2", "MODEL": str(tmp_path)})
    assert (
        plan.engine == "exllamav2" and plan.env["SERVICE_ENGINE"] == "exllamav2" and "ENGINE" not in plan.env
    )
    with pytest.raises(PlanError, match="folder"):
        make_plan({"ENGINE": "exllamav2"})

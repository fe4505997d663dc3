"""Real models whose config the library would misread: findings 5 and 17."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from service.domain.request import ChatMessage, ChatPrompt, TextPrompt
from service.ports.engine import EndReason, EngineLoadError, PromptError
from tests.contract.engines.recorder import run
from tests.contract.engines.suite import job
from tests.support.exllamav2 import tiny_model
from tests.support.exllamav2.engines import Opened, opened, random_ids
from tests.support.exllamav2.scripted_logits import scripted

PROMPT = random_ids(600, 3)


def tokens(folder: Path, **changes: Any) -> tuple[int, ...]:
    with opened(folder, **changes) as found:
        return run(found.engine, replace(job(PROMPT, 32), ignore_eos=True)).token_ids


def changed(folder: Path, drop: tuple[str, ...] = (), **config: Any) -> Path:
    tiny_model.make(folder)
    path = folder / "config.json"
    found = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: value for key, value in found.items() if key not in drop}))
    return folder


def test_a_rope_base_as_transformers_5_writes_it_is_understood(tmp_path: Path) -> None:
    old = tokens(changed(tmp_path / "old", rope_theta=100000.0))
    parameters = {"rope_theta": 100000.0, "rope_type": "default"}
    new = changed(tmp_path / "new", drop=("rope_theta",), rope_parameters=parameters)
    before = (new / "config.json").read_bytes()
    assert tokens(new) == old
    assert tokens(tiny_model.make(tmp_path / "base")) != old
    assert (new / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 256},
    ],
    ids=["linear", "llama3"],
)  # fmt: skip
def test_a_rope_scaling_as_transformers_5_writes_it_is_understood(
    tmp_path: Path, scaling: dict[str, Any]
) -> None:
    old = tokens(changed(tmp_path / "old", rope_scaling=scaling))
    new = changed(tmp_path / "new", drop=("rope_theta",), rope_parameters=scaling | {"rope_theta": 10000.0})
    assert tokens(new) == old
    both = changed(tmp_path / "both", rope_scaling=scaling | {"type": scaling["rope_type"]})
    assert tokens(both) == old  # the library fails on a scaling that names its kind twice
    assert tokens(tiny_model.make(tmp_path / "base")) != old


def test_rope_settings_reach_the_model(model_folder: Path) -> None:
    plain = tokens(model_folder)
    for changes in (
        {"rope_scale": 4.0},
        {"rope_alpha": 4.0},
        {"yarn_factor": 4.0, "yarn_original_tokens": 512},
    ):
        assert tokens(model_folder, **changes) != plain


def test_rope_settings_stretch_the_context(model_folder: Path) -> None:
    with opened(model_folder, context_tokens=4096, cache_tokens=4096, rope_scale=2.0) as found:
        assert found.info.context_tokens == 4096
        long = replace(job(random_ids(4090, 1), 6), ignore_eos=True)
        assert run(found.engine, long).ended().output_tokens == 6


def test_every_end_of_turn_that_a_folder_names_ends_it(tmp_path: Path) -> None:
    folder = changed(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3]}))
    with opened(folder) as found:
        assert found.info.eos_token_ids == (2, 3, 5)  # 5 is the template's own
        for eos in found.info.eos_token_ids:
            with scripted(found.library, {PROMPT: [20, eos]}):
                ended = run(found.engine, job(PROMPT, 9)).ended()
            assert ended.reason is EndReason.EOS and ended.output_tokens == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["NewForCausalLM"]}, "NewForCausalLM"),
        ({"architectures": []}, "architecture"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "kind of layer"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 64}}, "beta_fast"),
    ],
    ids=str,
)
def test_a_model_that_the_library_would_get_wrong_is_refused(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineLoadError) as caught, opened(changed(tmp_path / "model", **config)):
        pass
    assert said in str(caught.value)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    folder = tiny_model.make(tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(EngineLoadError) as caught, opened(folder):
        pass
    assert missing.split(".")[-1] in str(caught.value)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    folder = tiny_model.make(tmp_path / "model")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(EngineLoadError), opened(folder):
        pass


def test_chat_has_one_bos_and_no_special_token_of_the_callers(tiny: Opened) -> None:
    ids = tiny.engine.prepare(ChatPrompt((ChatMessage("user", "hi <|end|></s><s>"),)))
    specials = [i for i in ids if i < len(tiny_model.SPECIAL)]
    assert specials == [tiny_model.BOS, tiny_model.USER, tiny_model.TURN_END, tiny_model.ASSISTANT]
    assert tiny.engine.prepare(TextPrompt("<s>a")) == tiny.engine.prepare(TextPrompt("a"))
    with pytest.raises(PromptError):
        tiny.engine.prepare(TextPrompt("\ud800"))


def test_a_lora_changes_the_tokens_and_one_that_is_code_is_refused(
    tmp_path: Path, model_folder: Path
) -> None:
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    numbers = torch.Generator().manual_seed(1)
    part = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    save_file(
        {
            f"{part}A.weight": torch.randn(4, 256, generator=numbers).half(),
            f"{part}B.weight": torch.randn(256, 4, generator=numbers).half(),
        },
        lora / "adapter_model.safetensors",
    )
    assert tokens(model_folder, lora_paths=(lora,)) != tokens(model_folder)
    (lora / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(EngineLoadError, match="code"), opened(model_folder, lora_paths=(lora,)):
        pass


@pytest.mark.parametrize("cache", ["q8", "q6", "q4"])
def test_quantised_caches_say_what_is_missing_here(model_folder: Path, cache: str) -> None:
    """Their kernels are CUDA's: `make gpu-check` covers them."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EngineLoadError) as caught, opened(model_folder, cache_type=cache, warm_up=True):
        pass
    assert "GPU" in str(caught.value)

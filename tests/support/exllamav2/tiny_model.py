"""A small Llama with random weights and a byte-level tokenizer, in the form Hugging Face saves it.

Made from numpy's legacy generator, whose numbers are fixed for good, and a tokenizer written out by
hand: the same files everywhere, so that recorded tokens stay valid. About 2.7 MB.

By its weights it never says a special token, but two: after `ENDING` it says `LAST`, and after
`LAST` the end of turn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save_file
from torch import Tensor

SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>")
UNKNOWN, BOS, EOS, USER, ASSISTANT, TURN_END = range(len(SPECIAL))
WORDS = ("the", "STO", "STOP", "three", "one", "two", "and", "is", "in", "an", "er", "on", "re", "st", "en")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; the defaults suit the quantised caches' kernels too."""

    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 512


def byte_alphabet() -> list[str]:
    """Return the printable stand-in of each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def vocabulary() -> dict[str, int]:
    """Return token → id: the special ones, all bytes, and the few merged pieces."""
    return {token: i for i, token in enumerate((*SPECIAL, *byte_alphabet(), *_merged()))}


def token_of(text: str) -> int:
    """Return the id of a single byte or piece, e.g. `Z`."""
    alphabet = byte_alphabet()
    return vocabulary()["".join(alphabet[b] for b in text.encode())]


def make(folder: Path, shape: Shape = Shape(), seed: int = 0, **config: Any) -> Path:
    """Write a model to `folder` and return it; `config` overrides keys of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    size = len(vocabulary())
    _write(folder / "tokenizer.json", _tokenizer())
    _write(
        folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    )
    _write(folder / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": [EOS]})
    _write(folder / "config.json", _config(shape, size) | config)
    save_file(_weights(shape, size, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _merges() -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    known = set(byte_alphabet())
    for word in WORDS:
        left = word[0]
        for char in word[1:]:
            if (left, char) not in merges and left + char not in known:
                merges.append((left, char))
                known.add(left + char)
            left += char
    return merges


def _merged() -> list[str]:
    return [left + right for left, right in _merges()]


def _tokenizer() -> dict[str, object]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {"id": i, "content": text, "special": True, "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False}
        for i, text in enumerate(SPECIAL)
    ]  # fmt: skip
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    }
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocabulary(), "merges": [list(pair) for pair in _merges()],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": template, "decoder": level, "model": model,
    }  # fmt: skip


def _config(shape: Shape, size: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "bos_token_id": BOS, "eos_token_id": EOS,
        "hidden_size": shape.hidden, "head_dim": shape.head_dim, "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "num_hidden_layers": shape.layers, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT_TOKENS, "vocab_size": size, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float16",
    }  # fmt: skip


def _weights(shape: Shape, size: int, seed: int) -> dict[str, Tensor]:
    numbers = numpy.random.RandomState(seed)

    def random(*dims: int, spread: float) -> Tensor:
        return torch.from_numpy(numbers.standard_normal(dims) * spread).half()

    def ones() -> Tensor:
        return torch.ones(shape.hidden, dtype=torch.float16)

    hidden, inner = shape.hidden, shape.intermediate
    embedding = random(size, hidden, spread=1.0)
    head = random(size, hidden, spread=3 * hidden**-0.5)
    head[: len(SPECIAL)] = 0
    for said, after in ((LAST, ENDING), (EOS, LAST)):
        direction = embedding[after].float()
        head[said] = (direction / direction.norm() * 6).half()
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": ones(), "lm_head.weight": head}
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        weights[layer + "input_layernorm.weight"] = ones()
        weights[layer + "post_attention_layernorm.weight"] = ones()
        sizes = {
            "self_attn.q_proj": (shape.heads * shape.head_dim, hidden),
            "self_attn.k_proj": (shape.kv_heads * shape.head_dim, hidden),
            "self_attn.v_proj": (shape.kv_heads * shape.head_dim, hidden),
            "self_attn.o_proj": (hidden, shape.heads * shape.head_dim),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, dims in sizes.items():
            weights[f"{layer}{name}.weight"] = random(*dims, spread=dims[1] ** -0.5)
    return weights


ENDING, LAST = token_of("Y"), token_of("Z")

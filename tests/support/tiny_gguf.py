"""GGUF models of a few kilobytes with random weights, for what the demo model has not: another tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

_WIDTH, _HEADS, _FEED = 32, 2, 64
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|turn|>' + m['role'] + ':' + m['content'] }}{% endfor %}"
    "{{ '<|turn|>' }}"
)


def write_sentencepiece_model(
    path: Path, *, template: str | Sequence[Mapping[str, str]] = TEMPLATE, controls: tuple[str, ...] = ()
) -> None:
    """Write a Llama-type model whose tokenizer adds a BOS and a blank, and whose template a BOS too.

    `controls` are further control tokens, from id 4 on.
    """
    words = ["\u2581", "a", "b", "c", "\u2581a", "\u2581b", "ab", "\u2581ab", "r", "s", "e", "u", ":"]
    tokens = ["<unk>", "<s>", "</s>", "<|turn|>", *controls, *(f"<0x{i:02X}>" for i in range(256)), *words]
    kind = gguf.TokenType
    kinds = [
        kind.UNKNOWN,
        *[kind.CONTROL] * (3 + len(controls)),
        *[kind.BYTE] * 256,
        *[kind.NORMAL] * len(words),
    ]
    first = 260 + len(controls)
    scores = [0.0] * first + [-float(i) for i in range(len(words))]
    scores[first + words.index("\u2581ab")] = 5.0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FEED)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_chat_template(template)
    random = np.random.default_rng(1)
    shapes = {
        "token_embd": (len(tokens), _WIDTH),
        "output": (len(tokens), _WIDTH),
        "output_norm": (_WIDTH,),
        "blk.0.attn_norm": (_WIDTH,),
        "blk.0.ffn_norm": (_WIDTH,),
        "blk.0.attn_q": (_WIDTH, _WIDTH),
        "blk.0.attn_k": (_WIDTH, _WIDTH),
        "blk.0.attn_v": (_WIDTH, _WIDTH),
        "blk.0.attn_output": (_WIDTH, _WIDTH),
        "blk.0.ffn_gate": (_FEED, _WIDTH),
        "blk.0.ffn_up": (_FEED, _WIDTH),
        "blk.0.ffn_down": (_WIDTH, _FEED),
    }
    for name, shape in shapes.items():
        values = np.ones(shape) if name.endswith("norm") else random.normal(0, 0.2, shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

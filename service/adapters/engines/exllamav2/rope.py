"""What config.json says about positions, in the words that exllamav2 reads.

The library knows `rope_theta` and `rope_scaling` as transformers 4 wrote them. From version 5 on
they stand in `rope_parameters`, which it does not look at: it then takes a base of 10000 and no
scaling without a word, and the model talks nonsense. Here such a config is rewritten, or refused
where the library has nothing that equals it.

Specification: transformers' `modeling_rope_utils`, and `ExLlamaV2Config.prepare` of 0.3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SCALINGS = {
    "linear": frozenset({"factor"}),
    "llama3": frozenset({
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    }),
    "yarn": frozenset({"factor", "original_max_position_embeddings"}),
    "longrope": frozenset({"long_factor", "short_factor"}),
    "su": frozenset({"long_factor", "short_factor"}),
    "mrope": frozenset({"mrope_section"}),
}  # fmt: skip
"""What the library reads → the keys it needs."""
_PLAIN = frozenset({"default", "none", ""})
_YARN_DEFAULTS = {"beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 0, "truncate": True}
"""The library takes these for granted; another value would be ignored."""


class RopeRefusal(Exception):
    """The library cannot place tokens as this config says; the text says what it lacks."""


def translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` with its RoPE in the library's words. Raises RopeRefusal."""
    found = dict(config)
    text = found.get("text_config")
    if isinstance(text, Mapping):
        found["text_config"] = _translated_level(text)
    return _translated_level(found)


def _translated_level(config: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(config)
    parameters = found.get("rope_parameters")
    if isinstance(parameters, Mapping):
        if any(isinstance(value, Mapping) for value in parameters.values()):
            raise RopeRefusal("it has RoPE parameters for each kind of layer")
        scaling = dict(parameters)
        for key in ("rope_theta", "partial_rotary_factor"):
            value = scaling.pop(key, None)
            if value is not None and found.get(key) is None:
                found[key] = value
        if found.get("rope_scaling") is None:
            found["rope_scaling"] = scaling
    named = found.get("rope_scaling")
    if isinstance(named, Mapping):
        found["rope_scaling"] = _scaling(named, found)
    return found


def _scaling(scaling: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any] | None:
    old, new = scaling.get("type"), scaling.get("rope_type")
    kind = str(new if old in (None, "default") else old)
    if kind in _PLAIN or kind == "None":
        if "mrope_section" not in scaling:
            return None
        kind = "mrope"
    if kind not in _SCALINGS:
        raise RopeRefusal(f"its RoPE scaling {kind!r} is not one that exllamav2 has ({', '.join(_SCALINGS)})")
    values = {
        key: value for key, value in scaling.items() if key not in ("type", "rope_type") and value is not None
    }
    original = "original_max_position_embeddings"
    if kind in ("longrope", "su") and original not in config and original in values:
        config[original] = values[original]
    if kind == "yarn" and original not in values and isinstance(config.get("max_position_embeddings"), int):
        values[original] = int(config["max_position_embeddings"] / float(values.get("factor", 1)))
    missing = sorted(_SCALINGS[kind] - values.keys())
    if missing:
        raise RopeRefusal(f"its RoPE scaling {kind!r} lacks {', '.join(missing)}")
    if kind == "yarn":
        odd = sorted(k for k, usual in _YARN_DEFAULTS.items() if values.get(k, usual) != usual)
        if odd or values.get("attention_factor") is not None:
            raise RopeRefusal(
                f"its YaRN scaling sets {', '.join(odd or ['attention_factor'])}, which exllamav2 ignores"
            )
    both = old is not None and new is not None  # the library takes either, and fails on both
    return (
        {"type": kind, **values}
        if both or values.keys() - scaling.keys() or kind == "mrope"
        else dict(scaling)
    )

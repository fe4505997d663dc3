"""A 4-bit GPTQ copy of a model, and the same weights written out in full.

Rounded to nearest, in groups of 64 rows. What the quantised kernels make of the copy is to be what the
plain ones make of the reference. A zero point is stored less one, as the library's `q_matrix.cu` reads it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GROUP = 64
BITS = 4
_PER_WORD = 32 // BITS


def make_gptq(source: Path, quantised: Path, reference: Path) -> None:
    """Write both folders."""
    packed: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            packed[name] = plain[name] = weight
            continue
        base = name.removesuffix(".weight")
        values, zeros, scales = _quantised(weight.float().t().contiguous())
        groups = values.shape[0] // GROUP
        spread = (values.view(groups, GROUP, -1) - zeros[:, None]) * scales.float()[:, None]
        plain[name] = spread.view(values.shape).t().half().contiguous()
        packed[f"{base}.qweight"] = _packed(values, along=0)
        packed[f"{base}.qzeros"] = _packed(zeros - 1, along=1)
        packed[f"{base}.scales"] = scales.contiguous()
    for folder, weights in ((quantised, packed), (reference, plain)):
        folder.mkdir(parents=True, exist_ok=True)
        for path in source.glob("*.json"):
            shutil.copy(path, folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "gptq", "bits": BITS, "group_size": GROUP, "desc_act": False, "sym": False,
    }  # fmt: skip
    (quantised / "config.json").write_text(json.dumps(config))


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return values and zero points (0 to 15) and scales of an (in, out) matrix."""
    rows, columns = weight.shape
    groups = weight.view(rows // GROUP, GROUP, columns)
    low, high = groups.amin(1), groups.amax(1)
    scales = ((high - low) / 15).clamp(min=1e-8).half()
    zeros = (-low / scales.float()).round().clamp(1, 15)
    values = (groups / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 15)
    return values.long().view(rows, columns), zeros.long(), scales


def _packed(values: Tensor, along: int) -> Tensor:
    """Pack eight values into a word along one dimension, the first one lowest."""
    words = sum(
        values.index_select(along, torch.arange(i, values.shape[along], _PER_WORD)) << (BITS * i)
        for i in range(_PER_WORD)
    )
    assert isinstance(words, Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).int().contiguous()

"""The attention stand-in against arithmetic in 64 bits, and how it is chosen: findings §4."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from service.adapters.engines.exllamav2.attention import StandIn
from tests.support.exllamav2.engines import Opened

PAGE = 256


def expected(q: Tensor, keys: Tensor, values: Tensor, scale: float, window: int, softcap: float) -> Tensor:
    """One sequence: (n, heads, dim) queries at the end of (s, kv heads, dim) keys."""
    n, heads, _ = q.shape
    s = keys.shape[0]
    out = torch.empty_like(q, dtype=torch.float64)
    for head in range(heads):
        source = head // (heads // keys.shape[1])
        for i in range(n):
            at = s - n + i
            first = max(0, at - window) if window >= 0 else 0
            k, v = (t[first : at + 1, source].double() for t in (keys, values))
            scores = k @ q[i, head].double() * scale
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            out[i, head] = scores.softmax(0) @ v
    return out


@pytest.mark.parametrize("seed", range(24))
def test_paged_attention_equals_arithmetic_in_64_bits(seed: int) -> None:
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    batch, n, heads = numbers.choice([1, 2, 5]), numbers.choice([1, 1, 3, 40]), numbers.choice([2, 4, 8])
    kv, dim = numbers.choice([k for k in (1, 2, 4) if heads % k == 0]), numbers.choice([32, 64])
    window, softcap = numbers.choice([-1, -1, 17, 300]), numbers.choice([0.0, 0.0, 30.0])
    lengths = [numbers.choice([0, 1, 200, 255, 256, 600]) for _ in range(batch)]
    table_width = max(-(-(length + n) // PAGE) for length in lengths) + 1
    order = torch.randperm(batch * table_width).view(batch, table_width).int()
    k_cache, v_cache = (torch.randn(batch * table_width, PAGE, kv, dim) for _ in range(2))
    q = torch.randn(batch, n, heads, dim)
    k, v = (torch.randn(batch, n, kv, dim) for _ in range(2))
    before = k_cache.clone()
    found = StandIn().attend_cached(
        q, k_cache, v_cache, k=k, v=v, cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        block_table=order, causal=True, window_size=(window, window), softcap=softcap,
    )  # fmt: skip
    for i, length in enumerate(lengths):
        keys, values = (c[order[i].long()].flatten(0, 1)[: length + n] for c in (k_cache, v_cache))
        assert torch.equal(keys[length:], k[i]) and torch.equal(values[length:], v[i])
        assert torch.equal(keys[:length], before[order[i].long()].flatten(0, 1)[:length])
        wanted = expected(q[i], keys, values, dim**-0.5, window, softcap)
        assert torch.allclose(found[i].double(), wanted, atol=1e-5, rtol=1e-4)


def test_the_unpaged_function_is_causal_and_aligned_at_the_end() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(1, 3, 4, 32), torch.randn(1, 10, 2, 32), torch.randn(1, 10, 2, 32)
    found = StandIn().attend(q, k, v, causal=True)
    assert torch.allclose(found[0].double(), expected(q[0], k[0], v[0], 32**-0.5, -1, 0.0), atol=1e-5)


def test_what_is_in_use_is_said(tiny: Opened) -> None:
    assert "stand-in" in tiny.library.attention


@pytest.mark.parametrize("package", ["without a version", "broken"])
def test_a_flash_attn_that_the_library_cannot_use_does_not_stop_the_import(
    tmp_path: Path, package: str
) -> None:
    """flash-attn 4 alone is a namespace package without `__version__`: the library's import dies of it."""
    folder = tmp_path / "flash_attn"
    (folder / "cute").mkdir(parents=True)
    (folder / "cute" / "__init__.py").write_text("")
    if package == "broken":
        (folder / "__init__.py").write_text("raise ImportError('undefined symbol: of another torch')\n")
    code = (
        "from tests.support.exllamav2.library import install; install()\n"
        "from service.adapters.engines.exllamav2.attention_import import import_library; import_library()\n"
        "import exllamav2.attn as attn; assert not attn.has_flash_attn; print('imported')"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{root}"}
    found: Any = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert found.stdout.strip().endswith("imported"), found.stderr[-2000:]

"""Which attention the library gets, and a stand-in for flash-attn on plain torch.

The library batches by pages only with flash-attn >= 2.5.7. Without it, it runs one job at a time,
and its own fallback computes prompts without a causal mask (attn.py `_attn_torch`, since
2025-02-13), so the answers are wrong. Here, where flash-attn is missing or the GPU has none, the
library is handed functions of the same meaning, so that paged batching works everywhere and that
fallback is never reached.

`torch`: keys and values of a job's pages are gathered, then one masked
`scaled_dot_product_attention` for the batch. No host synchronisation. Runs on any device; slower
and hungrier than flash-attn, as a step copies the pages it reads.
`torch_paged`: torch's own paged FlashAttention-2 (`torch.nn.attention.varlen`, torch >= 2.13,
CUDA); models with soft-capping fall back to `torch`. Not verified on a GPU yet.

Differences from flash-attn 2: only what exllamav2 0.3.2 calls, no dropout, no ALiBi, no left
window of its own for the right side.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from service.adapters.engines.exllamav2.settings import AttentionChoice
from service.ports.engine import EngineLoadError

_AMPERE = 8
Window = tuple[int, int]


def choose(choice: AttentionChoice) -> str:
    """Set the library up; return what is in use, for people. Raises EngineLoadError."""
    attn = importlib.import_module("exllamav2.attn")
    model = importlib.import_module("exllamav2.model")
    real = bool(attn.has_flash_attn_with_paged) and not getattr(attn, "_tailrace_stand_in", False)
    fit = torch.cuda.is_available() and all(
        torch.cuda.get_device_capability(i)[0] >= _AMPERE for i in range(torch.cuda.device_count())
    )
    if choice == "flash_attn" and not (real and fit):
        raise EngineLoadError(
            "attention is set to flash_attn, but flash-attn 2.5.7 or newer is not installed, or a GPU is "
            "older than compute capability 8.0: install it, or set attention to auto"
        )
    if real and fit and choice in ("auto", "flash_attn"):
        return f"flash-attn {sys.modules['flash_attn'].__version__}"
    paged = _paged_kernel() if choice == "torch_paged" else None
    if choice == "torch_paged" and paged is None:
        raise EngineLoadError("attention is set to torch_paged, which needs CUDA and torch 2.13 or newer")
    _hand_over(attn, model, StandIn(paged))
    return "torch's paged FlashAttention-2" if paged else "torch stand-in (flash-attn is not in use)"


def _hand_over(attn: Any, model: Any, stand_in: StandIn) -> None:
    """Give the functions to the library by its own names; no fake `flash_attn` package appears."""
    attn._tailrace_stand_in = True
    attn.flash_attn_func = stand_in.attend
    attn.flash_attn_with_kvcache = stand_in.attend_cached
    attn.has_flash_attn = attn.has_flash_attn_with_paged = True
    attn.has_flash_attn_with_window = attn.has_flash_attn_with_softcap = True
    model.has_flash_attn = True


def _paged_kernel() -> Any:
    try:
        varlen = importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        return None
    return getattr(varlen, "varlen_attn", None) if torch.cuda.is_available() else None


class StandIn:
    """flash-attn 2's functions, as far as the library calls them. Shapes are flash-attn's."""

    def __init__(self, paged: Any = None) -> None:
        self._paged = paged

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        **_: object,
    ) -> Tensor:
        """`flash_attn_func`: (batch, n, heads, dim) queries on (batch, s, kv heads, dim); the ends align."""
        n, s = q.shape[1], k.shape[1]
        rows = torch.arange(s - n, s, device=q.device)[:, None]
        columns = torch.arange(s, device=q.device)[None]
        mask = columns <= rows if causal else torch.ones_like(columns <= rows)
        return _attend(
            q, k, v, _windowed(mask, rows, columns, window_size)[None, None], softmax_scale, softcap
        )

    def attend_cached(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        cache_seqlens: Tensor | int = 0,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        **_: object,
    ) -> Tensor:
        """`flash_attn_with_kvcache`: append k and v, if given, then attend to all that is cached."""
        batch, n = q.shape[:2]
        steps = torch.arange(n, device=q.device)
        if isinstance(cache_seqlens, int):
            cache_seqlens = torch.full((batch,), cache_seqlens, device=q.device)
        total = cache_seqlens.long()
        table = None if block_table is None else block_table.long()
        if k is not None and v is not None:
            places = total[:, None] + steps
            if table is None:
                rows, offsets = torch.arange(batch, device=q.device)[:, None], places
            else:
                page = k_cache.shape[1]
                rows, offsets = table.gather(1, places // page), places % page
            k_cache[rows, offsets] = k
            v_cache[rows, offsets] = v
            total = total + n
        if self._paged is not None and table is not None and not softcap:
            return self._attend_paged(q, k_cache, v_cache, total, table, softmax_scale, causal, window_size)
        if table is None:
            keys, values = k_cache[:batch], v_cache[:batch]
        else:  # a row's unused entries are page 0: gathered, then masked
            keys, values = k_cache[table].flatten(1, 2), v_cache[table].flatten(1, 2)
        places = (total - n)[:, None, None] + steps[None, :, None]
        columns = torch.arange(keys.shape[1], device=q.device)[None, None]
        mask = columns <= places if causal else columns < total[:, None, None]
        mask = _windowed(mask, places, columns, window_size)
        return _attend(q, keys, values, mask[:, None], softmax_scale, softcap)

    def _attend_paged(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        total: Tensor,
        table: Tensor,
        scale: float | None,
        causal: bool,
        window: Window,
    ) -> Tensor:
        batch, n, heads, dim = q.shape
        starts = torch.arange(0, (batch + 1) * n, n, device=q.device, dtype=torch.int32)
        out: Tensor = self._paged(
            q.reshape(batch * n, heads, dim),
            k_cache,
            v_cache,
            starts,
            None,
            n,
            table.shape[1] * k_cache.shape[1],
            scale=dim**-0.5 if scale is None else scale,
            window_size=(window[0], 0 if causal else window[1]),
            enable_gqa=True,
            seqused_k=total.int(),
            block_table=table.int(),
        )
        return out.view(batch, n, heads, dim)


def _windowed(mask: Tensor, rows: Tensor, columns: Tensor, window: Window) -> Tensor:
    return mask & (columns >= rows - window[0]) if window[0] >= 0 else mask


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None, softcap: float) -> Tensor:
    """Attend by a mask of (batch or 1, 1, n, s); a key head serves several query heads."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:  # with a mask, CUDA's fused kernels do not take grouped heads
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    if not softcap:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)
    scores = torch.tanh(q.float() @ k.float().transpose(-1, -2) * (scale / softcap)) * softcap
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights @ v.float()).to(q.dtype).transpose(1, 2)

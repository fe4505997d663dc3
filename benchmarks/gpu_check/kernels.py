"""Numbers: attention back ends against each other, tokens against recorded ones, quantisation."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.figures import Report
from service.adapters.engines.exllamav2 import attention
from service.ports.engine import EngineLoadError
from tests.contract.engines.recorder import run
from tests.contract.engines.suite import job
from tests.support.exllamav2 import tiny_model
from tests.support.exllamav2.engines import Opened, opened, random_ids
from tests.support.exllamav2.gptq import make_gptq

VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "exllamav2_greedy.json"
ATTENTION_ERROR = 5e-3
LOGIT_ERROR = 2e-2
SHAPES = ((1, 1, 900), (8, 1, 3000), (32, 1, 1500), (1, 512, 1024), (8, 5, 700))
"""Batch, queries, tokens cached: decode, decode of a batch, prefill, speculation."""


def check_attention(report: Report) -> None:
    """Compare what there is on the same random pages; the stand-in is what the CPU's tests verify."""
    cuda = torch.cuda.is_available()
    for batch, queries, cached in SHAPES if cuda else SHAPES[:1]:
        call = _random_call(batch, queries, cached, "cuda" if cuda else "cpu")
        base = None
        for name, function in _back_ends(report).items():
            once = partial(function, *call[:3], **call[3])
            what = f"{name}, batch {batch}, {queries} queries, {cached} cached"
            try:
                found = once().float()
                took_ms = _milliseconds(once)
            except Exception as error:  # noqa: BLE001 - a kernel may refuse in any way; that is the finding
                report.add("attention", what, f"{type(error).__name__}: {error}"[:120], passed=False)
                continue
            base = found if base is None else base
            relative = float((found - base).norm() / base.norm())
            report.add("attention", what + ": error", relative, passed=relative < ATTENTION_ERROR)
            report.add("attention", what + ": time", took_ms, "ms")


def _random_call(batch: int, queries: int, cached: int, device: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return what a back end is called with: queries, caches, and the rest by name."""
    torch.manual_seed(1)
    pages = 16 * batch + 8

    def half(*sizes: int) -> Any:
        return torch.randn(*sizes, device=device, dtype=torch.float16)

    rest = {
        "k": half(batch, queries, 8, 128),
        "v": half(batch, queries, 8, 128),
        "cache_seqlens": (cached - torch.arange(batch) * 17).int().to(device),
        "block_table": torch.randperm(pages)[: 16 * batch].view(batch, 16).int().to(device),
        "causal": True,
    }
    return half(batch, queries, 32, 128), half(pages, 256, 8, 128), half(pages, 256, 8, 128), rest


def _back_ends(report: Report) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"torch": attention.StandIn().attend_cached}
    paged = attention._paged_kernel()
    if paged is not None:
        found["torch_paged"] = attention.StandIn(paged).attend_cached
    flash = sys.modules.get("flash_attn")
    if flash is not None and hasattr(flash, "flash_attn_with_kvcache"):
        found["flash_attn"] = flash.flash_attn_with_kvcache
    for name in ("torch_paged", "flash_attn"):
        text = f"attention {name}: not installed, or no CUDA"
        if name not in found and text not in report.left_out:
            report.left_out.append(text)
    return found


def check_tokens(report: Report, folder: Path) -> None:
    """Compare with transformers' tokens, as recorded, for each attention and cache type."""
    cases: list[dict[str, Any]] = json.loads(VECTORS.read_text())["cases"]
    plain = tiny_model.make(folder / "tiny")
    for choice in ("torch", "torch_paged", "flash_attn"):
        _tokens(report, cases, plain, f"attention {choice}", {"attention": choice}, least=1.0)
    for cache, least in (("q8", 0.9), ("q6", 0.5), ("q4", 0.3)):
        _tokens(report, cases, plain, f"cache {cache}", {"cache_type": cache}, least=least)


def _tokens(
    report: Report,
    cases: list[dict[str, Any]],
    folder: Path,
    what: str,
    changes: dict[str, Any],
    *,
    least: float,
) -> None:
    """`least`: which share of tokens must be the recorded ones before the first other one."""
    try:
        with opened(folder, warm_up=True, **changes) as found:
            same = sum(_agreeing(found, case) for case in cases)
    except EngineLoadError as error:
        report.left_out.append(f"{what}: {error}")
        return
    share = same / sum(len(case["tokens"]) for case in cases)
    report.add("tokens", f"{what}: equal to transformers'", share, passed=share >= least)


def _agreeing(found: Opened, case: dict[str, Any]) -> int:
    prompt = random_ids(case["prompt_tokens"], case["seed"])
    tokens = run(found.engine, job(prompt, len(case["tokens"]))).token_ids
    same = 0
    for got, wanted in zip(tokens, case["tokens"], strict=False):
        if got != wanted:
            break
        same += 1
    return same


def check_gptq(report: Report, folder: Path) -> None:
    """Compare 4-bit kernels with the same weights written out, with and without CUDA graphs."""
    source = tiny_model.make(folder / "tiny")
    make_gptq(source, folder / "gptq", folder / "plain")
    if not torch.cuda.is_available():
        report.left_out.append("GPTQ kernels: they need CUDA (the two folders were made)")
        return
    wanted = _logits(folder / "plain")
    for graphs in (True, False):
        found = _logits(folder / "gptq", cuda_graphs=graphs)
        error = float((found - wanted).norm() / wanted.norm())
        what = f"GPTQ 4 bit, graphs {'on' if graphs else 'off'}: error"
        report.add("quantised", what, error, passed=error < LOGIT_ERROR)


def _logits(folder: Path, **changes: Any) -> Any:
    with opened(folder, **changes) as found, torch.inference_mode():
        cache = found.library.generator.cache
        cache.current_seq_len = 0
        ids = torch.tensor([random_ids(400, 1)])
        return found.library.model.forward(ids, cache).float().cpu()[..., : found.info.vocabulary_size]


def _milliseconds(work: Callable[[], Any], times: int = 20) -> float:
    _wait()
    started = time.perf_counter()
    for _ in range(times):
        work()
    _wait()
    return (time.perf_counter() - started) * 1000 / times


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()

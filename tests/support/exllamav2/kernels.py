"""torch versions of the CUDA kernels that an unquantised model needs.

The signatures and what is written in place are those of exllamav2 0.3.2's extension. Held to
account by `test_reference.py`: the model's tokens equal another implementation's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, out: Tensor, epsilon: float) -> None:
    """Write the normalised `x` to `out`."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    out.copy_(wide * scale * weight.float())


def rope_(
    x: Tensor, sin: Tensor, cos: Tensor, past: int, heads: int, head_dim: int, offsets: Tensor, neox: bool
) -> None:
    """Rotate queries or keys in place. `past` -1: the positions are in `offsets` alone."""
    batch = x.shape[0]
    rows = x.view(batch, -1, heads, head_dim)
    base = torch.full((batch,), max(past, 0))
    if offsets.device.type != "meta":
        given = offsets.view(-1).long()
        base = given.clamp(min=0) if past == -1 else base + given
    positions = (base[:, None] + torch.arange(rows.shape[1])).clamp(min=0)
    width = sin.shape[-1]
    sines = sin.view(-1, width)[positions].float().unsqueeze(2)
    cosines = cos.view(-1, width)[positions].float().unsqueeze(2)
    part = rows[..., :width].float()
    if neox:
        left, right = part[..., : width // 2], part[..., width // 2 :]
        s, c = sines[..., : width // 2], cosines[..., : width // 2]
        turned = torch.cat((left * c - right * s, right * c + left * s), -1)
    else:
        left, right = part[..., 0::2], part[..., 1::2]
        s, c = sines[..., 0::2], cosines[..., 0::2]
        turned = torch.stack((left * c - right * s, right * c + left * s), -1).flatten(-2)
    rows[..., :width] = turned.to(x.dtype)


def softcap_(x: Tensor, cap: float) -> None:
    """Squash in place to -cap .. cap."""
    x.copy_(torch.tanh(x.float() / cap) * cap)


def cache_rotate(cache: Tensor, order: Tensor, spare: Tensor) -> None:
    """Move pages along a cycle: each place takes the next one's page."""
    places = order.tolist()
    first = cache[places[0]].clone()
    for to, source in pairwise(places):
        cache[to].copy_(cache[source])
    cache[places[-1]].copy_(first)


KERNELS: dict[str, Callable[..., None]] = {
    "rms_norm": rms_norm,
    "rope_": rope_,
    "softcap_": softcap_,
    "cache_rotate": cache_rotate,
}

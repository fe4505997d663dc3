"""Logits that a test dictates, under the real generator, pages, sampler and filters.

Only `model.forward_chunk` is replaced: the rows it returns have one token far above all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from service.adapters.engines.exllamav2.library import Library

HIGH, LOW = 20.0, -20.0
Scripts = Mapping[tuple[int, ...], Sequence[int]]


@contextmanager
def scripted(library: Library, scripts: Scripts) -> Iterator[None]:
    """Make jobs say the tokens of their prompt's script, its last one for ever."""
    model, generator = library.model, library.generator

    def forward_chunk(
        input_ids: Any, *_: object, preprocess_only: bool = False, **__: object
    ) -> dict[str, Any]:
        if preprocess_only:
            return {}
        jobs = [job for job in generator.active_jobs if job.is_prefill_done()]  # rows come in this order
        rows, columns = input_ids.shape
        logits = torch.full((rows, columns, library.row_size), LOW, dtype=torch.half)
        for row, job in enumerate(jobs):
            script = scripts[tuple(job.sequences[0].input_ids.torch()[0].tolist())]
            for column in range(columns):
                place = min(job.new_tokens + column, len(script) - 1)
                token = script[place]
                if token == NOT_A_NUMBER:
                    logits[row, column] = float("nan")
                else:
                    logits[row, column, token] = HIGH
        return {"logits": logits}

    model.forward_chunk = forward_chunk
    try:
        yield
    finally:
        del model.forward_chunk


NOT_A_NUMBER = -1
"""In a script: a row as a broken model makes it."""

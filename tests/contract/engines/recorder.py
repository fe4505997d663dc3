"""What one job delivered, and a way to wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from service.ports.engine import Ended, Engine, EngineEvent, Job, Prefilled, Produced

WAIT_S = 120.0
"""A safety net only: no test passes or fails by how fast the machine is."""


class Recorder:
    """Keep a job's events; `deliver` is what the engine gets."""

    def __init__(self, on_event: Callable[[EngineEvent], None] | None = None) -> None:
        """`on_event` runs in the engine's thread, after the event was kept."""
        self.events: list[EngineEvent] = []
        self.late: list[EngineEvent] = []
        """Events that came after `Ended`: none may."""
        self._ready = threading.Condition()
        self._on_event = on_event

    def deliver(self, event: EngineEvent) -> None:
        """Take one event from the engine."""
        with self._ready:
            (self.late if self._over else self.events).append(event)
            self._ready.notify_all()
        if self._on_event is not None:
            self._on_event(event)

    def wait(self, enough: Callable[[list[EngineEvent]], bool]) -> None:
        """Wait until `enough` holds; fail when the job ends before."""
        with self._ready:
            came = self._ready.wait_for(lambda: enough(self.events) or self._over, WAIT_S)
            assert came, f"nothing came for {WAIT_S} s; so far {self.events[-3:]}"
            assert enough(self.events), f"the job ended first: {self.events[-3:]}"

    def wait_for_output(self, pieces: int = 1) -> None:
        """Wait for the first pieces."""
        self.wait(lambda events: sum(isinstance(e, Produced) for e in events) >= pieces)

    def ended(self) -> Ended:
        """Wait for the end and return it."""
        self.wait(lambda events: bool(events) and isinstance(events[-1], Ended))
        last = self.events[-1]
        assert isinstance(last, Ended)
        return last

    @property
    def pieces(self) -> list[Produced]:
        """Return the pieces so far."""
        return [event for event in self.events if isinstance(event, Produced)]

    @property
    def prefilled(self) -> list[Prefilled]:
        """Return the prefill reports so far."""
        return [event for event in self.events if isinstance(event, Prefilled)]

    @property
    def data(self) -> bytes:
        """Return the bytes so far."""
        return b"".join(event.piece.data for event in self.pieces)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Return the known ids so far."""
        return tuple(i for event in self.pieces for i in event.piece.token_ids)

    @property
    def token_count(self) -> int:
        """Return the counted tokens so far."""
        return sum(event.piece.token_count for event in self.pieces)

    @property
    def _over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Ended)


def run(engine: Engine, job: Job) -> Recorder:
    """Run one job to its end."""
    recorder = Recorder()
    engine.submit(job, recorder.deliver)
    recorder.ended()
    return recorder

"""Owns answers that last as long as their caller stays, streamed or whole, made from predictions that
are cancelled when it goes.

A handler is not told that its caller has gone; who awaits must watch for it, or the work goes on for
nobody. The first prediction's id is the answer's `x-request-id`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp

from edge.http.lifecycle import Lifecycle
from edge.http.middleware import caller_of
from edge.http.sse_response import FirstBytes, Refuse, SseRendering, SseResponse, SseTiming
from edge.protocol import sse
from edge.upstream.answers import Answer
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted
from edge.upstream.port import Choice, ChoiceStream, UpstreamPredictions
from edge.upstream.records import NewPrediction


@dataclass(frozen=True, slots=True)
class Whole:
    """Predictions that have all succeeded."""

    accepted: tuple[Accepted, ...]
    answers: list[Answer]

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that name the first prediction."""
        return {name.decode(): value.decode() for name, value in _names(self.accepted[0])}


class AttachedAnswers:
    """Makes answers from attached predictions."""

    def __init__(self, predictions: UpstreamPredictions, timing: SseTiming, lifecycle: Lifecycle) -> None:
        self._predictions = predictions
        self._timing = timing
        self._lifecycle = lifecycle

    def stream(
        self,
        request: Request,
        news: Sequence[NewPrediction],
        rendering: SseRendering[Choice],
        refuse: Refuse,
        keepalive: bytes = sse.COMMENT,
    ) -> ASGIApp:
        """Return the answer that streams `news`, made when it is called."""
        names: list[tuple[bytes, bytes]] = []

        @asynccontextmanager
        async def source() -> AsyncGenerator[ChoiceStream, None]:
            async with self._predictions.predict(news, caller=caller_of(request)) as stream:
                names.extend(_names(stream.accepted[0]))
                try:
                    yield stream
                except UpstreamError as error:
                    error.prediction_id = stream.accepted[0].prediction_id
                    raise

        return SseResponse(
            source(),
            rendering,
            timing=self._timing,
            lifecycle=self._lifecycle,
            refuse=refuse,
            headers=lambda: tuple(names),
            first_bytes=FirstBytes.FIRST_FRAME,
            keepalive=keepalive,
        )

    async def whole(self, request: Request, news: Sequence[NewPrediction]) -> Whole:
        """Return `news` once they have ended; the request's body must have been read.

        Raises ClientDisconnect as soon as the caller is gone, UpstreamError for whatever else prevents
        an answer. Either cancels what still runs.
        """
        accepted: tuple[Accepted, ...] = ()
        answers: list[Answer] = []
        failure: UpstreamError | ClientDisconnect | None = None
        async with anyio.create_task_group() as group:

            async def give_up_when_gone() -> None:
                nonlocal failure
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                failure = ClientDisconnect()
                group.cancel_scope.cancel()

            async def give_up_when_closing() -> None:
                nonlocal failure
                await self._lifecycle.wait_closing()
                await anyio.sleep(self._timing.closing_grace.total_seconds())
                failure = UpstreamError(Reason.DRAINING)
                group.cancel_scope.cancel()

            group.start_soon(give_up_when_gone)
            group.start_soon(give_up_when_closing)
            try:
                async with self._predictions.predict(news, caller=caller_of(request)) as stream:
                    accepted = stream.accepted
                    answers = [Answer() for _ in accepted]
                    while any(answer.end is None for answer in answers):
                        for choice in await stream.receive():
                            answers[choice.index].take(choice.event)
            except UpstreamError as error:
                error.prediction_id = accepted[0].prediction_id if accepted else ""
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return Whole(accepted, answers)


def _names(first: Accepted) -> tuple[tuple[bytes, bytes], ...]:
    identity = first.prediction_id.encode()
    return (b"x-request-id", identity), (b"request-id", identity)

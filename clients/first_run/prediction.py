"""The first prediction: created, streamed and read back over plain HTTP, as any client would."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from edge.protocol.sse import SseEvent, SseParser

POLL_S = 0.2
ANSWER_S = 10.0
SILENCE_S = 45.0
"""Three keep-alives (15 s each) without a byte: the edge is gone."""


class FirstRunError(Exception):
    """The first prediction did not work; the text says why, for the terminal."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    body: Any
    """Decoded JSON, or the text where it is none."""


def call(base: str, method: str, path: str, body: Mapping[str, Any] | None = None, token: str = "") -> Answer:
    """Send one request and read the answer. Raises OSError where nobody answers."""
    target = urlsplit(base)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=ANSWER_S)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
        try:
            return Answer(response.status, json.loads(text))
        except ValueError:
            return Answer(response.status, text.strip())
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP answer: {error!r}") from error
    finally:
        connection.close()


def wait_until_ready(base: str, stopping: threading.Event, still: Callable[[str], None]) -> bool:
    """Poll `/readyz` until it answers 200; False when `stopping` is set first.

    `still` is told after each poll what is missing; nothing while nobody answers.
    """
    while not stopping.is_set():
        try:
            answer = call(base, "GET", "/readyz")
        except OSError:
            still("")
        else:
            if answer.status == 200:
                return True
            still(reason(answer))
        stopping.wait(POLL_S)
    return False


def reason(answer: Answer) -> str:
    """Return what an answer says for people: a problem's detail, or its first line."""
    if isinstance(answer.body, dict):
        said = answer.body.get("detail") or answer.body.get("title") or answer.body.get("status")
        if said:
            return str(said)
    return str(answer.body).splitlines()[0] if answer.body else f"HTTP {answer.status}"


def create(base: str, model: str, prompt_input: Mapping[str, Any], token: str = "") -> dict[str, Any]:
    """Create a prediction and return it."""
    answer = call(base, "POST", f"/v1/models/{model}/predictions", {"input": prompt_input}, token)
    if answer.status != 201 or not isinstance(answer.body, dict):
        raise FirstRunError(f"creating the prediction was answered with {answer.status}: {reason(answer)}")
    return answer.body


def events(url: str) -> Iterator[SseEvent]:
    """Yield the events of a stream URL until its `done`. Raises FirstRunError if it breaks off."""
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=SILENCE_S)
    parser = SseParser()
    try:
        path = target.path + (f"?{target.query}" if target.query else "")
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        response = connection.getresponse()
        if response.status != 200:
            raise FirstRunError(f"the stream was answered with {response.status}")
        while received := response.read1(65536):
            for event in parser.feed(received):
                yield event
                if event.event == "done":
                    return
        raise FirstRunError("the stream ended without its `done` event")
    except (OSError, http.client.HTTPException) as error:
        raise FirstRunError(f"the stream broke off: {error}") from error
    finally:
        connection.close()


def output(url: str) -> Iterator[str]:
    """Yield the text of a stream URL as it comes. Raises FirstRunError unless it ends well."""
    failure = ""
    for event in events(url):
        if event.event == "output":
            yield event.data
        elif event.event == "error":
            failure = json.loads(event.data).get("detail", event.data)
        elif event.event == "done" and (why := json.loads(event.data).get("reason")):
            raise FirstRunError(failure or f"the prediction ended: {why}")

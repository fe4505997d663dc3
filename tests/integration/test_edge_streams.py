"""SSE over real sockets: bytes, resume, mending, silence, readers that leave or stall, shutdown."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import grpc
import httpx
import pytest

from edge.protocol.sse import SseEvent, SseParser
from protos.tailrace.v1 import prediction_pb2
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, FakePrediction, FakeService, Fault, serve_fake

LIMIT_S = 20
TINY = timedelta(milliseconds=20)
LONG = timedelta(minutes=5)
BODY = {"version": MODEL, "input": {"prompt": "x"}}


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


async def start(edge: RunningEdge, service: FakeService) -> tuple[str, FakePrediction]:
    """Create a prediction; return its stream's URL and what drives it."""
    made = (await edge.client.post("/v1/predictions", json=BODY)).json()
    return made["urls"]["stream"], service.predictions[made["id"]]


async def read_all(edge: RunningEdge, url: str, last_event_id: str | None = None) -> list[SseEvent]:
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    answer = await edge.client.get(url, headers=headers)
    assert answer.status_code == 200
    return SseParser().feed(answer.content)


def text_of(events: list[SseEvent]) -> str:
    return "".join(event.data for event in events if event.event == "output")


class Reader:
    """Reads one stream as far as the test asks."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.raw = b""
        self.parser = SseParser()
        self.events: list[SseEvent] = []
        self._chunks = answer.aiter_raw()

    async def until(self, count: int) -> list[SseEvent]:
        while len(self.events) < count:
            await self._more()
        return self.events

    async def until_bytes(self, wanted: bytes) -> None:
        while wanted not in self.raw:
            await self._more()

    async def to_end(self) -> bytes:
        async for chunk in self._chunks:
            self._take(chunk)
        return self.raw

    async def _more(self) -> None:
        self._take(await anext(self._chunks))

    def _take(self, chunk: bytes) -> None:
        self.raw += chunk
        self.events += self.parser.feed(chunk)


@asynccontextmanager
async def reading(edge: RunningEdge, url: str, **headers: str) -> AsyncIterator[Reader]:
    async with edge.client.stream("GET", url, headers=headers) as answer:
        yield Reader(answer)


async def test_the_bytes_on_the_wire() -> None:
    service = FakeService(texts=["Hello", " wor\nld", "\n"])
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        answer = await edge.client.get(url, headers={"accept-encoding": "gzip"})
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert {"no-cache", "no-transform"} <= set(answer.headers["cache-control"].split(", "))
        assert answer.headers["x-accel-buffering"] == "no" and "content-encoding" not in answer.headers
        assert answer.headers["access-control-allow-origin"] == "*"
        assert b"\r" not in answer.content and answer.content.startswith(b":\nevent: output\nid: ")
        events = SseParser().feed(answer.content)
        assert text_of(events) == "Hello wor\nld\n"
        assert (events[-1].event, events[-1].data) == ("done", "{}")
        assert answer.content.endswith(b"\n\n:408: 408 Request Timeout\n\n")


@pytest.mark.parametrize(
    "texts",
    [
        ["a", "\n", "\n\n", "b"],
        ["x\u2028y", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"],
        ["한글", "🙂", " a", "  b"],
        ["see ", "https://a.b/c", " ", "data:x", "h", "ttps://y"],
        [],
        [""],
    ],
)
@pytest.mark.parametrize("merge", [1, 100])
async def test_the_text_of_the_stream_is_the_text_of_get(texts: list[str], merge: int) -> None:
    service = FakeService(texts=texts, merge=merge)
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        events = await read_all(edge, url)
        got = (await edge.client.get(f"/v1/predictions/{prediction.id}")).json()
        assert text_of(events) == "".join(got["output"]) == "".join(texts)
        assert [event.event for event in events if event.event != "output"] == ["done"]


async def test_the_first_bytes_come_before_the_first_token() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        async with reading(edge, url) as reader:
            await reader.until_bytes(b":\n")


async def test_each_event_is_sent_when_it_happens() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        async with reading(edge, url) as reader:
            for number, text in enumerate("abc", start=1):
                prediction.emit(text)
                assert (await reader.until(number))[-1].data == text
            prediction.finish()
            assert (await reader.until(4))[-1].event == "done"


async def test_silence_is_filled_with_comments_without_blank_lines() -> None:
    service = FakeService()
    async with edge_on(service, keepalive=TINY) as edge:
        url, prediction = await start(edge, service)
        async with reading(edge, url) as reader:
            await reader.until_bytes(b":\n:\n:\n")
            prediction.emit("a")
            await reader.until_bytes(b"data: a\n\n:\n:\n")
            prediction.finish()
            assert text_of(await reader.until(2)) == "a"


@pytest.mark.parametrize("by_query", [False, True])
async def test_every_resume_gives_exactly_the_rest(by_query: bool) -> None:
    service = FakeService(texts=["a", "https://x", "b", "c"], merge=2)
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        events = await read_all(edge, url)
        for cut, event in enumerate(events[:-1]):
            if by_query:
                rest = await read_all(edge, f"{url}?last_event_id={event.id}")
            else:
                rest = await read_all(edge, url, event.id)
            assert text_of(events[: cut + 1] + rest) == "ahttps://xbc" and rest[-1] == events[-1]


async def test_after_the_last_id_there_is_nothing() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        last = (await read_all(edge, url))[-1].id
        beyond = f"{last.split(':')[0]}:9999"
        for position in (last, beyond):
            answer = await edge.client.get(url, headers={"last-event-id": position})
            assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.parametrize("position", ["zzz", "-1", "1:3", "~!;,", "9" * 5000, "1796064428:99"])
async def test_an_id_that_is_not_ours_streams_from_the_start(position: str) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        prediction.emit("a")
        async with reading(edge, url, **{"last-event-id": position}) as reader:
            assert (await reader.until(1))[0].data == "a"


async def test_ids_are_the_same_for_all_readers_and_edges() -> None:
    service = FakeService()
    async with edge_on(service) as edge, run_edge(edge_settings(service.address)) as other:
        url, prediction = await start(edge, service)
        path = url.removeprefix(edge.url)
        async with reading(edge, path) as early:
            prediction.emit("a", "b")
            await early.until(2)
            async with reading(other, path) as late:
                prediction.emit("c")
                prediction.finish()
                assert await late.until(4) == await early.until(4)
        rest = await read_all(other, path, early.events[1].id)
        assert rest == early.events[2:]


async def test_a_dropped_reader_comes_back_and_misses_nothing() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        prediction.emit(*"abcde")
        async with reading(edge, url) as reader:
            await reader.until(5)
        await service.wait_readers(0)
        prediction.emit(*"fghij")
        prediction.finish()
        rest = await read_all(edge, url, reader.parser.last_event_id)
        assert text_of(reader.events + rest) == "abcdefghij"


async def test_a_reader_that_leaves_frees_the_service_and_cancels_nothing() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        async with reading(edge, url) as reader:
            await reader.until_bytes(b":\n")
            await service.wait_readers(1)
        await service.wait_readers(0)
        assert not service.requests("CancelPrediction")
        assert prediction.status == prediction_pb2.STATUS_STARTING
        while not any(line.get("method") == "GET" for line in edge.log):
            await anyio.lowlevel.checkpoint()
        assert all(line["event"] == "http_request" for line in edge.log)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(grpc.StatusCode.UNAVAILABLE),
        Fault(grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        Fault(grpc.StatusCode.ABORTED, "READER_TOO_SLOW"),
        Fault(grpc.StatusCode.ABORTED),
        Fault(grpc.StatusCode.CANCELLED),
        Fault(grpc.StatusCode.DEADLINE_EXCEEDED),
        Fault(grpc.StatusCode.OK),
    ],
    ids=str,
)
@pytest.mark.parametrize("after_events", [0, 1, 2, 3, 5])
async def test_a_broken_stream_is_mended_unseen(fault: Fault, after_events: int) -> None:
    service = FakeService(texts=["a", "b", "c"])
    broken = Fault(fault.code, fault.reason, after_events=after_events)
    service.faults["StreamPrediction"].extend([broken, Fault(grpc.StatusCode.UNAVAILABLE)])
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        events = await read_all(edge, url)
        assert [event.event for event in events] == ["output", "output", "output", "done"]
        assert text_of(events) == "abc"
        assert len({event.id for event in events}) == 4


async def test_our_own_broken_call_may_still_count_as_a_reader() -> None:
    service = FakeService(texts=["a", "b"])
    full = Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_READERS")
    service.faults["StreamPrediction"].extend([Fault(grpc.StatusCode.UNAVAILABLE, after_events=2), full])
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        assert text_of(await read_all(edge, url)) == "ab"


async def test_a_restart_of_the_service_is_a_pause() -> None:
    service = FakeService()
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address)) as edge:
            url, prediction = await start(edge, service)
            prediction.emit("a")
            async with reading(edge, url) as reader:
                await reader.until(1)
                service.faults["StreamPrediction"].extend([Fault(grpc.StatusCode.UNAVAILABLE)] * 3)
                prediction.emit("b")
                prediction.finish()
                assert text_of(await reader.until(3)) == "ab"


async def test_a_stream_that_cannot_be_mended_ends_with_an_error_and_can_be_resumed() -> None:
    service = FakeService()
    async with edge_on(service, retry_budget=TINY) as edge:
        url, prediction = await start(edge, service)
        prediction.emit("a", "b")
        faults = [Fault(grpc.StatusCode.UNAVAILABLE)] * 20
        service.faults["StreamPrediction"].extend(
            [Fault(grpc.StatusCode.UNAVAILABLE, after_events=3), *faults]
        )
        events = await read_all(edge, url)
        assert [event.event for event in events] == ["output", "error"]
        assert events[1].id == events[0].id
        service.faults["StreamPrediction"].clear()
        prediction.finish()
        assert text_of(events[:1] + await read_all(edge, url, events[1].id)) == "ab"


async def test_a_hole_in_the_log_is_never_shown_as_text() -> None:
    service = FakeService(texts=["a", "b", "c"])
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        del prediction.log[3]
        events = await read_all(edge, url)
        assert [event.event for event in events] == ["output", "error"]


async def test_a_failed_and_a_canceled_run_end_with_their_reason() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        prediction.emit("a")
        prediction.finish(prediction_pb2.STATUS_FAILED, "broke")
        assert [(e.event, e.data) for e in await read_all(edge, url)] == [
            ("output", "a"),
            ("error", '{"detail":"broke"}'),
            ("done", '{"reason":"error"}'),
        ]
        url, prediction = await start(edge, service)
        async with reading(edge, url) as reader:
            await reader.until_bytes(b":\n")
            await edge.client.post(f"/v1/predictions/{prediction.id}/cancel")
            (done,) = await reader.until(1)
            assert (done.event, done.data) == ("done", '{"reason":"canceled"}')


@pytest.mark.parametrize("position", [None, "1796064428:3"])
async def test_a_stream_whose_data_is_gone_says_only_its_last_words(position: str | None) -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        headers = {} if position is None else {"last-event-id": position}
        prediction.data_removed = True
        removed = await edge.client.get(url, headers=headers)
        service.predictions.clear()
        forgotten = await edge.client.get(url, headers=headers)
        for answer in (removed, forgotten):
            assert (answer.status_code, answer.content) == (200, b":408: 408 Request Timeout\n\n")


async def test_the_connection_stays_open_after_done() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service, hold_after_done=LONG, keepalive=TINY) as edge:
        url, _ = await start(edge, service)
        async with reading(edge, url) as reader:
            assert (await reader.until(2))[-1].event == "done"
            await service.wait_readers(0)
            with anyio.move_on_after(0.1) as silence:
                await reader.until_bytes(b"408")
            assert silence.cancelled_caught and reader.raw.endswith(b"data: {}\n\n")


async def test_a_token_opens_its_own_stream_only() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        for changed in (url[:-1], url + "a", url[:-1] + ("a" if url[-1] != "a" else "b"), url.upper()):
            answer = await edge.client.get("/v1/streams/" + changed.rsplit("/", 1)[1])
            assert answer.status_code == 404
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["access-control-allow-origin"] == "*"
        assert len(service.requests("StreamPrediction")) == 0


async def test_an_early_error_has_a_status() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        service.faults["StreamPrediction"].append(
            Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_READERS", retry_after=timedelta(seconds=2))
        )
        answer = await edge.client.get(url)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_browsers_may_resume_from_another_origin() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        url, _ = await start(edge, service)
        headers = {"origin": "https://app", "access-control-request-method": "GET"}
        answer = await edge.client.options(url, headers=headers)
        assert answer.status_code == 204 and "last-event-id" in answer.headers["access-control-allow-headers"]
        head = await edge.client.head(url)
        assert head.status_code == 200 and head.headers["content-type"].startswith("text/event-stream")


async def test_a_reader_that_takes_nothing_is_dropped_and_can_resume() -> None:
    pieces = [f"{number:07d}".ljust(16_384, ".") for number in range(1500)]
    service = FakeService()
    async with edge_on(service, send_deadline=timedelta(milliseconds=200)) as edge:
        url, prediction = await start(edge, service)
        prediction.emit(*pieces)
        prediction.finish()
        path = url.removeprefix(edge.url)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await anyio.to_thread.run_sync(connection.connect, ("127.0.0.1", edge.port))
        await anyio.to_thread.run_sync(connection.sendall, f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        await service.wait_readers(1)
        await service.wait_readers(0)
        assert service.sent_events < len(pieces)
        while not any(line.get("method") == "GET" for line in edge.log):
            await anyio.lowlevel.checkpoint()
        received = await anyio.to_thread.run_sync(_drain, connection)
        parser = SseParser()
        head = parser.feed(_dechunked(received.partition(b"\r\n\r\n")[2]))
        rest = await read_all(edge, url, parser.last_event_id)
        assert text_of(head + rest) == "".join(pieces)


def _drain(connection: socket.socket) -> bytes:
    received = bytearray()
    connection.settimeout(10)
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    connection.close()
    return bytes(received)


def _dechunked(raw: bytes) -> bytes:
    """Return the content of as many whole chunks as there are, and of what there is of the last."""
    content = b""
    while (head := raw.partition(b"\r\n"))[1]:
        size = int(head[0], 16)
        content += head[2][:size]
        raw = head[2][size + 2 :]
    return content


async def test_at_shutdown_streams_end_with_a_retry_hint() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        url, prediction = await start(edge, service)
        prediction.emit("a")
        async with reading(edge, url) as reader:
            await reader.until(1)
            edge.lifecycle.begin_drain()
            raw = await reader.to_end()
            tail = raw.partition(b"data: a\n\n")[2]
            assert tail.startswith(b"retry: ") and 100 <= int(tail.split()[1]) <= 1500
        await service.wait_readers(0)
        assert not service.requests("CancelPrediction")


async def test_many_streams_at_once_keep_to_themselves() -> None:
    service = FakeService()
    async with edge_on(service) as edge, anyio.create_task_group() as group:
        results: dict[int, str] = {}

        async def one(number: int) -> None:
            url, prediction = await start(edge, service)
            async with reading(edge, url) as reader:
                for index in range(10):
                    prediction.emit(f"{number}.{index} ")
                    await reader.until(index + 1)
                prediction.finish()
                results[number] = text_of(await reader.until(11))

        for number in range(20):
            group.start_soon(one, number)
    expected = {n: "".join(f"{n}.{i} " for i in range(10)) for n in range(20)}
    assert results == expected

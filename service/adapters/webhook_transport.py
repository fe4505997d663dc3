"""The webhook transport: HTTP/1.1 by httpcore, to judged addresses only.

httpcore is given host, port and path in parts, so `webhook_target` is the only parser of a caller's
URL; it reads no environment, no proxy and no .netrc, follows no redirect and keeps no cookie. Our
network backend resolves a name once, judges every address and connects to one of these; TLS (SNI and
certificate) and `Host` go by the name. A connection serves one attempt: no pool outlives a judgement.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import anyio
import certifi
import httpcore

from service.domain.webhook_delivery import Answer
from service.domain.webhook_target import (
    BadTarget,
    TargetPolicy,
    WebhookTarget,
    allowed_addresses,
    read_target,
)

ATTEMPT_LIMIT = timedelta(seconds=15)
"""For a whole attempt: a receiver that drips its answer outlasts any limit between two reads.
Standard Webhooks asks for 15 to 30 s."""
MAX_ANSWER_BYTES = 64 * 1024
"""Of the answer's body, all of it dropped: what is beyond is not read."""

BODY_LIMIT = timedelta(seconds=1)
"""For the answer's body: the status is known by then, so it changes nothing."""

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a name. Raises OSError when there is none."""


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system's resolver."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class HttpTransport:
    """A `WebhookTransport`. Any number of tasks may use it."""

    def __init__(
        self,
        policy: TargetPolicy,
        *,
        resolver: Resolver = resolve,
        limit: timedelta = ATTEMPT_LIMIT,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._sockets: httpcore.AsyncNetworkBackend = httpcore.AnyIOBackend()
        self._limit_s = limit.total_seconds()
        self._ssl_context = ssl_context or _ssl_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """See `WebhookTransport`."""
        try:
            target = read_target(url, self._policy)
        except BadTarget as error:
            return Answer(error=f"the URL {error}")
        try:
            with anyio.fail_after(self._limit_s):
                return await self._attempt(target, headers, body)
        except TimeoutError:
            return Answer(error=f"no answer within {self._limit_s:g} s")
        except BadTarget as error:
            return Answer(error=str(error))
        except _NoAddress:
            return Answer(error="the host's name could not be resolved")
        except httpcore.ConnectError as error:
            return Answer(error=_tls_or_connect(error))
        except httpcore.TimeoutException:
            return Answer(error="the connection timed out")
        except (httpcore.NetworkError, httpcore.ProtocolError):
            return Answer(error="the connection broke, or the answer was no HTTP/1.1")

    async def _attempt(self, target: WebhookTarget, headers: Mapping[str, str], body: bytes) -> Answer:
        backend = JudgingBackend(self._policy, self._resolver, self._sockets)
        origin = httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port)
        connection = httpcore.AsyncHTTPConnection(
            origin, ssl_context=self._ssl_context, network_backend=backend
        )
        lines = [("host", target.authority), ("connection", "close"), ("content-length", str(len(body)))]
        request = httpcore.Request(
            "POST",
            httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
            headers=[*lines, *headers.items()],
            content=body,
        )
        try:
            answer = await connection.handle_async_request(request)
            with anyio.move_on_after(BODY_LIMIT.total_seconds()):
                await _drop(answer)
            return Answer(answer.status, retry_after=_retry_after(answer))
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await connection.aclose()
                await backend.aclose()


class _NoAddress(Exception):
    """The name has no address, or the resolver does not answer."""


class JudgingBackend(httpcore.AsyncNetworkBackend):
    """Connects to a name's addresses only when each of them is allowed. Serves one attempt.

    Closes what it opened: httpcore forgets a connection whose TLS handshake is cancelled.
    """

    def __init__(
        self, policy: TargetPolicy, resolver: Resolver, sockets: httpcore.AsyncNetworkBackend
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._sockets = sockets
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def aclose(self) -> None:
        """Close every connection."""
        for stream in self._opened:
            await stream.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve once, judge every address, connect to the first that answers."""
        addresses = allowed_addresses(await self._addresses(host, port), self._policy)
        failure: httpcore.ConnectError | httpcore.ConnectTimeout | None = None
        for address in addresses:
            try:
                stream = await self._sockets.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                self._opened.append(stream)
                return stream
        assert failure is not None, "there is an address, and it failed"
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: no target is a file."""
        raise BadTarget("a webhook is called over TCP")

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await anyio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        except OSError:
            pass
        else:
            return [host]
        try:
            return await self._resolver(host, port)
        except (OSError, UnicodeError) as error:
            raise _NoAddress from error


async def _drop(answer: httpcore.Response) -> None:
    """Read the body to its end or its bound, and keep nothing."""
    read_bytes = 0
    async for chunk in answer.aiter_stream():
        read_bytes += len(chunk)
        if read_bytes > MAX_ANSWER_BYTES:
            return


def _retry_after(answer: httpcore.Response) -> timedelta | None:
    """Return what `Retry-After` asks (RFC 9110 §10.2.3), in either form; None for neither."""
    for name, value in answer.headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if text.isascii() and text.isdecimal() and len(text) < 10:
            return timedelta(seconds=int(text))
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        return max(timedelta(0), moment - datetime.now(UTC)) if moment.tzinfo else None
    return None


def _tls_or_connect(error: httpcore.ConnectError) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "the receiver's certificate could not be verified"
    if isinstance(cause, ssl.SSLError):
        return "no TLS connection could be made"
    return "the connection was refused or could not be made"


def _ssl_context() -> ssl.SSLContext:
    """Return a verifying context: the system's certificates, and certifi's where it has none."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context

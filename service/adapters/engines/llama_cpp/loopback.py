"""The library's own HTTP listener on the loopback interface, as a client of ours sees it.

Owns connections and server-sent lines, nothing of what they mean. The object that runs the model
offers completion calls in-process too, but only in a form without token ids, and no tokenizer.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Generator, Mapping
from urllib.parse import urlsplit

_TIMEOUT_S = 120.0
"""For answers that need no generation. A stream waits as long as the engine process lives."""
_PREFIX = b"data: "


class LoopbackError(Exception):
    """The listener refused a call or went away."""

    def __init__(self, message: str, *, refused: bool) -> None:
        """`refused` when the listener answered and the request was at fault."""
        super().__init__(message)
        self.refused = refused


class Stream:
    """One streaming call, which any thread may abort."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False

    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted

    def abort(self) -> None:
        """End the call, also before it began; the reader's loop ends."""
        with self._lock:
            self._aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def attach(self, opened: socket.socket) -> bool:
        """Take the connection; return False if the call was aborted before."""
        with self._lock:
            self._socket = opened
            return not self._aborted

    def detach(self) -> None:
        """Forget the connection, which is about to be closed."""
        with self._lock:
            self._socket = None


class Loopback:
    """Calls to one listener. Thread-safe; a call is a connection."""

    def __init__(self, address: str, key: str) -> None:
        """`address` is the listener's URL, `key` what it was told to ask for."""
        url = urlsplit(address)
        self._host, self._port = url.hostname or "127.0.0.1", url.port or 80
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Connection": "close",
        }

    def get(self, path: str) -> object:
        """Return the answer's JSON. Raises LoopbackError."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> object:
        """Return the answer's JSON. Raises LoopbackError."""
        return self._call("POST", path, json.dumps(body).encode())

    def stream(self, path: str, body: Mapping[str, object], stream: Stream) -> Generator[object]:
        """Yield each event's JSON until the answer ends or `stream` is aborted.

        Raises LoopbackError for a refusal or a lost connection, not for an abort. Close the
        iterator, or run it to its end.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)
            if not stream.attach(connection.sock):
                return
            connection.request("POST", path, json.dumps(body).encode(), self._headers)
            with connection.getresponse() as answer:
                if answer.status != http.client.OK:
                    raise _refusal(answer)
                for line in answer:
                    if line.startswith(_PREFIX):
                        yield json.loads(line[len(_PREFIX) :])
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not stream.aborted():
                raise LoopbackError(f"the engine's connection broke: {error!r}", refused=False) from error
        finally:
            stream.detach()
            connection.close()

    def _call(self, method: str, path: str, body: bytes | None) -> object:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, body, self._headers)
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise _refusal(answer)
            return json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LoopbackError(f"the engine did not answer: {error!r}", refused=False) from error
        finally:
            connection.close()


def _refusal(answer: http.client.HTTPResponse) -> LoopbackError:
    text = answer.read(65536).decode("utf-8", "replace")
    client_fault = 400 <= answer.status < 500 and answer.status not in {401, 404}
    return LoopbackError(f"{answer.status} {text}", refused=client_fault)

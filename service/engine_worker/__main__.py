"""Run the worker on the inherited socket `--fd N` until the service closes it, goes, or says so.

Ctrl-C is the service's to decide on: SIGINT is ignored here. SIGTERM ends it like a close. Every way
out is `os._exit`: a native engine's destructors must not be able to hold a process that is done.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
from types import FrameType

from service.engine_frames import FrameError, FrameSplitter, unpack_command
from service.engine_worker.outbox import Outbox
from service.engine_worker.prompts import PromptThreads, PromptThreadsLost
from service.engine_worker.worker import Worker

_PR_SET_PDEATHSIG = 1
_TICK_S = 1.0
_READ_BYTES = 256 * 1024
_SWITCH_INTERVAL_S = 0.002
"""Long enough for 64 deltas to share a frame, short enough for a first token behind a busy engine thread."""


class _Terminated(BaseException):
    """SIGTERM came."""


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _die_with_the_service() -> None:
    """Linux: be killed when the service's main thread goes, even while native code holds the GIL.

    Elsewhere the end of the socket says it, as soon as this process listens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_any_thread() -> None:
    """Let an exception that ends a thread end the process: the service then starts it afresh.

    A worker without its outbox or its engine's thread would only look alive.
    """
    report = threading.excepthook

    def end(arguments: threading.ExceptHookArgs) -> None:
        report(arguments)
        sys.stderr.flush()
        os._exit(1)

    threading.excepthook = end


def _serve(sock: socket.socket, worker: Worker) -> None:
    splitter = FrameSplitter()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        if poll.poll(_TICK_S * 1000):
            data = sock.recv(_READ_BYTES)
            if not data:
                os._exit(0)  # the service is gone: nobody is left to free anything for
            for payload in splitter.feed(data):
                if not worker.handle(unpack_command(payload)):
                    return
        worker.tick()


def _send_to(sock: socket.socket, frame: bytearray) -> None:
    try:
        sock.sendall(frame)
    except OSError:
        os._exit(0)


def main() -> None:
    """Run to the end of the process."""
    parser = argparse.ArgumentParser(prog="service.engine_worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_sigterm)
    faulthandler.enable()
    end_with_any_thread()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    _die_with_the_service()
    sock = socket.socket(fileno=arguments.fd)
    sock.setblocking(True)
    outbox = Outbox(lambda frame: _send_to(sock, frame))
    outbox.start()
    worker = Worker(outbox, PromptThreads())
    code = 0
    try:
        _serve(sock, worker)
    except _Terminated:
        pass
    except (FrameError, PromptThreadsLost) as error:
        sys.stderr.write(f"the worker gives up: {error}\n")
        code = 1
    except OSError:
        os._exit(0)
    worker.close()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

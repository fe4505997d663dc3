"""Free TCP ports on the loopback address."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that nothing listens on at the moment.

    For processes that must come back on the same port after they were killed; where that does not
    matter, bind port 0.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""Runs an edge: `python -m edge`."""

import os
import sys

# gRPC's newer client I/O hands each message through two more threads. The older one, which it falls
# back to, costs the edge a quarter less processor time per token (benchmarks/README.md).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")  # noqa: TID251

from edge.main import main

if __name__ == "__main__":
    sys.exit(main())

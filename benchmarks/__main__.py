"""`python -m benchmarks`: see `benchmarks.main`."""

import os
import sys

# The benchmarks start processes while gRPC is in use; its fork handlers would only complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from benchmarks.main import main

sys.exit(main())

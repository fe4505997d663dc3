"""`python -m service`: run the service, or print its settings with `--print-config`."""

import os

# Engines are started as fresh interpreters by exec: gRPC's fork handlers have nothing to do, and say
# so on every start unless they are off before gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # noqa: TID251

from service.main import main

main()

"""Streams one prediction over gRPC: python clients/python/example.py [ADDRESS [MODEL [PROMPT]]].

ADDRESS may also come from TAILRACE_ADDRESS; the default is where `make run` serves.
"""

from __future__ import annotations

import os
import sys

from protos.tailrace.v1 import prediction_pb2
from tailrace import Client, TailraceError


def main(arguments: list[str]) -> int:
    """Print the text as it comes, and at the end what it took."""
    address = os.getenv("TAILRACE_ADDRESS", "127.0.0.1:50051")
    defaults = [address, "local/smollm2-135m-instruct", "Tell me about rivers."]
    address, model, prompt = arguments + defaults[len(arguments) :]
    chat = [{"role": "user", "content": prompt}]
    try:
        with Client(address) as client, client.predict(model, chat=chat, max_tokens=64) as stream:
            for event in stream:
                print(event.output.text, end="", flush=True)
    except TailraceError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    end = event.completed
    status, why = prediction_pb2.Status.Name(end.status), prediction_pb2.FinishReason.Name(end.finish_reason)
    print(f"\n\n{stream.prediction_id}: {status}, {why}, {end.usage.output_tokens} tokens")
    return 0 if end.status == prediction_pb2.STATUS_SUCCEEDED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

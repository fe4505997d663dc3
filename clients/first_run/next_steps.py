"""What to try after the first prediction, with the ports of this run."""

from __future__ import annotations

from clients.first_run.plan import Plan

TEMPLATE = """
Try next, in another terminal:

  1. Create a prediction, then watch it come (its text, and at the end `event: done`):

     STREAM=$(curl -s {base}/v1/models/{model}/predictions{auth} -H 'Content-Type: application/json' \\
       -d '{{"input": {{"prompt": "Write a haiku about rain."}}}}' \\
       | {python} -c 'import json, sys; print(json.load(sys.stdin)["urls"]["stream"])')
     curl -N -H 'Accept: text/event-stream' "$STREAM"

  2. Wait for the whole answer in one request, at most 30 s:

     curl -s {base}/v1/models/{model}/predictions{auth} -H 'Content-Type: application/json' \\
       -H 'Prefer: wait=30' -d '{{"input": {{"prompt": "What is a tailrace?", "max_tokens": 60}}}}'

  3. Skip HTTP and stream over gRPC:

     {python} clients/python/example.py {service} {model} 'Tell me about rivers.'

Or open {base} in a browser: a playground, and a page for every prediction.

Serving at {base} until Ctrl-C."""


def next_steps(plan: Plan) -> str:
    """Return three commands to copy."""
    return TEMPLATE.format(
        auth=' -H "Authorization: Bearer $REPLICATE_API_TOKEN"' if plan.token else "",
        base=plan.base,
        model=plan.model,
        service=plan.service_address,
        python=".venv/bin/python",
    )

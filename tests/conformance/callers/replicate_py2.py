"""Cases with Replicate's generated Python client (2.0 beta), unchanged. Runs in `.venv-callers`.

Reads one JSON object a line, {case, base_url, argument}, and writes one, {result | error, calls}.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import replicate
from replicate import Replicate

CALLS: list[dict[str, Any]] = []
POLL_S = 0.05


def note(answer: httpx.Response) -> None:
    request = answer.request
    CALLS.append(
        {
            "method": request.method,
            "path": request.url.path,
            "status": answer.status_code,
            "retry": request.headers.get("x-stainless-retry-count"),
            "prefer": request.headers.get("prefer"),
            "applied": answer.headers.get("preference-applied"),
        }
    )


def client(base_url: str, **options: Any) -> Replicate:
    http = httpx.Client(event_hooks={"response": [note]}, trust_env=False, timeout=options.get("timeout", 60))
    made = Replicate(base_url=base_url, http_client=http, _strict_response_validation=True, **options)
    made.poll_interval = POLL_S
    return made


def run(base_url: str, model: str, prompt: str, wait: Any) -> Any:
    return "".join(client(base_url).run(model, input={"prompt": prompt}, wait=wait))


def create(base_url: str, model: str, prompt: str, timeout: float = 60, **options: Any) -> Any:
    owner, name = model.split("/")
    made = client(base_url, timeout=timeout).models.predictions.create(
        model_owner=owner, model_name=name, input={"prompt": prompt}, **options
    )
    return made.to_dict(mode="json")


def use(base_url: str, model: str, prompt: str) -> Any:
    function = replicate.use(model)
    function._client_class = partial(client, base_url)
    return function(prompt=prompt)


def use_streaming(base_url: str, model: str, prompt: str) -> Any:
    function = replicate.use(model, streaming=True)
    function._client_class = partial(client, base_url)
    pieces, moments = [], []
    for piece in function(prompt=prompt):
        pieces.append(piece)
        moments.append(time.time())
    return {"pieces": pieces, "spread_s": moments[-1] - moments[0]}


def get(base_url: str, ids: list[str]) -> Any:
    caller = client(base_url)
    return [caller.predictions.get(prediction_id=found).to_dict(mode="json") for found in ids]


def list_all(base_url: str) -> Any:
    return [prediction.id for prediction in client(base_url).predictions.list()]


def catalog(base_url: str, model: str, deployment: str) -> Any:
    """Read everything there is to read; strict validation raises where a type is wrong."""
    owner, name = model.split("/")
    of_model = {"model_owner": owner, "model_name": name}
    d_owner, d_name = deployment.split("/")
    caller = client(base_url)
    found = caller.models.get(**of_model)
    version = found.latest_version
    made = caller.deployments.predictions.create(
        deployment_owner=d_owner, deployment_name=d_name, input={"prompt": "script:{}"}, prefer="wait=5"
    )
    return {
        "models": [each.name for each in caller.models.list()],
        "version": caller.models.versions.get(version_id=version.id, **of_model).id == version.id,
        "readme": caller.models.readme.get(**of_model)[:2],
        "search": [each.model.name for each in caller.search(query=name).models],
        "deployments": [each.name for each in caller.deployments.list()],
        "deployment": caller.deployments.get(deployment_owner=d_owner, deployment_name=d_name).name,
        "made_on": made.deployment,
        "account": caller.account.get().username,
        "hardware": [each.sku for each in caller.hardware.list()],
        "collections": len(list(caller.collections.list())),
        "trainings": len(list(caller.trainings.list())),
    }


def upload(base_url: str) -> Any:
    return client(base_url).files.create(content=b"x").to_dict(mode="json")


CASES: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (run, create, use, use_streaming, get, list_all, catalog, upload)
}


def main() -> None:
    """Serve cases until standard input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        CALLS.clear()
        report: dict[str, Any] = {"calls": CALLS}
        try:
            report["result"] = CASES[asked["case"]](asked["base_url"], **asked["argument"])
        except Exception as error:  # noqa: BLE001 - a case's error is its result
            status = getattr(error, "status_code", None)
            report["error"] = {"name": type(error).__name__, "message": str(error), "status": status}
            report["error"]["body"] = getattr(error, "body", None)
        print(json.dumps(report, default=str), flush=True)


main()

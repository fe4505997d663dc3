"""Owns what there is to run, in Replicate's shapes: models, their one version, deployments.

A served model has one version, what it serves now. Its id is 64 hexadecimal digits: the SHA-256 of
the weights where they are one file, else one made of the model's name, so that it stays the same on
every edge and over restarts. Times of creation are not known: see `UNKNOWN_MOMENT`.
"""

import hashlib
import re
from typing import Any, Final
from urllib.parse import quote

from pydantic import JsonValue

from edge.protocol.public_url import PublicBase
from edge.replicate import objects
from edge.replicate.deployments import Deployment
from edge.replicate.schemas import PredictionInput
from edge.upstream.records import ModelRecord

HIDDEN_VERSION: Final = "hidden"
"""What a prediction's `version` says; wherever a version is given it means the model's own."""

COG_VERSION: Final = "0.9.0"
"""From 0.3.9 on the Python client reads an iterator `Output` as one."""

ACCOUNT: Final = objects.Account()
HARDWARE: Final = objects.Hardware(sku="local", name="The machine that this service runs on")

OUTPUT: Final[dict[str, JsonValue]] = {
    "type": "array",
    "items": {"type": "string"},
    "title": "Output",
    "x-cog-array-type": "iterator",
    "x-cog-array-display": "concatenate",
}
"""Pieces of text, to be joined; clients know it by these very members."""

_VERSION_ID: Final = re.compile(r"[0-9a-f]{64}")
_NEED_TEMPLATE: Final = ("system_prompt", "messages")


def version_id(model: ModelRecord) -> str:
    """Return the id of what the model serves."""
    if _VERSION_ID.fullmatch(model.weights_sha256):
        return model.weights_sha256
    return name_version_id(model.name)


def name_version_id(model_name: str) -> str:
    """Return the id for weights that are not known."""
    return hashlib.sha256(b"tailrace model v1\0" + model_name.encode()).hexdigest()


def is_version_of(model: ModelRecord, version: str) -> bool:
    """Return whether `version` names what the model serves: its id, `hidden` or nothing."""
    return version in ("", HIDDEN_VERSION, version_id(model))


def model_object(model: ModelRecord, base: PublicBase) -> objects.Model:
    """Return a model."""
    owner, _, name = model.name.partition("/")
    return objects.Model(
        url=base.url(f"/v1/models/{quote(owner, safe='')}/{quote(name, safe='')}"),
        owner=owner,
        name=name,
        description=_description(model),
        latest_version=version_object(model),
    )


def version_object(model: ModelRecord) -> objects.Version:
    """Return a model's one version."""
    return objects.Version(
        id=version_id(model),
        created_at=objects.UNKNOWN_MOMENT,
        cog_version=COG_VERSION,
        openapi_schema=openapi_schema(model),
    )


def deployment_object(name: str, deployment: Deployment, model: ModelRecord | None) -> objects.Deployment:
    """Return a deployment; `model` is None when its model is not served."""
    owner, _, short_name = name.partition("/")
    version = name_version_id(deployment.model) if model is None else version_id(model)
    release = objects.Release(
        model=deployment.model,
        version=version,
        created_by=ACCOUNT,
        configuration=objects.Configuration(hardware=HARDWARE.sku),
    )
    return objects.Deployment(owner=owner, name=short_name, current_release=release)


def readme(model: ModelRecord) -> str:
    """Return a page about a model, in Markdown."""
    lines = [f"# {model.name}", "", _description(model)]
    if model.is_known:
        lines += ["", f"- Context: {model.context_tokens} tokens, prompt and output together"]
        lines += [f"- Chat template: {'yes' if model.chat_template else 'no, give `prompt` alone'}"]
    return "\n".join([*lines, f"- Version: {version_id(model)}", ""])


def openapi_schema(model: ModelRecord) -> dict[str, JsonValue]:
    """Return a version's schema: `Input` as the model takes it, `Output` as text in pieces.

    In Cog's form, as programs read it: a field has its type at hand and its place in `x-order`.
    """
    inputs: dict[str, Any] = PredictionInput.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = inputs.pop("$defs", {})
    schemas.pop("JsonValue", None)
    known = {k: v for k, v in inputs["properties"].items() if model.chat_template or k not in _NEED_TEMPLATE}
    if not model.chat_template:
        schemas.pop("Message", None)
    inputs["properties"] = {name: _flat(spec, order) for order, (name, spec) in enumerate(known.items())}
    inputs["title"] = "Input"
    return {
        "openapi": "3.1.0",
        "info": {"title": model.name, "version": "1.0.0"},
        "paths": {},
        "components": {"schemas": {**schemas, "Input": inputs, "Output": OUTPUT}},
    }


def _flat(spec: dict[str, Any], order: int) -> dict[str, Any]:
    """Return a field's schema without its null, which means the default anyway."""
    kinds = [kind for kind in spec.get("anyOf", ()) if kind.get("type") != "null"]
    kept = {name: value for name, value in spec.items() if name not in ("anyOf", "default")}
    shape = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if "additionalProperties" in str(shape):
        shape = {"anyOf": [{"type": "string"}, {"type": "object"}]}
    return {**kept, **shape, "x-order": order}


def _description(model: ModelRecord) -> str:
    return (
        f"A language model, run by {model.engine}." if model.engine else "A language model that is loading."
    )

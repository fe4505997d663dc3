"""Owns the OpenAPI document of Replicate's API: made from the table of endpoints and its models.

Specification: OpenAPI 3.1.1. Its Path Item has no `query` method (3.2 has), so that one stands under
`x-query`. Refusals are problem details, the same for all endpoints, under `4XX` and `5XX`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from edge.protocol.problems import CONTENT_TYPE
from edge.protocol.public_url import PublicBase
from edge.replicate import objects
from edge.replicate.endpoints import JSON, PATH_PARAMETERS, Answer, Endpoint, Parameter
from edge.replicate.routing import PREFIXES

_REFERENCE: Final = "#/components/schemas/{model}"
_IN_PATH: Final = re.compile(r"\{([a-z_]+)\}")
_STANDARD: Final = frozenset(("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"))
_REFUSALS: Final = {"4XX": "The request cannot be taken.", "5XX": "It cannot be served, or not now."}

Schemas = Mapping[tuple[Any, JsonSchemaMode], Any]


def openapi_document(endpoints: Iterable[Endpoint], base: PublicBase) -> dict[str, Any]:
    """Return the document of `endpoints`, for callers who reach us at `base`."""
    endpoints = tuple(endpoints)
    schemas, definitions = models_json_schema(_models(endpoints), ref_template=_REFERENCE)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        method = endpoint.method.lower()
        key = method if endpoint.method in _STANDARD else f"x-{method}"
        paths.setdefault(endpoint.path, {})[key] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Tailrace: Replicate's API",
            "version": "1.0.0",
            "description": "Self-hosted token generation. Official Replicate clients work unchanged.",
        },
        "servers": [{"url": base.url(prefix) if prefix else base.url("/")[:-1]} for prefix in PREFIXES],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "`Authorization: Bearer …`, or `Token …`.",
                },
            },
        },
    }


def _models(endpoints: Iterable[Endpoint]) -> list[tuple[type[BaseModel], JsonSchemaMode]]:
    found: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {(objects.Problem, "serialization"): None}
    for endpoint in endpoints:
        if isinstance(endpoint.body, type):
            found[endpoint.body, "validation"] = None
        for answer in endpoint.answers:
            if answer.content is not None:
                found[answer.content, "serialization"] = None
    return list(found)


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    answers = {str(answer.status): _answer(answer, schemas) for answer in endpoint.answers}
    problem = {"schema": schemas[objects.Problem, "serialization"]}
    refusals = {
        status: {"description": text, "content": {CONTENT_TYPE: problem}}
        for status, text in _REFUSALS.items()
    }
    operation: dict[str, Any] = {
        "operationId": endpoint.operation,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": answers | refusals,
    }
    parameters = [_path_parameter(name) for name in _IN_PATH.findall(endpoint.path)]
    parameters += [_parameter(parameter) for parameter in endpoint.parameters]
    if parameters:
        operation["parameters"] = parameters
    if isinstance(endpoint.body, str):
        schema = {"type": "string"}
        operation["requestBody"] = {"required": False, "content": {endpoint.body: {"schema": schema}}}
    elif endpoint.body is not None:
        content = {JSON: {"schema": schemas[endpoint.body, "validation"]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _answer(answer: Answer, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.description}
    if answer.headers:
        described["headers"] = {name: {"schema": {"type": "string"}} for name in answer.headers}
    if answer.content is not None:
        schema = schemas[answer.content, "serialization"]
        schema = {"type": "array", "items": schema} if answer.is_list else schema
        described["content"] = {answer.media or JSON: {"schema": schema}}
    elif answer.media:
        described["content"] = {answer.media: {"schema": {"type": "string"}}}
    return described


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": PATH_PARAMETERS[name],
        "schema": {"type": "string", "minLength": 1},
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "string"} | ({"format": parameter.format} if parameter.format else {})
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": False,
        "description": parameter.description,
        "schema": schema,
    }

"""Owns what answers about things that are there: models, versions, deployments, accounts and the like.

Nothing here changes anything. Disconnect policy of all: detached, since there is nothing to end.
"""

from collections.abc import Sequence

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from edge.http.body import BodyLimits, discard_body, read_body
from edge.http.middleware import caller_of
from edge.http.problem_responses import ProblemError, problem_response
from edge.protocol.problems import Problem
from edge.replicate import objects
from edge.replicate.catalog import (
    ACCOUNT,
    HARDWARE,
    deployment_object,
    is_version_of,
    model_object,
    readme,
    version_object,
)
from edge.replicate.deployments import Deployment, Deployments
from edge.replicate.listing import refuse_cursor
from edge.replicate.requests import PublicUrls, name_in_path
from edge.replicate.routing import Handler
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.port import UpstreamModels
from edge.upstream.records import ModelRecord

_NO_STORE = {"cache-control": "no-store"}


def find_deployment(request: Request, deployments: Deployments) -> tuple[str, Deployment]:
    """Return the deployment of the path, with its name. Raises ProblemError 404."""
    name = f"{request.path_params['owner']}/{request.path_params['name']}"
    found = deployments.get(name)
    if found is None:
        raise ProblemError(Problem("Deployment not found", 404, "No such deployment."))
    return name, found


class CatalogApi:
    """The endpoints about what can be run, over one service and the settings' deployments."""

    def __init__(
        self, models: UpstreamModels, deployments: Deployments, urls: PublicUrls, body: BodyLimits
    ) -> None:
        self._models = models
        self._deployments = deployments
        self._urls = urls
        self._body = body

    def handlers(self) -> dict[str, Handler]:
        """Return what serves each operation."""
        unserved = ("files.create", "files.list", "files.get", "files.delete", "files.download")
        return {
            "models.search": self.search_models,
            "models.versions.list": self.list_versions,
            "models.versions.get": self.get_version,
            "models.readme.get": self.get_readme,
            "models.examples.list": self.list_nothing_of_model,
            "search": self.search,
            "deployments.list": self.list_deployments,
            "deployments.get": self.get_deployment,
            "account.get": self.get_account,
            "hardware.list": self.list_hardware,
            "collections.list": self.list_nothing,
            "collections.get": self.find_nothing,
            "trainings.create": self.unserved,
            "trainings.list": self.list_nothing,
            "trainings.get": self.find_nothing,
            "trainings.cancel": self.find_nothing,
            **dict.fromkeys(unserved, self.unserved),
        }

    async def search_models(self, request: Request) -> Response:
        """Return the models that the body's text finds."""
        text = (await read_body(request, self._body)).decode("utf-8", "replace")
        return self._model_page(request, await self._found(request, text))

    async def list_versions(self, request: Request) -> Response:
        """Return a model's one version."""
        refuse_cursor(request.query_params)
        return _json(objects.VersionPage(results=[version_object(await self._model(request))]))

    async def get_version(self, request: Request) -> Response:
        """Return a version; `hidden` is the one that is served."""
        model = await self._model(request)
        if not is_version_of(model, request.path_params["version_id"]):
            raise ProblemError(Problem("Version not found", 404, "No such version of this model."))
        return _json(version_object(model))

    async def get_readme(self, request: Request) -> Response:
        """Return a page about a model."""
        return Response(readme(await self._model(request)), 200, _NO_STORE, "text/plain")

    async def search(self, request: Request) -> Response:
        """Return the models that the query finds; there is nothing else to find."""
        query = request.query_params.get("query", "")
        base = self._urls.base(request)
        found = [
            objects.FoundModel(model=model_object(model, base), metadata={})
            for model in await self._found(request, query)
        ]
        return _json(objects.Found(query=query, models=found, collections=[], pages=[]))

    async def list_deployments(self, request: Request) -> Response:
        """Return all deployments, in the settings' order."""
        refuse_cursor(request.query_params)
        found = [
            await self._deployment(request, name, deployment)
            for name, deployment in self._deployments.items()
        ]
        return _json(objects.DeploymentPage(results=found))

    async def get_deployment(self, request: Request) -> Response:
        """Return a deployment."""
        return _json(await self._deployment(request, *find_deployment(request, self._deployments)))

    async def get_account(self, request: Request) -> Response:
        """Return whose token it is."""
        return _json(ACCOUNT)

    async def list_hardware(self, request: Request) -> Response:
        """Return the hardware: a bare list, as Replicate's."""
        return _json_text(b"[" + HARDWARE.model_dump_json().encode() + b"]")

    async def list_nothing(self, request: Request) -> Response:
        """Return an empty page."""
        refuse_cursor(request.query_params)
        return _json_text(orjson.dumps({"next": None, "previous": None, "results": []}))

    async def list_nothing_of_model(self, request: Request) -> Response:
        """Return an empty page, for a model that is there."""
        await self._model(request)
        return await self.list_nothing(request)

    async def find_nothing(self, request: Request) -> Response:
        """Answer 404: there is none of these."""
        return problem_response(Problem("Not found", 404, "There is nothing of this name."))

    async def unserved(self, request: Request) -> Response:
        """Answer 501 for what a service of one's own does not do.

        Not 404, on which the npm client would give up instead of sending a file within the input.
        """
        complete = await discard_body(request, self._body)
        headers = {"x-should-retry": "false"} | ({} if complete else {"connection": "close"})
        return problem_response(Problem("Not implemented", 501, "This is not served here."), headers)

    async def _model(self, request: Request) -> ModelRecord:
        return await self._models.get(name_in_path(request), caller=caller_of(request))

    async def _found(self, request: Request, text: str) -> list[ModelRecord]:
        word = text.strip().casefold()
        models = await self._models.list(caller=caller_of(request))
        return [model for model in models if word in model.name.casefold()]

    def _model_page(self, request: Request, models: Sequence[ModelRecord]) -> Response:
        base = self._urls.base(request)
        return _json(objects.ModelPage(results=[model_object(model, base) for model in models]))

    async def _deployment(self, request: Request, name: str, deployment: Deployment) -> objects.Deployment:
        try:
            model = await self._models.get(deployment.model, caller=caller_of(request))
        except UpstreamError as error:
            if error.reason is not Reason.MODEL_NOT_FOUND:
                raise
            model = None
        return deployment_object(name, deployment, model)


def _json(value: BaseModel) -> Response:
    return _json_text(value.model_dump_json().encode())


def _json_text(body: bytes) -> Response:
    return Response(body, 200, _NO_STORE, "application/json")

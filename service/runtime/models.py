"""The served models: what each is, and what it has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from service.domain.errors import ModelNotFound
from service.domain.request import Prompt
from service.ports.engine import EngineInfo
from service.runtime.dispatcher import Dispatcher
from service.runtime.readiness import ModelState

__all__ = ["ModelState", "Models", "ServedModel"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model at this moment."""

    name: str
    state: ModelState
    info: EngineInfo | None
    """None until it was loaded once."""
    running: int
    waiting: int


class Models:
    """A view of the dispatchers, in the order of the settings."""

    def __init__(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        self._dispatchers = dispatchers

    def list(self) -> tuple[ServedModel, ...]:
        """Return all models."""
        return tuple(self._view(dispatcher) for dispatcher in self._dispatchers.values())

    def get(self, name: str) -> ServedModel:
        """Return one model.

        Raises:
            ModelNotFound: no such model is served.
        """
        return self._view(self._find(name))

    async def count(self, name: str, prompt: Prompt) -> int:
        """Return the exact number of tokens that `prompt` feeds to the model.

        Raises:
            ModelNotFound, InvalidRequest, UnsupportedByEngine, EngineNotReady.
        """
        return await self._find(name).readiness.count_only(prompt)

    async def changed(self) -> None:
        """Wait until some model's state changes; a change after this was called is never missed."""
        changes = [dispatcher.readiness.change for dispatcher in self._dispatchers.values()]
        async with anyio.create_task_group() as tasks:

            async def wait(change: anyio.Event) -> None:
                await change.wait()
                tasks.cancel_scope.cancel()

            for change in changes:
                tasks.start_soon(wait, change)

    def _find(self, name: str) -> Dispatcher:
        dispatcher = self._dispatchers.get(name)
        if dispatcher is None:
            raise ModelNotFound(f"no model {name!r:.200} is served here")
        return dispatcher

    @staticmethod
    def _view(dispatcher: Dispatcher) -> ServedModel:
        return ServedModel(
            name=dispatcher.model,
            state=dispatcher.readiness.state,
            info=dispatcher.readiness.info,
            running=dispatcher.running,
            waiting=dispatcher.waiting,
        )

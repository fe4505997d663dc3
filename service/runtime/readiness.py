"""Readiness of one model's engine: whether it can be asked, and waiting until it can.

Owns the state that callers see (`ModelState`) and the patience of creates with an engine that is
being started again. The dispatcher reports what the engine host says.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

import anyio

from service.domain.admission import check_counted
from service.domain.errors import EngineNotReady, InvalidRequest
from service.domain.request import ChatPrompt, Constraint, FieldViolation, Prompt, constraint_field
from service.ports.engine import ConstraintError, EngineInfo, PromptError
from service.ports.engine_host import EngineHost

ENGINE_WAIT = timedelta(seconds=10)
"""How long a create waits for an engine that is being started again, before UNAVAILABLE."""


class ModelState(Enum):
    """Whether a model can take work; names as in the proto."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


class Readiness:
    """See the module. Used from the event loop's thread alone."""

    def __init__(self, model: str, host: EngineHost) -> None:
        self._model = model
        self._host = host
        self.state = ModelState.LOADING
        self.info: EngineInfo | None = None
        """What was loaded last; None before the first time."""
        self.change = anyio.Event()
        """Set at the next change of `state`, then replaced."""

    @property
    def ready(self) -> bool:
        """Whether jobs can be submitted."""
        return self.state is ModelState.READY

    def up(self, info: EngineInfo) -> None:
        """Note that the engine is loaded."""
        self.info = info
        self._set(ModelState.READY)

    def down(self, *, final: bool) -> None:
        """Note that the engine is gone; `final` when no restart is tried any more."""
        if final:
            self._set(ModelState.FAILED)
        else:
            self._set(ModelState.LOADING if self.info is None else ModelState.RESTARTING)

    async def require(self) -> EngineInfo:
        """Return what is loaded, having waited a little for it.

        Raises:
            EngineNotReady: it did not come in time, or will not come.
        """
        with anyio.move_on_after(ENGINE_WAIT.total_seconds()):
            while not self.ready and self.state is not ModelState.FAILED:
                await self.change.wait()
        if self.info is None or not self.ready:
            raise self._not_ready()
        return self.info

    async def count(self, prompt: Prompt, constraint: Constraint | None = None) -> int:
        """Return the exact number of tokens that `prompt` feeds, having checked the constraint.

        An engine that dies meanwhile is waited for, and asked again.

        Raises:
            InvalidRequest: the prompt cannot be rendered, or the engine refuses the constraint.
            EngineNotReady: the engine did not come back in time.
        """
        with anyio.move_on_after(ENGINE_WAIT.total_seconds()):
            while True:
                await self.require()
                try:
                    return await self._host.count(prompt, constraint)
                except PromptError as error:
                    raise InvalidRequest((FieldViolation("prompt", str(error)),)) from error
                except ConstraintError as error:
                    raise InvalidRequest((_refusal(prompt, constraint, error),)) from error
                except EngineNotReady:
                    if self.ready:
                        await self.change.wait()
        raise self._not_ready()

    async def count_only(self, prompt: Prompt) -> int:
        """Return the exact number of tokens that `prompt` feeds, for a caller who generates nothing.

        Raises:
            InvalidRequest: as `count`, and for a chat out of its bounds.
            UnsupportedByEngine: the model cannot render it.
            EngineNotReady: as `count`.
        """
        info = await self.require()
        check_counted(
            prompt, engine=info.engine, capabilities=info.request_fields, chat_template=info.chat_template
        )
        return await self.count(prompt)

    def _not_ready(self) -> EngineNotReady:
        if self.state is ModelState.FAILED:
            return EngineNotReady(f"model {self._model} could not be loaded; see the service's log")
        text = f"model {self._model} is loading; try again"
        return EngineNotReady(text, retry_after=timedelta(seconds=2))

    def _set(self, state: ModelState) -> None:
        self.state = state
        change, self.change = self.change, anyio.Event()
        change.set()


def _refusal(prompt: Prompt, constraint: Constraint | None, error: ConstraintError) -> FieldViolation:
    """Name the field that the refused constraint comes from."""
    if isinstance(prompt, ChatPrompt) and prompt.forced_tool is not None:
        return FieldViolation("chat.tools", f"cannot be forced: {error}")
    return FieldViolation(constraint_field(constraint), str(error))

"""A small gRPC service that the edge's tests script: real server and sockets, no engine, no store.

A test creates predictions through the edge and drives each one by `emit` and `finish`, or gives
`texts` for all to be produced at once. Faults are queued per method and taken in their order.
"""

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import anyio
import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from protos.metadata import REPLAYED
from protos.tailrace.v1 import (
    model_service_pb2,
    model_service_pb2_grpc,
    prediction_pb2,
    prediction_service_pb2,
    prediction_service_pb2_grpc,
)
from tests.support.fake_listing import InvalidPageToken, page

MODEL = "acme/llm"
WEIGHTS = "ab" * 32
EPOCH = datetime(2026, 11, 30, 18, 47, 8, 234000, tzinfo=UTC)
StatusValue: TypeAlias = "prediction_pb2.Status.ValueType"

STARTING: StatusValue = prediction_pb2.STATUS_STARTING
TERMINAL: tuple[StatusValue, ...] = (
    prediction_pb2.STATUS_SUCCEEDED,
    prediction_pb2.STATUS_FAILED,
    prediction_pb2.STATUS_CANCELED,
)


@dataclass
class Fault:
    """How a call fails."""

    code: grpc.StatusCode
    reason: str = ""
    """Of our ErrorInfo; empty for a status that gRPC itself could have made."""

    message: str = "scripted"
    violations: tuple[tuple[str, str], ...] = ()
    retry_after: timedelta | None = None
    after_events: int = 0
    """Of a stream: events sent before it fails."""

    @property
    def is_clean_end(self) -> bool:
        """Whether the stream just ends, without `completed`."""
        return self.code is grpc.StatusCode.OK

    async def abort(self, context: grpc.aio.ServicerContext) -> None:
        """End the call."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        if self.reason:
            self._add(status, error_details_pb2.ErrorInfo(reason=self.reason, domain="tailrace"))
        if self.violations:
            bad = error_details_pb2.BadRequest()
            for name, description in self.violations:
                bad.field_violations.add(field=name, description=description)
            self._add(status, bad)
        if self.retry_after is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromTimedelta(self.retry_after)
            self._add(status, retry)
        await context.abort_with_status(rpc_status.to_status(status))

    @staticmethod
    def _add(status: status_pb2.Status, detail: object) -> None:
        packed = any_pb2.Any()
        packed.Pack(detail)  # type: ignore[arg-type]  # google.rpc comes without types
        status.details.append(packed)


class FakePrediction:
    """A prediction whose log the test writes."""

    def __init__(self, request: prediction_service_pb2.CreatePredictionRequest, number: int) -> None:
        self.request = request
        self.id = (
            request.prediction_id
            or request.fresh_id
            or f"{number:026d}".replace("0", "a").replace("1", "b")[:26]
        )
        self.log: list[prediction_pb2.PredictionEvent] = []
        self.data_removed = False
        self._changed = anyio.Event()
        self._status: StatusValue = STARTING
        accepted = self._append()
        accepted.accepted.prediction_id = self.id
        accepted.accepted.time.FromDatetime(EPOCH)

    @property
    def status(self) -> StatusValue:
        """Where it stands."""
        return self._status

    def start(self) -> None:
        """Log `started`."""
        self._status = prediction_pb2.STATUS_PROCESSING
        started = self._append()
        started.started.time.FromDatetime(EPOCH + timedelta(seconds=1))
        started.started.input_tokens = 7
        self._tell()

    def emit(self, *texts: str) -> None:
        """Log one output entry a text; the first also starts the prediction."""
        if self._status == STARTING:
            self.start()
        for text in texts:
            event = self._append()
            event.output.text = text
            event.output.token_count = 1
        self._tell()

    def finish(self, status: StatusValue = prediction_pb2.STATUS_SUCCEEDED, error: str = "") -> None:
        """Log `completed`, unless it has ended."""
        if self._status in TERMINAL:
            return
        self._status = status
        event = self._append()
        event.completed.time.FromDatetime(EPOCH + timedelta(seconds=3))
        event.completed.status = status
        event.completed.finish_reason = {
            prediction_pb2.STATUS_SUCCEEDED: prediction_pb2.FINISH_REASON_STOP,
            prediction_pb2.STATUS_FAILED: prediction_pb2.FINISH_REASON_ERROR,
        }.get(status, prediction_pb2.FINISH_REASON_CANCELED)
        event.completed.usage.input_tokens = 7
        event.completed.usage.output_tokens = sum(e.output.token_count for e in self.log)
        event.completed.error = error
        self._tell()

    def record(self, *, omit_data: bool = False) -> prediction_pb2.Prediction:
        """Return it as the service would."""
        record = prediction_pb2.Prediction(
            id=self.id,
            model=self.request.model,
            status=self._status,
            labels=dict(self.request.labels),
            last_sequence=len(self.log),
            data_removed=self.data_removed,
            owner=self.request.owner,
        )
        record.create_time.FromDatetime(EPOCH)
        if self.request.HasField("webhook"):
            record.webhook.CopyFrom(self.request.webhook)
            record.webhook.context = ""
        if self.request.HasField("cancel_after"):
            record.deadline.FromDatetime(EPOCH + self.request.cancel_after.ToTimedelta())
        for event in self.log:
            kind = event.WhichOneof("event")
            if kind == "started":
                record.start_time.CopyFrom(event.started.time)
            elif kind == "output":
                record.first_output_time.FromDatetime(EPOCH + timedelta(seconds=2))
            elif kind == "completed":
                record.complete_time.CopyFrom(event.completed.time)
                record.usage.CopyFrom(event.completed.usage)
                record.error = event.completed.error
                record.finish_reason = event.completed.finish_reason
        if not omit_data and not self.data_removed:
            record.request.CopyFrom(self.request.generation)
            record.output.extend(e.output.text for e in self.log if e.HasField("output"))
        return record

    async def wait_change(self) -> None:
        """Return when the log has grown."""
        await self._changed.wait()

    async def wait_end(self) -> None:
        """Return when it has ended."""
        while self._status not in TERMINAL:
            await self._changed.wait()

    def _append(self) -> prediction_pb2.PredictionEvent:
        number = len(self.log) + 1
        event = prediction_pb2.PredictionEvent(first_sequence=number, sequence=number)
        self.log.append(event)
        return event

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


@dataclass
class FakeService:
    """The servicers, what they saw, and what they shall do."""

    texts: Iterable[str] | None = None
    """Produced at once by every prediction, which then succeeds; None: the test drives each one."""

    merge: int = 1
    """Output entries that one message carries at most."""

    models: list[model_service_pb2.Model] = field(default_factory=lambda: [model()])
    predictions: dict[str, FakePrediction] = field(default_factory=dict)
    calls: list[tuple[str, object, dict[str, str]]] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    deliveries: list[prediction_service_pb2.WebhookDelivery] = field(default_factory=list)
    open_readers: int = 0
    sent_events: int = 0
    port: int = 0
    _readers_changed: anyio.Event = field(default_factory=anyio.Event)
    _created: anyio.Event = field(default_factory=anyio.Event)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _by_request_id: dict[tuple[str, str], FakePrediction] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """What the edge connects to."""
        return f"127.0.0.1:{self.port}"

    def requests(self, method: str) -> list[object]:
        """Return the requests of one method so far."""
        return [request for name, request, _ in self.calls if name == method]

    async def created(self) -> FakePrediction:
        """Return the newest prediction, waiting for the first."""
        while not self.predictions:
            await self._created.wait()
        return list(self.predictions.values())[-1]

    async def wait_readers(self, count: int) -> None:
        """Return when exactly `count` streams are open."""
        while self.open_readers != count:
            await self._readers_changed.wait()

    async def note(self, method: str, request: object, context: grpc.aio.ServicerContext) -> Fault | None:
        """Record a call; return the fault it shall meet."""
        self.calls.append((method, request, dict(context.invocation_metadata() or ())))
        return self.faults[method].popleft() if self.faults[method] else None

    def find_created(self, request: prediction_service_pb2.CreatePredictionRequest) -> FakePrediction | None:
        """Return the prediction of the same request id or id."""
        name = request.owner, request.request_id
        return self._by_request_id.get(name) or self.predictions.get(request.prediction_id)

    def create(self, request: prediction_service_pb2.CreatePredictionRequest) -> FakePrediction:
        """Make a prediction, or return the one of the same request id or id."""
        known = self.find_created(request)
        if known is not None:
            return known
        made = FakePrediction(request, next(self._numbers))
        self.predictions[made.id] = self._by_request_id[request.owner, request.request_id] = made
        if self.texts is not None:
            made.emit(*self.texts)
            made.finish()
        self._created.set()
        return made

    async def find(
        self, prediction_id: str, context: grpc.aio.ServicerContext, owner: str = ""
    ) -> FakePrediction:
        """Return a prediction, or end the call."""
        found = self.predictions.get(prediction_id)
        if found is None or owner not in ("", found.request.owner):
            await Fault(grpc.StatusCode.NOT_FOUND, "PREDICTION_NOT_FOUND", "No such prediction.").abort(
                context
            )
        assert found is not None
        return found

    def count_reader(self, change: int) -> None:
        """Note that a stream began or ended."""
        self.open_readers += change
        changed, self._readers_changed = self._readers_changed, anyio.Event()
        changed.set()


def model(
    name: str = MODEL, *, chat_template: bool = True, engine: str = "scripted"
) -> model_service_pb2.Model:
    """Return a served model."""
    return model_service_pb2.Model(
        name=name,
        state=model_service_pb2.MODEL_STATE_READY if engine else model_service_pb2.MODEL_STATE_LOADING,
        engine=engine,
        context_tokens=2048,
        chat_template=chat_template,
        weights_sha256=WEIGHTS,
    )


class _Predictions(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, service: FakeService) -> None:
        self._service = service

    async def Predict(  # type: ignore[override]  # written by context.write, not yielded
        self, request: prediction_service_pb2.PredictRequest, context: grpc.aio.ServicerContext
    ) -> None:
        fault = await self._service.note("Predict", request, context)
        if fault is not None and not fault.after_events and not fault.is_clean_end:
            await fault.abort(context)
        if request.model not in {known.name for known in self._service.models}:
            await Fault(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", "No such model.").abort(context)
        made = self._service.create(
            prediction_service_pb2.CreatePredictionRequest(
                model=request.model,
                generation=request.generation,
                request_id=request.request_id,
                labels=dict(request.labels),
                attached=True,
            )
        )
        await self._read(made, 0, fault, context, attach=True, merge=self._service.merge)

    async def CreatePrediction(
        self, request: prediction_service_pb2.CreatePredictionRequest, context: grpc.aio.ServicerContext
    ) -> prediction_pb2.Prediction:
        fault = await self._service.note("CreatePrediction", request, context)
        if fault is not None:
            if fault.after_events:
                self._service.create(request)  # accepted, and the answer got lost
            await fault.abort(context)
        if request.model not in {known.name for known in self._service.models}:
            await Fault(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", "No such model.").abort(context)
        known = self._service.find_created(request)
        if known is None:
            return self._service.create(request).record()
        if _body(known.request) != _body(request):
            await Fault(grpc.StatusCode.ALREADY_EXISTS, "ID_CONFLICT").abort(context)
        context.set_trailing_metadata(((REPLAYED, "1"),))
        return known.record()

    async def GetPrediction(
        self, request: prediction_service_pb2.GetPredictionRequest, context: grpc.aio.ServicerContext
    ) -> prediction_pb2.Prediction:
        fault = await self._service.note("GetPrediction", request, context)
        if fault is not None:
            await fault.abort(context)
        found = await self._service.find(request.id, context, request.owner)
        with anyio.move_on_after(request.wait.ToTimedelta().total_seconds()):
            await found.wait_end()
        return found.record(omit_data=request.omit_data)

    async def ListPredictions(
        self, request: prediction_service_pb2.ListPredictionsRequest, context: grpc.aio.ServicerContext
    ) -> prediction_service_pb2.ListPredictionsResponse:
        fault = await self._service.note("ListPredictions", request, context)
        if fault is not None:
            await fault.abort(context)
        newest = reversed(self._service.predictions.values())
        mine = [p.record() for p in newest if request.owner in ("", p.request.owner)]
        try:
            return page(mine, request)
        except InvalidPageToken:
            bad = Fault(
                grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", violations=(("page_token", "bad"),)
            )
            await bad.abort(context)
            raise AssertionError("abort raises") from None

    async def CancelPrediction(
        self, request: prediction_service_pb2.CancelPredictionRequest, context: grpc.aio.ServicerContext
    ) -> prediction_pb2.Prediction:
        fault = await self._service.note("CancelPrediction", request, context)
        if fault is not None:
            await fault.abort(context)
        found = await self._service.find(request.id, context, request.owner)
        found.finish(prediction_pb2.STATUS_CANCELED)
        return found.record()

    async def ListWebhookDeliveries(
        self,
        request: prediction_service_pb2.ListWebhookDeliveriesRequest,
        context: grpc.aio.ServicerContext,
    ) -> prediction_service_pb2.ListWebhookDeliveriesResponse:
        await self._service.note("ListWebhookDeliveries", request, context)
        if request.prediction_id:
            await self._service.find(request.prediction_id, context, request.owner)
        return prediction_service_pb2.ListWebhookDeliveriesResponse(deliveries=self._service.deliveries)

    async def GetWebhookSecret(
        self, request: prediction_service_pb2.GetWebhookSecretRequest, context: grpc.aio.ServicerContext
    ) -> prediction_service_pb2.GetWebhookSecretResponse:
        await self._service.note("GetWebhookSecret", request, context)
        return prediction_service_pb2.GetWebhookSecretResponse(key="whsec_" + "a" * 32)

    async def StreamPrediction(  # type: ignore[override]  # written by context.write, not yielded
        self, request: prediction_service_pb2.StreamPredictionRequest, context: grpc.aio.ServicerContext
    ) -> None:
        fault = await self._service.note("StreamPrediction", request, context)
        if fault is not None and not fault.after_events and not fault.is_clean_end:
            await fault.abort(context)
        found = await self._service.find(request.id, context, request.owner)
        if found.data_removed:
            await Fault(grpc.StatusCode.OUT_OF_RANGE, "CURSOR_EXPIRED", "Removed.").abort(context)
        merge = 1 if request.unjoined else self._service.merge
        await self._read(found, request.after_sequence, fault, context, attach=request.attach, merge=merge)

    async def _read(
        self,
        found: FakePrediction,
        position: int,
        fault: Fault | None,
        context: grpc.aio.ServicerContext,
        *,
        attach: bool,
        merge: int,
    ) -> None:
        self._service.count_reader(1)
        try:
            await self._send(found, position, fault, context, merge)
        except asyncio.CancelledError:
            if attach:
                found.finish(prediction_pb2.STATUS_CANCELED)
            raise
        finally:
            self._service.count_reader(-1)

    async def _send(
        self,
        found: FakePrediction,
        position: int,
        fault: Fault | None,
        context: grpc.aio.ServicerContext,
        merge: int,
    ) -> None:
        sent = 0
        while True:
            while position < len(found.log):
                if fault is not None and sent >= fault.after_events:
                    if not fault.is_clean_end:
                        await fault.abort(context)
                    return
                event = _merged(found.log[position:], merge)
                await context.write(event)
                position = event.sequence
                sent += 1
                self._service.sent_events += 1
            if found.status in TERMINAL:
                return
            await found.wait_change()


def _body(request: prediction_service_pb2.CreatePredictionRequest) -> object:
    copy = prediction_service_pb2.CreatePredictionRequest()
    copy.CopyFrom(request)
    copy.request_id = copy.fresh_id = copy.webhook.context = ""
    if not request.HasField("webhook"):
        copy.ClearField("webhook")
    return copy


def _merged(log: list[prediction_pb2.PredictionEvent], limit: int) -> prediction_pb2.PredictionEvent:
    run = list(itertools.takewhile(lambda event: event.HasField("output"), log))[:limit]
    if len(run) < 2:
        return log[0]
    merged = prediction_pb2.PredictionEvent(first_sequence=run[0].first_sequence, sequence=run[-1].sequence)
    merged.output.text = "".join(event.output.text for event in run)
    merged.output.token_count = len(run)
    return merged


class _Models(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, service: FakeService) -> None:
        self._service = service

    async def ListModels(
        self, request: model_service_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> model_service_pb2.ListModelsResponse:
        await self._service.note("ListModels", request, context)
        return model_service_pb2.ListModelsResponse(models=self._service.models)

    async def CountTokens(
        self, request: model_service_pb2.CountTokensRequest, context: grpc.aio.ServicerContext
    ) -> model_service_pb2.CountTokensResponse:
        return model_service_pb2.CountTokensResponse(input_tokens=7)

    async def GetModel(
        self, request: model_service_pb2.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> model_service_pb2.Model:
        fault = await self._service.note("GetModel", request, context)
        if fault is not None:
            await fault.abort(context)
        for known in self._service.models:
            if known.name == request.name:
                return known
        await Fault(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", "No such model.").abort(context)
        raise AssertionError("abort raises")


@asynccontextmanager
async def serve_fake(service: FakeService, *, port: int = 0) -> AsyncIterator[grpc.aio.Server]:
    """Run `service` on a loopback port, kept in `service.port`."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Predictions(service), server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(_Models(service), server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    await checks.set("", health_pb2.HealthCheckResponse.SERVING)
    service.port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)

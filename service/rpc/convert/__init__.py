"""Between the proto messages and the domain's types; the only place that knows both."""

from service.rpc.convert.events import events_from
from service.rpc.convert.requests import (
    count_input,
    generation_from,
    moment_from,
    new_prediction,
    owner_from,
    page_size,
    refused,
    required,
    wait_from,
)
from service.rpc.convert.resources import generation_to, model_to, prediction_to

__all__ = [
    "count_input",
    "events_from",
    "generation_from",
    "generation_to",
    "model_to",
    "moment_from",
    "new_prediction",
    "owner_from",
    "page_size",
    "prediction_to",
    "refused",
    "required",
    "wait_from",
]

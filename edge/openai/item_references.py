"""Owns what the items of earlier responses were: input items that only name one by its id.

Nothing is stored for it. An id says which item of which prediction it is, and the prediction's output is
read again as it was read first. So a reference is good as long as the service keeps that data.
"""

import re
from typing import Final

from edge.openai.bodies import call_id
from edge.openai.errors import RequestRefused
from edge.openai.responses_schema import CallItem, Item, MessageItem, ReferenceItem, ResponseBody
from edge.protocol.answer_blocks import Blocks, CallBlock, TextBlock, read_blocks
from edge.upstream.answers import served_model
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.metadata import Caller
from edge.upstream.port import UpstreamModels, UpstreamPredictions
from edge.upstream.tools import reader_of, tool_use_of

API: Final = "openai.responses"
MAX_PREDICTIONS: Final = 128
"""Most earlier responses that one input may refer to."""

_ID: Final = re.compile(r"(msg|fc)_([a-z0-9-]{1,64})(?:_([0-9]{1,3}))?")


class ItemReferences:
    """Finds the items."""

    def __init__(self, predictions: UpstreamPredictions, models: UpstreamModels) -> None:
        self._predictions = predictions
        self._models = models

    async def resolved(self, body: ResponseBody, caller: Caller) -> ResponseBody:
        """Return `body` with the items themselves. Raises RequestRefused, UpstreamError."""
        if not any(isinstance(item, ReferenceItem) for item in body.input):
            return body
        known: dict[str, Blocks] = {}
        items: list[Item] = []
        for at, item in enumerate(body.input):
            if isinstance(item, ReferenceItem):
                found = await self._find(item.id, known, caller)
                if found is None:
                    text = f"Invalid 'input': item {at} refers to nothing that is kept; send the item itself."
                    raise RequestRefused(text, "input", "not_found")
                items.append(found)
            else:
                items.append(item)
        return body.model_copy(update={"input": tuple(items)})

    async def _find(self, identity: str, known: dict[str, Blocks], caller: Caller) -> Item | None:
        named = _ID.fullmatch(identity)
        if named is None:
            return None
        kind, prediction_id, number = named[1], named[2], int(named[3] or 0)
        blocks = known.get(prediction_id)
        if blocks is None:
            if len(known) == MAX_PREDICTIONS:
                text = f"'input' may refer to {MAX_PREDICTIONS} earlier responses at most."
                raise RequestRefused(text, "input")
            blocks = known[prediction_id] = await self._blocks(prediction_id, caller)
        return item_of(prediction_id, blocks, kind, number)

    async def _blocks(self, prediction_id: str, caller: Caller) -> Blocks:
        try:
            record = await self._predictions.get(prediction_id, caller=caller)
        except UpstreamError as error:
            if error.reason is not Reason.PREDICTION_NOT_FOUND:
                raise
            return Blocks()
        reader = None
        if tool_use_of(record) is not None:
            reader = reader_of(record, await served_model(record.model, self._models, caller))
        is_ours = dict(record.labels).get("api") == API
        return read_blocks("".join(record.output) if is_ours else "", reader)


def item_of(prediction_id: str, blocks: Blocks, kind: str, number: int) -> Item | None:
    """Return the item that an id names: output item `number`, or call `number`; None if there is none."""
    found = blocks.calls if kind == "fc" else blocks.all
    match found[number] if number < len(found) else None:
        case TextBlock(text):
            return MessageItem(role="assistant", content=text)
        case CallBlock() as call if kind == "fc":
            return CallItem(
                type="function_call",
                call_id=call_id(prediction_id, call.index),
                name=call.name,
                arguments=call.arguments,
            )
        case _:
            return None

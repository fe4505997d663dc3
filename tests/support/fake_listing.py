"""Pages of the fake service's predictions: newest first, without output, as the real one lists them.

A page token is the id of the last prediction of the page before.
"""

from collections.abc import Iterable

from protos.tailrace.v1 import prediction_pb2, prediction_service_pb2


class InvalidPageToken(Exception):
    """The token is none that was given."""


def page(
    newest_first: Iterable[prediction_pb2.Prediction],
    request: prediction_service_pb2.ListPredictionsRequest,
) -> prediction_service_pb2.ListPredictionsResponse:
    """Return the page that `request` asks for. Raises InvalidPageToken."""
    records = list(newest_first)
    if request.page_token:
        ids = [record.id for record in records]
        if request.page_token not in ids:
            raise InvalidPageToken
        records = records[ids.index(request.page_token) + 1 :]
    count = request.page_size or 100
    shown = records[:count]
    for record in shown:
        del record.output[:]
    more = shown[-1].id if len(records) > count else ""
    return prediction_service_pb2.ListPredictionsResponse(predictions=shown, next_page_token=more)

"""Keys of the gRPC metadata that edge and service exchange. Lower case, as HTTP/2 wants them."""

REQUEST_ID = "x-request-id"
"""Chosen by the edge for each HTTP request, repeated in both logs."""
TRACEPARENT = "traceparent"
"""W3C Trace Context §3.2; passed on, never trusted."""
REPLAYED = "tailrace-replayed"
"""In the trailer of CreatePrediction: an earlier create had made the prediction."""

"""What routes demand: `edge.auth.demands`."""

import pytest

from edge.auth.demands import ADMIN, CANCEL, CREATE, OPEN, READ, Demand, demand_of

CASES = [
    ("GET", "/healthz", OPEN),
    ("GET", "/readyz", OPEN),
    ("GET", "/v1/streams/abc", OPEN),
    ("HEAD", "/streams/abc", OPEN),
    ("OPTIONS", "/v1/predictions", OPEN),
    ("GET", "/", OPEN),
    ("GET", "/p/abc", OPEN),
    ("GET", "/assets/page/a.css", OPEN),
    ("GET", "/v1/predictions/abc", READ),
    ("GET", "/predictions", READ),
    ("QUERY", "/v1/models", READ),
    ("GET", "/metrics", READ),
    ("GET", "/nothing", READ),
    ("GET", "/v1/streams", READ),
    ("GET", "/v1/streams/a/b", READ),
    ("GET", "/v1/predictions/streams/x", READ),
    ("GET", "/p", READ),
    ("GET", "/healthz\n", READ),
    ("GET", "/HEALTHZ", READ),
    ("POST", "/v1/predictions", CREATE),
    ("PUT", "/v1/predictions/abc", CREATE),
    ("POST", "/v1/models/a/b/predictions", CREATE),
    ("POST", "/v1/anything/later", CREATE),
    ("POST", "/v1/predictions/abc/cancel", CANCEL),
    ("PUT", "/v1/predictions/abc/cancel", CREATE),
    ("DELETE", "/v1/models/a/b", ADMIN),
    ("PATCH", "/v1/deployments/a/b", ADMIN),
]


@pytest.mark.parametrize(("method", "path", "demand"), CASES)
def test_each_route_demands_by_method_and_path(method: str, path: str, demand: Demand) -> None:
    assert demand_of(method, path) is demand
